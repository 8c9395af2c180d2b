// SPDX-License-Identifier: Apache-2.0
//
// What is above functions inside a kernel's section: in the fixture `calls`, and in code that no
// compiler writes.
#include <gtest/gtest.h>

#include <elf.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/cubin/fixture.h"
#include "tests/unit/cubin/handmade.h"
#include "tests/unit/cubin/machine_code.h"

namespace gpuprof::cubin {
namespace {

using namespace test;

// "resolved: slowpath < k a.cu:12" of the function's second instruction.
std::string in(const Image& image, std::string_view function) {
  return chain_text(image.resolve(function, 0x10));
}

// The fixture's symbol `$kernel$callee`, or ptxas' own of that kernel.
std::string in(const Image& image, std::string_view kernel, std::string_view callee) {
  const Function* const outer = image.find(kernel);
  for (const Function& function : image.functions()) {
    if (outer != nullptr && function.section == outer->section && !function.is_kernel &&
        function.mangled.find(callee) != std::string_view::npos) {
      return chain_text(image.resolve(kernel, function.offset));
    }
  }
  return "none";
}

TEST(Callers, OfEveryKindInCompiledCode) {
  const std::map<std::pair<std::string, std::string>, std::string> cases = {
      {{"_Z8one_linePf", "sqrt"}, "SQRT < _Z8one_linePf calls.cu:14"},
      {{"_Z11one_inlinedPf", "sqrt"}, "SQRT < root calls.cu:8 < _Z11one_inlinedPf calls.cu:19"},
      {{"_Z11two_inlinedPff", "sqrt"}, "SQRT < root calls.cu:8 < _Z11two_inlinedPff"},
      {{"_Z11nested_oncePff", "sqrt"},
       "SQRT < _Z5innerff calls.cu:42 < _Z5outerff calls.cu:47 < _Z11nested_oncePff calls.cu:53"},
      {{"_Z12nested_twicePff", "sqrt"},
       "SQRT < _Z5innerff calls.cu:42 < _Z5outerff calls.cu:47 < _Z12nested_twicePff"},
      {{"_Z9recursionPfi", "sqrt"},
       "SQRT < _Z9recursivefi calls.cu:63 < _Z9recursionPfi calls.cu:69"},
      {{"_Z6mutualPfi", "sqrt"}, "SQRT < _Z3oddfi calls.cu:80 < _Z6mutualPfi"},
      {{"_Z6mutualPfi", "div"}, "DIV < _Z4evenfi calls.cu:75 < _Z6mutualPfi"},
      {{"_Z8pointersPfi", "sqrt"}, "SQRT < _Z5firstf calls.cu:95 < _Z8pointersPfi"},
      {{"_Z8pointersPfi", "div"}, "DIV < _Z6secondf calls.cu:99 < _Z8pointersPfi"},
      {{"_Z5casesPfi", "sqrt"}, "SQRT < _Z5casesPfi calls.cu:116"},
      {{"_Z5casesPfi", "div"}, "DIV < _Z6secondf calls.cu:99 < _Z5casesPfi"},
  };
  for (const std::string name : {"sm_75", "sm_80", "sm_89.cuda12", "sm_90", "sm_100", "sm_120"}) {
    const auto image = fixture_image("calls." + name);
    ASSERT_TRUE(image) << name;
    for (const auto& [asked, expected] : cases) {
      std::string found = in(*image, asked.first, asked.second);
      for (const auto& [pattern, text] :
           {std::pair("__cuda_sm20_sqrt_rn_f32_slowpath", "SQRT"),
            std::pair("__cuda_sm3x_div_rn_noftz_f32_slowpath", "DIV"),
            std::pair("_ZN38_INTERNAL_5491bc09_8_calls_cu_fc2b44674rootEf", "root")}) {
        if (const size_t at = found.find(pattern); at != std::string::npos)
          found.replace(at, std::strlen(pattern), text);
      }
      EXPECT_EQ(found, "resolved: " + expected) << name;
    }
    EXPECT_EQ(in(*image, "_Z9two_linesPff", "div"),
              "no-lineinfo: __cuda_sm3x_div_rn_noftz_f32_slowpath < _Z9two_linesPff")
        << name;
    EXPECT_EQ(in(*image, "_Z8pointersPfi", "second"),
              "resolved: _Z6secondf calls.cu:98 < _Z8pointersPfi")
        << name;
    EXPECT_EQ(in(*image, "_Z9recursionPfi", "recursive"),
              "resolved: _Z9recursivefi calls.cu:62 < _Z9recursionPfi calls.cu:69")
        << name;
  }
}

// Up to CUDA 11 the symbol of ptxas' own functions does not tell them from a program's.
TEST(Callers, APointersTargetMayBeAnyFunctionOfAnOldImage) {
  const auto image = fixture_image("calls.sm_86.cuda11");
  ASSERT_TRUE(image);
  EXPECT_EQ(in(*image, "_Z8pointersPfi", "sqrt"),
            "no-lineinfo: __cuda_sm20_sqrt_rn_f32_slowpath < _Z8pointersPfi");
  EXPECT_EQ(in(*image, "_Z8one_linePf", "sqrt"),
            "resolved: __cuda_sm20_sqrt_rn_f32_slowpath < _Z8one_linePf calls.cu:14");
}

constexpr uint64_t kBytes = 0x1000;
constexpr uint64_t kKernelEnd = 0x200;

// A kernel `k` up to kKernelEnd, whose lines are a sixteenth of their offsets, and functions of
// 0x40 bytes behind it, without lines unless they are given.
class Program {
 public:
  explicit Program(uint32_t sm = 90) : sm_(sm), text_(writer_.text("k", kBytes)) {
    writer_.use_sm(sm);
    kernel_ = writer_.symbol("k", text_, 0, kBytes, true);
    for (uint64_t at = 0; at < kKernelEnd; at += 16) lines_[at] = static_cast<uint32_t>(at / 16);
    for (uint64_t at = 0; at < kBytes; at += 16) put(at, move());
    put(kKernelEnd - 16, exit_instruction());
  }

