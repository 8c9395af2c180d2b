// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/call_sites.h"

#include <algorithm>
#include <utility>

#include "daemon/cubin/instruction.h"

namespace gpuprof::cubin {
namespace {

class Scanner {
 public:
  explicit Scanner(const SectionCode& section)
      : section_(section), has_others_(section.regions.size() + 1) {}

  CallSites run() {
    if (!is_known_encoding(section_.sm) || !read_instructions() || !read_references()) {
      return {{}, std::vector<bool>(section_.regions.size() + 1, true)};
    }
    mark_entries();
    std::ranges::sort(sites_, [](const CallSite& a, const CallSite& b) {
      return a.callee != b.callee ? a.callee < b.callee : a.offset < b.offset;
    });
    return {std::move(sites_), std::move(has_others_)};
  }

 private:
  // False: not the code that the encoding is known of.
  bool read_instructions() {
    bool goes_on = true;
    auto next = section_.regions.begin();
    for (uint64_t at = 0; at + kInstructionBytes <= section_.code.size(); at += kInstructionBytes) {
      for (; next != section_.regions.end() && next->begin <= at; ++next) {
        const auto number = static_cast<size_t>(next - section_.regions.begin()) + 1;
        if (goes_on || next->begin != at) has_others_[number] = true;
      }
      const Instruction instruction =
          decode_instruction(section_.sm, section_.code.subspan(at, kInstructionBytes));
      if (instruction.kind == Instruction::Kind::kNop) continue;
      goes_on = !instruction.ends;
      if (!enter(instruction, at)) return false;
    }
    for (; next != section_.regions.end(); ++next)
      has_others_[static_cast<size_t>(next - section_.regions.begin()) + 1] = true;
    return true;
  }

  bool enter(const Instruction& instruction, uint64_t at) {
    using Kind = Instruction::Kind;
    if (instruction.kind == Kind::kIndirect) is_indirect_ = true;
    if (instruction.kind != Kind::kCall && instruction.kind != Kind::kBranch) return true;
    if (is_relocated(at)) return true;
    const uint64_t target =
        at + kInstructionBytes + static_cast<uint64_t>(instruction.displacement);
    // 0 is what a relocation, to another section, is to fill in.
    if (instruction.displacement == 0 || target >= section_.code.size() ||
        target % kInstructionBytes != 0) {
      return false;
    }
    const uint32_t callee = region_of(section_.regions, target);
    // Each CALL of any known compiler is one of a function's beginning.
    if (instruction.kind == Kind::kCall && callee != kKernelRegion &&
        section_.regions[callee - 1].begin != target) {
      return false;
    }
    add(callee, at);
    return true;
  }

  void add(uint32_t callee, uint64_t at) {
    const uint32_t caller = region_of(section_.regions, at);
    if (callee == kKernelRegion || callee == caller) return;
    sites_.push_back({callee, caller, static_cast<uint32_t>(at)});
  }

  [[nodiscard]] bool is_relocated(uint64_t at) const {
    const auto key = [](const CodeReference& each) {
      return std::pair(each.from_text, each.from_offset);
    };
    const std::pair asked(section_.text, at);
    const auto found = std::ranges::lower_bound(section_.references, asked, {}, key);
    return found != section_.references.end() && key(*found) == asked;
  }

  bool read_references() {
    for (const CodeReference& reference : section_.references) {
      // What it adds is in the bytes that it changes, which depends on its type.
      if (reference.adds_stored_value) return false;
      const uint32_t to = region_of(section_.regions, reference.to_offset);
      if (to == kKernelRegion) continue;
      if (is_call(reference)) {
        add(to, reference.from_offset);
      } else {
        has_others_[to] = true;
      }
    }
    return true;
  }

  // Absolute calls and jumps have their target in a relocation alone.
  [[nodiscard]] bool is_call(const CodeReference& reference) const {
    if (reference.from_text != section_.text) return false;
    const uint64_t at = reference.from_offset;
    if (at % kInstructionBytes != 0 || at + kInstructionBytes > section_.code.size()) return false;
    using Kind = Instruction::Kind;
    const Kind kind =
        decode_instruction(section_.sm, section_.code.subspan(at, kInstructionBytes)).kind;
    return kind == Kind::kAbsolute || kind == Kind::kCall || kind == Kind::kBranch;
  }

  void mark_entries() {
    for (size_t i = 0; i < section_.regions.size(); ++i) {
      const Region& region = section_.regions[i];
      if (is_indirect_ && !region.is_library) has_others_[i + 1] = true;
    }
  }

  const SectionCode& section_;
  std::vector<CallSite> sites_;
  std::vector<bool> has_others_;
  bool is_indirect_ = false;
};

}  // namespace

uint32_t region_of(std::span<const Region> regions, uint64_t offset) {
  const auto after = std::ranges::upper_bound(regions, offset, {}, &Region::begin);
  if (after == regions.begin()) return kKernelRegion;
  const Region& last = *(after - 1);
  if (offset >= last.end || last.is_kernel) return kKernelRegion;
  return static_cast<uint32_t>(after - regions.begin());
}

CallSites find_call_sites(const SectionCode& section) { return Scanner(section).run(); }

}  // namespace gpuprof::cubin
