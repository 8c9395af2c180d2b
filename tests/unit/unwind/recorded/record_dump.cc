// SPDX-License-Identifier: Apache-2.0
//
// Makes a recording of what callers/dump_aarch64.c wrote of itself.
// usage: record_dump PROGRAM DUMP MADE_WITH OUTPUT      PROGRAM is linked statically, at a fixed
// address Exit status 1 where our frames and libdwfl's differ.
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/unit/unwind/recorded/kept_cfi.h"
#include "tests/unit/unwind/recorded/recording.h"

namespace gpuprof::unwind::test {
namespace {

constexpr size_t kRegisters = 33;  // of aarch64
constexpr uint64_t kPage = 4096;

std::string read_all(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void add_program(Recording& out, const char* path) {
  auto* const file = out.add_files();
  file->set_name(std::string(path).substr(std::string(path).rfind('/') + 1));
  file->set_image(read_all(path));
  Elf64_Ehdr header = {};
  if (file->image().size() < sizeof header) return;
  std::memcpy(&header, file->image().data(), sizeof header);
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment = {};
    std::memcpy(&segment, file->image().data() + header.e_phoff + i * sizeof segment,
                sizeof segment);
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    auto* const mapping = out.add_mappings();
    mapping->set_start(segment.p_vaddr & ~(kPage - 1));
    mapping->set_end(segment.p_vaddr + segment.p_memsz);
    mapping->set_file_offset(segment.p_offset & ~(kPage - 1));
    mapping->set_file(1);
  }
}

void add_stacks(Recording& out, const std::string& dump) {
  for (size_t at = 0; at + (kRegisters + 1) * 8 <= dump.size();) {
    uint64_t words[kRegisters + 1];
    std::memcpy(words, &dump[at], sizeof words);
    at += sizeof words;
    auto* const stack = out.add_stacks();
    for (size_t reg = 0; reg < kRegisters; ++reg) stack->add_registers(words[reg]);
    stack->set_address(words[31]);
    stack->set_top(words[kRegisters]);
    const size_t size = std::min(words[kRegisters] - words[31], dump.size() - at);
    stack->set_bytes(dump.substr(at, size));
    at += size;
  }
}

int record(char** argv) {
  Recording out;
  out.set_made_with(argv[3]);
  add_program(out, argv[1]);
  add_stacks(out, read_all(argv[2]));
  RecordedProcess process(out);
  const auto is_mapped = [&](uint64_t pc) { return process.is_mapped(pc); };
  std::set<uint64_t> addresses;
  size_t different = 0, deepest = 0;
  for (Recording::Stack& stack : *out.mutable_stacks()) {
    const RawStack ours = process.ours(sample_of(stack));
    const auto theirs = process.libdwfl(sample_of(stack));
    if (compare(ours, theirs, is_mapped) == Agreement::kDifferent && different++ < 3) {
      std::printf("%s, ours and libdwfl's:", end_name(ours.end));
      for (size_t i = 0; i < std::max(ours.pcs.size(), theirs.size()); ++i) {
        std::printf(" %llx/%llx",
                    i < ours.pcs.size() ? static_cast<unsigned long long>(ours.pcs[i]) : 0,
                    i < theirs.size() ? static_cast<unsigned long long>(theirs[i]) : 0);
      }
      std::printf("\n");
    }
    deepest = std::max(deepest, ours.pcs.size());
    addresses.insert(ours.pcs.begin(), ours.pcs.end());
    addresses.insert(theirs.begin(), theirs.end());
    add_result(stack, ours, theirs);
    remove_data(stack, is_mapped);
  }
  auto* const file = out.mutable_files(0);
  file->set_image(keep_cfi(file->image(), addresses));
  std::printf("%d stacks, deepest %zu, %zu differ\n", out.stacks_size(), deepest, different);
  if (out.stacks_size() == 0 || different != 0) return 1;
  write_recording(out, argv[4]);
  return 0;
}

}  // namespace
}  // namespace gpuprof::unwind::test

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: record_dump PROGRAM DUMP MADE_WITH OUTPUT\n");
    return 2;
  }
  return gpuprof::unwind::test::record(argv);
}
