// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/unwind/recorded/recording.h"

#include <zstd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/unwinder.h"

namespace gpuprof::unwind::test {
namespace {

[[noreturn]] void die(const std::string& path, const char* what) {
  std::fprintf(stderr, "%s: %s\n", path.c_str(), what);
  std::exit(1);
}

}  // namespace

Recording read_recording(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(in)), {});
  const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN)
    die(path, "is no recording");
  std::string bytes(size, '\0');
  if (ZSTD_decompress(bytes.data(), size, packed.data(), packed.size()) != size)
    die(path, "is damaged");
  Recording out;
  if (!out.ParseFromString(bytes)) die(path, "is damaged");
  return out;
}

void write_recording(const Recording& recording, const std::string& path) {
  const std::string bytes = recording.SerializeAsString();
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), ZSTD_maxCLevel());
  if (ZSTD_isError(size)) die(path, ZSTD_getErrorName(size));
  std::ofstream out(path, std::ios::binary);
  out.write(packed.data(), static_cast<std::streamsize>(size));
  out.close();
  if (!out) die(path, "could not be written");
}

Sample sample_of(const Recording::Stack& stack) {
  Sample sample;
  std::copy(stack.registers().begin(), stack.registers().end(), sample.regs.begin());
  sample.bytes.assign(stack.bytes().begin(), stack.bytes().end());
  sample.stack_address = stack.address();
  sample.stack_top = stack.top();
  return sample;
}

Sample sample_with_below(const Recording::Stack& stack) {
  Sample sample = sample_of(stack);
  sample.stack_address -= stack.below().size();
  sample.bytes.insert(sample.bytes.begin(), stack.below().begin(), stack.below().end());
  return sample;
}

const char* end_name(StackEnd end) {
  constexpr const char* kNames[kStackEndCount] = {"invalid",   "whole",     "cut",      "no_cfi",
                                                  "no_module", "bad_frame", "too_deep", "no_stack"};
  return kNames[static_cast<size_t>(end)];
}

Agreement compare(const RawStack& ours, std::span<const uint64_t> libdwfl,
                  const std::function<bool(uint64_t)>& is_mapped) {
  const auto [mine, theirs] =
      std::mismatch(ours.pcs.begin(), ours.pcs.end(), libdwfl.begin(), libdwfl.end());
  if (mine == ours.pcs.end() && theirs == libdwfl.end()) return Agreement::kSame;
  if (theirs == libdwfl.end() && ours.by_frame_pointer > 0) return Agreement::kBeyond;
  const bool stopped = ours.end == StackEnd::kNoCfi || ours.end == StackEnd::kNoModule;
  if (mine == ours.pcs.end() && stopped && !is_mapped(*theirs)) return Agreement::kGarbage;
  return Agreement::kDifferent;
}

void add_result(Recording::Stack& stack, const RawStack& ours,
                const std::vector<uint64_t>& libdwfl) {
  stack.mutable_pcs()->Assign(ours.pcs.begin(), ours.pcs.end());
  stack.mutable_libdwfl()->Assign(libdwfl.begin(), libdwfl.end());
  stack.set_end(end_name(ours.end));
  stack.set_by_frame_pointer(ours.by_frame_pointer);
}

void remove_data(Recording::Stack& stack, const std::function<bool(uint64_t)>& is_mapped) {
  constexpr uint64_t kAddress = (uint64_t{1} << 48) - 1;  // less a signature (aarch64)
  const auto without_data = [&](uint64_t word) {
    const bool on_stack =
        word + kBelow >= stack.address() && word <= stack.address() + stack.bytes().size();
    const bool led = std::find(stack.libdwfl().begin(), stack.libdwfl().end(), word - 1) !=
                     stack.libdwfl().end();
    return word == 0 || on_stack || led || is_mapped(word & kAddress) ? word : 1;
  };
  for (uint64_t& word : *stack.mutable_registers()) word = without_data(word);
  for (std::string* const bytes : {stack.mutable_bytes(), stack.mutable_below()}) {
    for (size_t at = 0; at + 8 <= bytes->size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes->data() + at, 8);
      word = without_data(word);
      std::memcpy(bytes->data() + at, &word, 8);
    }
  }
}

RecordedProcess::RecordedProcess(const Recording& recording) {
  std::vector<Mapping> mappings;
  std::vector<RecordedModule> modules;
  std::vector<bool> is_reported(static_cast<size_t>(recording.files_size()));
  for (const Recording::Mapping& from : recording.mappings()) {
    Mapping mapping;
    mapping.start = from.start();
    mapping.end = from.end();
    mapping.file_offset = from.file_offset();
    mapping.kind = MappingKind::kJit;
    if (from.file() != 0) {
      const Recording::File& file = recording.files(static_cast<int>(from.file()) - 1);
      const auto* data = reinterpret_cast<const uint8_t*>(file.image().data());
      auto elf = files_.from_memory({data, file.image().size()});
      if (!elf) die(file.name(), "is no ELF file");
      mapping.kind = MappingKind::kFile;
      mapping.path = file.name();
      mapping.file = *elf;
      machine_ = (*elf)->machine();
      mapping.bias = (*elf)->bias(from.start(), from.file_offset()).value_or(from.start());
      if (!is_reported[from.file() - 1])
        modules.push_back({file.name(), file.image(), mapping.bias});
      is_reported[from.file() - 1] = true;
    }
    mappings.push_back(std::move(mapping));
  }
  space_ = AddressSpace::of_mappings(std::move(mappings), files_);
  reference_ = std::make_unique<DwflReference>(modules, machine_);
}

RawStack RecordedProcess::ours(const Sample& sample) {
  return Unwinder(space_, machine_).unwind(sample.view());
}

}  // namespace gpuprof::unwind::test
