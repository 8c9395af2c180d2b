// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/evaluation.h"

#include <array>
#include <cstring>
#include <utility>

namespace gpuprof::python {
namespace {

// `bytes` at `at`, a displacement from the end of the instruction at `next`.
uint64_t relative(std::span<const uint8_t> bytes, size_t at, uint64_t next) {
  int32_t displacement = 0;
  std::memcpy(&displacement, bytes.data() + at, sizeof displacement);
  return next + static_cast<uint64_t>(int64_t{displacement});
}

}  // namespace

Evaluation::Evaluation(uint64_t entry, uint64_t end, ReadMemory read)
    : entry_(entry), end_(end), read_(std::move(read)) {}

bool Evaluation::is_frame(uint64_t pc, uint64_t caller, bool generated) {
  if (pc >= entry_ && pc < end_) return true;
  if (caller == 0) return false;
  const uint64_t return_address = caller + 1;
  if (const auto it = call_sites_.find(return_address); it != call_sites_.end()) return it->second;
  if (call_sites_.size() >= kMaxCallSites) call_sites_.clear();
  const bool calls = generated ? is_trampoline(return_address) : calls_entry(return_address);
  call_sites_.emplace(return_address, calls);
  return calls;
}

#if defined(__x86_64__)

// call rel32, or call *[rip + rel32].
bool Evaluation::calls_entry(uint64_t return_address) const {
  std::array<uint8_t, 6> code;
  if (read_(return_address - code.size(), code) != code.size()) return false;
  const uint64_t operand = relative(code, 2, return_address);
  if (code[0] == 0xff && code[1] == 0x15) return read_value<uint64_t>(read_, operand) == entry_;
  return code[1] == 0xe8 && leads_to_entry(operand);
}

// call *rcx, the fourth argument.
bool Evaluation::is_trampoline(uint64_t return_address) const {
  std::array<uint8_t, 2> code;
  return read_(return_address - code.size(), code) == code.size() && code[0] == 0xff &&
         code[1] == 0xd1;
}

// The function itself, or a stub of the procedure linkage table: [endbr64] [bnd] jmp *[rip +
// rel32].
bool Evaluation::leads_to_entry(uint64_t target) const {
  if (target == entry_) return true;
  std::array<uint8_t, 11> code;
  if (read_(target, code) != code.size()) return false;
  constexpr std::array<uint8_t, 4> kEndbr64 = {0xf3, 0x0f, 0x1e, 0xfa};
  size_t at = std::memcmp(code.data(), kEndbr64.data(), kEndbr64.size()) == 0 ? 4 : 0;
  if (code[at] == 0xf2) ++at;
  if (code[at] != 0xff || code[at + 1] != 0x25) return false;
  return read_value<uint64_t>(read_, relative(code, at + 2, target + at + 6)) == entry_;
}

#else

// bl imm26.
bool Evaluation::calls_entry(uint64_t return_address) const {
  const auto code = read_value<uint32_t>(read_, return_address - 4);
  if ((code & 0xfc000000) != 0x94000000) return false;
  const auto words = static_cast<int32_t>(code << 6) >> 6;
  return leads_to_entry(return_address - 4 + static_cast<uint64_t>(int64_t{words} * 4));
}

// blr x3, the fourth argument.
bool Evaluation::is_trampoline(uint64_t return_address) const {
  return read_value<uint32_t>(read_, return_address - 4) == 0xd63f0060;
}

bool Evaluation::leads_to_entry(uint64_t target) const { return target == entry_; }

#endif

}  // namespace gpuprof::python
