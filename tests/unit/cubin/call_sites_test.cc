// SPDX-License-Identifier: Apache-2.0
//
// Every call of every fixture against nvdisasm's listing (tests/data/cubin/oracles.py).
#include "daemon/cubin/call_sites.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cubin/instruction.h"
#include "tests/unit/cubin/fixture.h"
#include "tests/unit/cubin/listed_calls.h"

namespace gpuprof::cubin {
namespace {

using test::ListedCall;

class Sections {
 public:
  explicit Sections(const std::string& fixture) : bytes_(test::fixture_bytes(fixture + ".cubin")) {
    auto parsed = ElfImage::parse(bytes_);
    EXPECT_TRUE(parsed.has_value() && parsed->code_references.has_value()) << fixture;
    elf_ = std::move(*parsed);
    std::ranges::sort(elf_.functions, [](const FunctionSymbol& a, const FunctionSymbol& b) {
      return a.offset != b.offset ? a.offset < b.offset : a.size_bytes > b.size_bytes;
    });
  }

  [[nodiscard]] const ElfImage& elf() const { return elf_; }
  [[nodiscard]] std::vector<Region> regions(uint32_t text) const {
    std::vector<Region> regions;
    for (const FunctionSymbol& function : elf_.functions) {
      if (function.text != text) continue;
      regions.push_back({static_cast<uint32_t>(function.offset),
                         static_cast<uint32_t>(function.offset + function.size_bytes),
                         function.is_kernel, function.name.starts_with("$__internal_")});
    }
    return regions;
  }
  [[nodiscard]] CallSites find(uint32_t text, std::span<const Region> regions) const {
    std::vector<CodeReference> references;
    std::ranges::copy_if(*elf_.code_references, std::back_inserter(references),
                         [&](const CodeReference& each) { return each.to_text == text; });
    return find_call_sites({elf_.sm, elf_.texts[text].code, regions, text, references});
  }
  [[nodiscard]] const FunctionSymbol* function(std::string_view name) const {
    const auto at = std::ranges::find(elf_.functions, name, &FunctionSymbol::name);
    return at == elf_.functions.end() ? nullptr : &*at;
  }

 private:
  std::vector<std::byte> bytes_;
  ElfImage elf_;
};

// Of one section; all by the listing, except for where functions begin.
void check(const Sections& sections, uint32_t text, const std::vector<ListedCall>& listed) {
  using Kind = Instruction::Kind;
  const auto code = sections.elf().texts[text].code;
  std::map<uint64_t, std::string> calls;
  bool is_indirect = false;
  for (const ListedCall& call : listed) calls[call.offset] = call.callee;
  const std::vector<Region> regions = sections.regions(text);
  std::set<std::pair<uint64_t, uint64_t>> expected;  // offset, beginning of the callee
  for (uint64_t at = 0; at < code.size(); at += kInstructionBytes) {
    SCOPED_TRACE(at);
    const Instruction found = decode_instruction(sections.elf().sm, code.subspan(at));
    const auto call = calls.find(at);
    if (call == calls.end()) {
      EXPECT_TRUE(found.kind == Kind::kOther || found.kind == Kind::kNop ||
                  found.kind == Kind::kBranch);
      continue;
    }
    EXPECT_FALSE(found.ends);
    if (call->second == "*") {
      is_indirect = is_indirect || found.kind == Kind::kIndirect;
      EXPECT_TRUE(found.kind == Kind::kIndirect || found.kind == Kind::kOther);
      continue;
    }
    const FunctionSymbol* const callee = sections.function(call->second);
    if (found.kind == Kind::kAbsolute) {
      EXPECT_TRUE(callee == nullptr || callee->text != text || callee->offset == 0);
      continue;
    }
    ASSERT_EQ(found.kind, Kind::kCall);
    ASSERT_NE(callee, nullptr) << call->second;
    EXPECT_EQ(callee->text, text);
    EXPECT_EQ(at + kInstructionBytes + static_cast<uint64_t>(found.displacement), callee->offset);
    if (region_of(regions, at) != region_of(regions, callee->offset))
      expected.insert({at, callee->offset});
  }
  std::set<std::pair<uint64_t, uint64_t>> ours;
  const CallSites found = sections.find(text, regions);
  for (const CallSite& site : found.sites) {
    EXPECT_EQ(site.caller, region_of(regions, site.offset));
    ours.insert({site.offset, regions[site.callee - 1].begin});
  }
  EXPECT_EQ(ours, expected);
  for (size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].is_kernel || regions[i].begin == 0) continue;
    EXPECT_EQ(found.has_others[i + 1], is_indirect && !regions[i].is_library);
  }
}

TEST(CallSites, EveryCallIsThatOfTheListing) {
  std::set<uint32_t> architectures;
  uint64_t count = 0;
  for (const std::string& fixture : test::fixtures()) {
    SCOPED_TRACE(fixture);
    const Sections sections(fixture);
    const auto listed = test::listed_calls(fixture);
    uint64_t of_fixture = 0;
    for (uint32_t text = 0; text < sections.elf().texts.size(); ++text) {
      const std::string function(sections.elf().texts[text].function);
      SCOPED_TRACE(function);
      const auto calls = listed.find(function);
      check(sections, text, calls == listed.end() ? std::vector<ListedCall>() : calls->second);
      if (calls != listed.end()) of_fixture += calls->second.size();
    }
    uint64_t all = 0;
    for (const auto& [function, calls] : listed) all += calls.size();
    EXPECT_EQ(of_fixture, all) << "sections that are not in the image";
    if (all != 0) architectures.insert(sections.elf().sm);
    count += all;
  }
  EXPECT_THAT(architectures, testing::IsSupersetOf({75u, 80u, 86u, 89u, 90u, 100u, 120u}));
  EXPECT_GT(count, 300u);
  testing::Test::RecordProperty("calls", std::to_string(count));
}

}  // namespace
}  // namespace gpuprof::cubin