  // Its beginning.
  uint64_t function(const std::string& name) {
    const uint64_t begin = end_;
    end_ += 0x40;
    put(end_ - 16, ret());
    symbols_[begin] = writer_.symbol(name, text_, begin, 0x40, false, true);
    return begin;
  }
  void lines(uint64_t begin, uint32_t line) {
    for (uint64_t at = begin; at < begin + 0x40; at += 16) lines_[at] = line++;
  }
  void put(uint64_t at, const std::string& bytes) { writer_.code(text_, at, bytes); }
  void call(uint64_t from, uint64_t to) { put(from, test::call(from, to, sm_)); }
  void branch(uint64_t from, uint64_t to) { put(from, test::branch(from, to, sm_)); }

  [[nodiscard]] size_t symbol(uint64_t begin) const { return symbols_.at(begin); }
  [[nodiscard]] size_t kernel() const { return kernel_; }
  [[nodiscard]] size_t text() const { return text_; }
  CubinWriter& writer() { return writer_; }

  std::shared_ptr<const Image> parse() {
    LineProgram program;
    program.set_address(kernel_);
    for (const auto& [at, line] : lines_) program.row(at, line);
    program.end_sequence(kBytes);
    writer_.unit(program, {"a.cu"});
    auto outcome = parse_within_bounds(writer_.finish());
    EXPECT_EQ(outcome.error, "");
    return outcome.image;
  }

