// SPDX-License-Identifier: Apache-2.0
// Where the samples of a kernel fall: what fake_cuda_pcs() says, or a few instructions spread over
// the function.
#include <elf.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/pc_spread.h"
#include "tests/fake_cuda/stalls.h"

namespace fakecuda {
namespace {

constexpr uint32_t kInstructionBytes = 16;  // sm_70 and later
constexpr uint32_t kDefaultBytes = 6 * kInstructionBytes;

struct Text {
  uint32_t section = 0;  // 0: the image has no such function
  uint32_t bytes = kDefaultBytes;
};

/// The section .text.NAME of a cubin. Nothing is found in synthetic bytes.
Text find_text(const std::vector<char>& image, const std::string& name) {
  Elf64_Ehdr header{};
  if (image.size() < sizeof header) return {};
  memcpy(&header, image.data(), sizeof header);
  const uint64_t table_bytes = static_cast<uint64_t>(header.e_shnum) * sizeof(Elf64_Shdr);
  if (header.e_machine != EM_CUDA || header.e_shoff > image.size() ||
      table_bytes > image.size() - header.e_shoff || header.e_shstrndx >= header.e_shnum) {
    return {};
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  memcpy(sections.data(), image.data() + header.e_shoff, table_bytes);
  const Elf64_Shdr& names = sections[header.e_shstrndx];
  const std::string wanted = ".text." + name;
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    const uint64_t at = names.sh_offset + sections[i].sh_name;
    if (at + wanted.size() >= image.size()) continue;
    if (memcmp(image.data() + at, wanted.c_str(), wanted.size() + 1) == 0) {
      return {i, static_cast<uint32_t>(sections[i].sh_size)};
    }
  }
  return {};
}

std::vector<SampledPc> spread_over(uint32_t bytes) {
  struct Share {
    const char* stall;
    uint32_t weight, not_issued;
  };
  constexpr Share kShares[] = {{"long_scoreboard", 4, 3},
                               {"wait", 2, 1},
                               {"selected", 2, 0},
                               {"short_scoreboard", 1, 1},
                               {"math_pipe_throttle", 1, 0}};
  std::vector<SampledPc> pcs;
  for (const Share& share : kShares) {
    const uint32_t at = static_cast<uint32_t>(bytes * (pcs.size() + 1) / 6);
    pcs.push_back({at / kInstructionBytes * kInstructionBytes,
                   find_stall(share.stall, strlen(share.stall)), share.weight, share.not_issued,
                   0});
  }
  return pcs;
}

void install(Function& function, KernelCode code, const std::vector<SampledPc>& pcs) {
  auto* kept = new std::vector<SampledPc>(pcs);
  code.pcs = kept->data();
  code.pc_count = static_cast<uint32_t>(kept->size());
  code.total_weight = 0;
  for (SampledPc& pc : *kept) pc.end = code.total_weight += pc.weight;
  code.step = spread_step(code.total_weight);
  function.code.store(new KernelCode(code), std::memory_order_release);
}

bool mistake(const Function& function, const char* problem, const char* at) {
  fprintf(stderr, "fake-cuda: pcs of %s: %s: %.60s\n", function.name.c_str(), problem, at);
  return false;
}

/// `per=NS` or `at=PERIOD` at `at`; false where it is neither.
bool parse_rate(const char*& at, KernelCode& code) {
  const bool per = strncmp(at, "per=", 4) == 0;
  if (!per && strncmp(at, "at=", 3) != 0) return false;
  char* end = nullptr;
  const uint64_t value = strtoull(strchr(at, '=') + 1, &end, 0);
  if (per) {
    code.per_ns = value;
  } else {
    code.at_period = static_cast<uint32_t>(value);
  }
  at = end;
  return true;
}

/// One `[!]OFFSET:STALL[*WEIGHT[/NOT_ISSUED]]`; `!`: not an instruction of the function.
bool parse_pc(const Function& function, const char*& at, SampledPc& pc) {
  const char* start = at;
  const bool outside = *at == '!';
  if (outside) ++at;
  char* end = nullptr;
  pc.offset = static_cast<uint32_t>(strtoul(at, &end, 0));
  if (end == at || *end != ':') return mistake(function, "no offset", start);
  const char* name = end + 1;
  const size_t length = strcspn(name, "* ");
  pc.stall = find_stall(name, length);
  if (pc.stall == kStallCount) return mistake(function, "no such stall reason", name);
  pc.weight = 1;
  pc.not_issued = 0;
  at = name + length;
  if (*at == '*') {
    pc.weight = static_cast<uint32_t>(strtoul(at + 1, &end, 0));
    at = end;
    if (*at == '/') {
      pc.not_issued = static_cast<uint32_t>(strtoul(at + 1, &end, 0));
      at = end;
    }
  }
  if (*at != 0 && *at != ' ') return mistake(function, "a pc ends with a space", start);
  if (pc.weight == 0 || pc.not_issued > pc.weight) return mistake(function, "weight", start);
  const bool inside = pc.offset % kInstructionBytes == 0 &&
                      (function.text_bytes == 0 || pc.offset < function.text_bytes);
  if (!outside && !inside) return mistake(function, "not one of its instructions", start);
  return true;
}

}  // namespace

void give_code(Function& function, const Module& module) {
  const Text text = find_text(module.image, function.name);
  if (text.section != 0) function.text_bytes = text.bytes;
  KernelCode code{};
  code.name = function.name.c_str();
  code.module_id = module.id;
  code.cubin_crc = module.crc;
  code.function_index =
      text.section != 0 ? text.section : static_cast<uint32_t>(module.functions.size());
  install(function, code, spread_over(text.bytes));
}

}  // namespace fakecuda

using namespace fakecuda;

FAKE_EXPORT int fake_cuda_pcs(void* handle, const char* text) {
  auto& function = *static_cast<Function*>(handle);
  std::vector<SampledPc> pcs;
  KernelCode code = *function.code.load();
  for (const char* at = text; *at != 0;) {
    if (*at == ' ') {
      ++at;
      continue;
    }
    if (parse_rate(at, code)) continue;
    SampledPc pc{};
    if (!parse_pc(function, at, pc)) return -1;
    pcs.push_back(pc);
  }
  if (pcs.empty()) return mistake(function, "none", text) ? 0 : -1;
  install(function, code, pcs);
  return 0;
}