 private:
  uint32_t sm_;
  CubinWriter writer_;
  size_t text_, kernel_ = 0;
  uint64_t end_ = kKernelEnd;
  std::map<uint64_t, size_t> symbols_;
  std::map<uint64_t, uint32_t> lines_;
};

TEST(Callers, ACallIsReadInBothEncodings) {
  for (const uint32_t sm : {70, 75, 80, 86, 89, 90, 100, 103, 120, 121}) {
    Program program(sm);
    const uint64_t back = program.function("$k$back"), far = program.function("$k$far");
    program.call(0x20, far);
    program.call(far + 0x10, back);
    const auto image = program.parse();
    EXPECT_EQ(in(*image, "$k$far"), "resolved: far < k a.cu:2") << sm;
    EXPECT_EQ(in(*image, "$k$back"), "resolved: back < far < k a.cu:2") << sm;
  }
}

TEST(Callers, OfAnUnknownEncodingAreNotKnown) {
  for (const uint32_t sm : {61, 122, 130}) {
    Program program(sm);
    program.call(0x20, program.function("$k$f"));
    EXPECT_EQ(in(*program.parse(), "$k$f"), "no-lineinfo: f < k") << sm;
  }
}

TEST(Callers, AFunctionsOwnLinesComeBeforeThem) {
  Program program;
  const uint64_t f = program.function("$k$f");
  program.lines(f, 300);
  program.call(0x20, f);
  EXPECT_EQ(in(*program.parse(), "$k$f"), "resolved: f a.cu:301 < k a.cu:2");
}

TEST(Callers, AKernelsOtherNameIsAboveIfItIsAskedFor) {
  Program program;
  program.writer().symbol("alias", program.text(), 0, kBytes, true);
  const uint64_t f = program.function("$k$f");
  program.call(0x20, f);
  const auto image = program.parse();
  EXPECT_EQ(chain_text(image->resolve("alias", f)), "resolved: f < alias a.cu:2");
  EXPECT_EQ(chain_text(image->resolve("k", f)), "resolved: f < k a.cu:2");
}

TEST(Callers, ABranchToAFunctionIsACallOfIt) {
  Program program;
  const uint64_t tail = program.function("$k$tail"), shared = program.function("$k$shared");
  program.branch(0x20, tail);
  program.call(0x30, shared);
  program.put(0x40, conditional_branch(0x40, shared + 0x20));  // into its middle
  const auto image = program.parse();
  EXPECT_EQ(in(*image, "$k$tail"), "resolved: tail < k a.cu:2");
  EXPECT_EQ(in(*image, "$k$shared"), "no-lineinfo: shared < k");
}

TEST(Callers, CodeThatGoesOnIntoAFunctionEntersIt) {
  for (const std::string& last : {move(), conditional_exit(), call_absolute(), nop(),
                                  conditional_branch(kKernelEnd - 16, 0)}) {
    Program program;
    program.put(kKernelEnd - 16, last);
    program.call(0x20, program.function("$k$f"));
    EXPECT_EQ(in(*program.parse(), "$k$f"), "no-lineinfo: f < k");
  }
  for (const std::string& last : {exit_instruction(), ret(), branch(kKernelEnd - 32, 0)}) {
    Program program;
    program.put(kKernelEnd - 32, last);
    program.put(kKernelEnd - 16, nop());
    program.call(0x20, program.function("$k$f"));
    EXPECT_EQ(in(*program.parse(), "$k$f"), "resolved: f < k a.cu:2");
  }
}

TEST(Callers, AFunctionWhoseAddressIsTakenHasOthers) {
  enum Way { kInData, kInCode, kByItsSection, kFromAnotherSection };
  for (const Way way : {kInData, kInCode, kByItsSection, kFromAnotherSection}) {
    Program program;
    const uint64_t f = program.function("$k$f"), g = program.function("$__internal_0_$g");
    program.lines(f, 300);
    program.call(0x20, f);
    program.call(f + 0x10, g);
    CubinWriter& writer = program.writer();
    if (way == kInData) writer.reference(std::nullopt, 8, program.symbol(f));
    if (way == kInCode) writer.reference(program.text(), 0x40, program.symbol(f));
    if (way == kByItsSection) {
      writer.reference(std::nullopt, 8, program.kernel(), static_cast<int64_t>(f));
    }
    if (way == kFromAnotherSection) {
      const size_t other = writer.text("other", 0x40);
      writer.symbol("other", other, 0, 0x40, true);
      writer.code(other, 0x10, call_absolute());
      writer.reference(other, 0x10, program.symbol(f));
    }
    const auto image = program.parse();
    EXPECT_EQ(in(*image, "$k$f"), "resolved: f a.cu:301 < k") << way;
    EXPECT_EQ(in(*image, "$__internal_0_$g"), "resolved: g < f a.cu:301 < k") << way;
  }
}

TEST(Callers, OfRelocationsWithoutAddendsNothingIsKnown) {
  Program program;
  program.call(0x20, program.function("$k$f"));
  program.writer().use_rel();
  program.writer().reference(std::nullopt, 8, program.kernel());
  EXPECT_EQ(in(*program.parse(), "$k$f"), "no-lineinfo: f < k");
}

TEST(Callers, AnAbsoluteCallIsWhatItsRelocationSays) {
  Program program;
  const uint64_t f = program.function("$k$f");
  program.put(0x30, call_absolute());
  program.writer().reference(program.text(), 0x30, program.symbol(f));
  EXPECT_EQ(in(*program.parse(), "$k$f"), "resolved: f < k a.cu:3");
}

TEST(Callers, IndirectTransfersReachAllButTheLibrary) {
  for (const std::string& indirect : {call_register(), branch_indexed()}) {
    Program program;
    const uint64_t f = program.function("$k$f"), g = program.function("$__internal_12_$g");
    program.call(0x20, f);
    program.call(0x30, g);
    program.put(0x40, indirect);
    const auto image = program.parse();
    EXPECT_EQ(in(*image, "$k$f"), "no-lineinfo: f < k");
    EXPECT_EQ(in(*image, "$__internal_12_$g"), "resolved: g < k a.cu:3");
  }
}

TEST(Callers, CodeThatIsNotUnderstoodSaysNothing) {
  for (const uint64_t target : {uint64_t{kKernelEnd + 0x10}, kBytes, kBytes + 0x1000,
                                uint64_t{0x28}, uint64_t{0x40}, ~uint64_t{0xff}}) {
    Program program;
    program.call(0x20, program.function("$k$f"));
    program.call(0x30, target);
    EXPECT_EQ(in(*program.parse(), "$k$f"), "no-lineinfo: f < k") << target;
  }
}

TEST(Callers, OfTwoKernelsInASectionAreNotKnown) {
  Program program;
  program.writer().symbol("l", program.text(), 0x80, 0x40, true);
  program.call(0x20, program.function("$k$f"));
  EXPECT_EQ(in(*program.parse(), "$k$f"), "no-lineinfo: f < k");
}

TEST(Callers, WhoNobodyCallsIsUnderItsKernel) {
  Program program;
  const uint64_t alone = program.function("$k$alone"), f = program.function("$k$f");
  const uint64_t ping = program.function("$k$ping"), pong = program.function("$k$pong");
  const uint64_t g = program.function("$k$g");
  program.lines(alone, 300);
  program.lines(ping, 400);
  program.call(alone + 0x20, f);
  program.call(ping, pong);  // a recursion without a beginning
  program.call(pong, ping);
  program.call(ping + 0x20, g);
  const auto image = program.parse();
  EXPECT_EQ(in(*image, "$k$alone"), "resolved: alone a.cu:301 < k");
  EXPECT_EQ(in(*image, "$k$f"), "resolved: f < alone a.cu:302 < k");
  EXPECT_EQ(in(*image, "$k$pong"), "no-lineinfo: pong < k");
  EXPECT_EQ(in(*image, "$k$g"), "no-lineinfo: g < k");
}

// What the first of several callers said is taken back where it turns out to have others itself,
// in whatever order the functions lie.
TEST(Callers, AgreeOnWhatIsOnEveryWay) {
  Program program;
  const uint64_t leaf = program.function("$k$leaf"), middle = program.function("$k$middle");
  const uint64_t left = program.function("$k$left"), right = program.function("$k$right");
  program.lines(middle, 300);
  program.lines(left, 400);
  program.lines(right, 500);
  program.call(middle + 0x10, leaf);
  program.call(left + 0x10, middle);
  program.call(right + 0x10, middle);
  program.call(0x20, left);
  program.call(0x30, left);
  program.call(0x40, right);
  const auto image = program.parse();
  EXPECT_EQ(in(*image, "$k$left"), "resolved: left a.cu:401 < k");
  EXPECT_EQ(in(*image, "$k$right"), "resolved: right a.cu:501 < k a.cu:4");
  EXPECT_EQ(in(*image, "$k$middle"), "resolved: middle a.cu:301 < k");
  EXPECT_EQ(in(*image, "$k$leaf"), "resolved: leaf < middle a.cu:301 < k");
}

TEST(Callers, AreKnownSixteenCallsDeep) {
  Program program;
  std::vector<uint64_t> functions;
  for (int i = 0; i < 20; ++i) functions.push_back(program.function("$k$f" + std::to_string(i)));
  program.call(0x20, functions[0]);
  for (size_t i = 1; i < functions.size(); ++i) program.call(functions[i - 1] + 0x10, functions[i]);
  const auto image = program.parse();
  const auto at = [&](size_t i) { return image->resolve("k", functions[i]).frames; };
  EXPECT_EQ(at(15).size(), 17u);
  EXPECT_EQ(at(15).back().line, 2u);
  EXPECT_EQ(at(16).size(), 2u);
  EXPECT_EQ(at(16).back().line, 0u);
  EXPECT_EQ(in(*image, "$k$f17"), "no-lineinfo: f17 < f16 < k");
}

TEST(Callers, ThroughMoreThanSixtyFourInlinedCallsAreNotKnown) {
  for (const uint32_t depth : {63u, 64u}) {
    CubinWriter writer;
    const size_t text = writer.text("k", 0x100);
    LineProgram program;
    program.set_address(writer.symbol("k", text, 0, 0x100, true));
    writer.symbol("$k$f", text, 0x80, 0x80, false, true);
    for (uint64_t at = 0; at < 0x100; at += 16) writer.code(text, at, exit_instruction());
    writer.code(text, 0x20, call(0x20, 0x80));
    const uint64_t name = writer.string("inlined");
    program.row(0x20, 7);
    for (uint32_t i = 0; i < depth; ++i) {
      program.inlined_call(i + 1, name);
      program.row(0x20, 100 + i);
    }
    program.end_sequence(0x100);
    writer.unit(program, {"a.cu"});
    const Outcome outcome = parse_within_bounds(writer.finish());
    ASSERT_TRUE(outcome.image);
    const Resolution found = outcome.image->resolve("k", 0x80);
    EXPECT_EQ(found.frames.size(), depth == 63 ? 65u : 2u);
    EXPECT_EQ(found.frames.back().line, depth == 63 ? 7u : 0u);
  }
}

// What follows is as much as 20 MB can claim: calls of functions one after the other.
TEST(Callers, TakeTimeAndMemoryByTheSizeOfTheCode) {
  constexpr uint64_t kCode = 10'000'000 / 16 * 16;
  constexpr uint64_t kFunctionBytes = 64;
  enum Shape { kEachItsNext, kAllFromAll, kInlinedDeep };
  for (const Shape shape : {kEachItsNext, kAllFromAll, kInlinedDeep}) {
    CubinWriter writer;
    const size_t text = writer.text("k", kCode);
    LineProgram program;
    program.set_address(writer.symbol("k", text, 0, kCode, true));
    std::string code;
    for (uint64_t at = 0; at < kCode; at += 16) {
      const uint64_t last = kCode / kFunctionBytes - 1, number = at / kFunctionBytes;
      uint64_t callee = std::min(number + 1, last);
      if (shape != kEachItsNext) callee = 1 + at * 2654435761u % last;
      code +=
          at % kFunctionBytes == kFunctionBytes - 16 ? ret() : call(at, callee * kFunctionBytes);
    }
    writer.code(text, 0, code);
    for (uint64_t at = kFunctionBytes; at < kCode; at += kFunctionBytes)
      writer.symbol("f", text, at, kFunctionBytes, false, true);
    program.row(0, 10);
    if (shape == kInlinedDeep) {
      const uint64_t name = writer.string("inlined");
      for (uint32_t i = 0; i < 1000; ++i) {
        program.inlined_call(i + 1, name);
        program.row(0, 100 + i);
      }
      for (uint64_t at = kFunctionBytes; at < kCode; at += kFunctionBytes) program.row(at, 5);
    }
    program.end_sequence(kCode);
    writer.unit(program, {"a.cu"});
    auto image = Image::parse(writer.finish());
    ASSERT_TRUE(image.has_value()) << image.error().message;
    const HeapMeter meter;
    EXPECT_EQ((*image)->resolve("k", kFunctionBytes).frames.back().mangled, "k");
    EXPECT_LT(meter.seconds(), kMaxSeconds) << shape;
    EXPECT_LT(meter.peak_bytes(), 3 * kCode) << shape;
  }
}

// Each header of a section claims the whole file.
TEST(Callers, OfOverlappingSectionsAreNotKnown) {
  Program program;
  program.call(0x20, program.function("$k$f"));
  const size_t other = program.writer().text("l", 0x40);
  program.writer().symbol("l", other, 0, 0x40, true);
  LineProgram lines;
  lines.set_address(program.kernel());
  lines.row(0, 10);
  lines.end_sequence(kBytes);
  program.writer().unit(lines, {"a.cu"});
  std::vector<std::byte> bytes = program.writer().finish();
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  Elf64_Shdr section;
  std::byte* const at = bytes.data() + header.e_shoff + (other + 1) * sizeof section;
  std::memcpy(&section, at, sizeof section);
  section.sh_offset = 0;
  section.sh_size = bytes.size() - 0x100;
  std::memcpy(at, &section, sizeof section);
  const Outcome outcome = parse_within_bounds(std::move(bytes));
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(in(*outcome.image, "$k$f"), "no-lineinfo: f < k");
}

}  // namespace
}  // namespace gpuprof::cubin
