// SPDX-License-Identifier: Apache-2.0
//
// The real `go tool pprof` on functions inside kernels: what they cost is billed to their callers'
// lines, as far as these are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cubin/fixture.h"
#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"
#include "tests/unit/pprof/go_pprof.h"

namespace gpuprof::pprof {
namespace {

using namespace join::testing;
using ::testing::HasSubstr;
using testing::kAll;
using ::testing::Not;
using testing::Output;

class GoPprofCalls : public testing::GoPprofTest {
 protected:
  void SetUp() override {
    GoPprofTest::SetUp();
    if (HasFatalFailure()) return;
    join::DeviceModule& module = device_[{kProcess, 1}];
    module.image = cubin::test::fixture_image("calls.sm_90");
    ASSERT_NE(module.image, nullptr);
    module.sha256 = std::string(64, 'a');
    frames_[kProcess].info = {"app", "/nowhere/bin/app", {}};
    const uint32_t app = frames_.add_module(kProcess, "/nowhere/bin/app", 0x400000);
    stack_ = stacks_.intern(std::vector{frames_.add_pc(kProcess, app, 0x10, {"main"})});
    run("_Z8one_linePf", "sqrt", 4000);
    run("_Z11nested_oncePff", "sqrt", 2000);
    run("_Z9two_linesPff", "div", 1000);
    const join::JoinResult result = joiner_.finish_window(&frames_, &device_);
    join::Model model = assemble(result, stacks_, frames_, &device_, {}, &stats_);
    model.time_unix_ns = 1'700'000'000'000'000'000;
    model.duration_ns = 2'000'000'000;
    write(model);
  }

  // A quarter of its samples at its beginning, the others in ptxas' function of that name.
  void run(const std::string& kernel, const std::string& callee, uint64_t ns) {
    const uint64_t id = ++kernels_;
    frames_[kProcess].kernels[id] = kernel;
    const auto correlation = static_cast<uint32_t>(id);
    joiner_.add_launch(kProcess, launch(correlation), stack_, 1);
    add(joiner_, exec(correlation, id, ns));
    const cubin::Image& image = *device_[{kProcess, 1}].image;
    const cubin::Function* const outer = image.find(kernel);
    ASSERT_NE(outer, nullptr);
    for (const cubin::Function& function : image.functions()) {
      if (function.section != outer->section ||
          function.mangled.find("__cuda_sm") == std::string_view::npos ||
          function.mangled.find(callee) == std::string_view::npos) {
        continue;
      }
      gpuprof_pc_sample_v1 record =
          pc_sample(id, static_cast<uint32_t>(function.offset) + 0x20, 30);
      record.cubin_key = 1;
      add(joiner_, record);
      record.pc_offset = 0;
      record.samples = 10;
      add(joiner_, record);
    }
  }

  FakeFrames frames_;
  FakeDevice device_;
  join::StackTable stacks_;
  join::Joiner joiner_;
  join::StackId stack_ = join::kNoStack;
  join::AssembleStats stats_;
  uint64_t kernels_ = 0;
};

TEST_F(GoPprofCalls, ALinelessFunctionIsBilledToTheLineThatCallsIt) {
  const Output list = pprof("-trim_path=/tmp/kernels -source_path='" + std::string(CUBIN_FIXTURES) +
                            "' " + kAll + "-list='^(one_line|nested_once|outer|inner|two_lines)$'");
  EXPECT_EQ(list.err, "");
  EXPECT_THAT(list.out, HasSubstr("    1000ns     4000ns (flat, cum)"));
  EXPECT_THAT(list.out, HasSubstr(" .     3000ns     14:  data[threadIdx.x] = sqrtf(x);\n"));
  EXPECT_THAT(list.out, HasSubstr(" .     1500ns     53:  data[threadIdx.x] = outer("));
  EXPECT_THAT(list.out, HasSubstr(" .     1500ns     47:    return -inner(-x, by);\n"));
  EXPECT_THAT(list.out, HasSubstr(" .     1500ns     42:  return sqrtf(x + by) * by;\n"));
  // Of two lines none is named.
  EXPECT_THAT(list.out, HasSubstr("two_lines in calls.cu\n     250ns     1000ns (flat, cum)"));
  EXPECT_THAT(list.out, Not(HasSubstr(" 750ns")));
}

TEST_F(GoPprofCalls, TimeIsConservedAndTheKernelsAreOneFrameEach) {
  const Output top = pprof(kAll + std::string("-top"));
  EXPECT_THAT(top.out, HasSubstr("7000ns, 100% of 7000ns total"));
  const auto has = [&](const std::string& flat, const std::string& cum, const std::string& name) {
    expect_row(top, flat, cum, name);
  };
  has("1000ns", "4000ns", "one_line\n");
  has("500ns", "2000ns", "nested_once\n");
  has("250ns", "1000ns", "two_lines\n");
  has("4500ns", "4500ns", "__cuda_sm20_sqrt_rn_f32_slowpath( \\(inline\\))?\n");
  const Output peek = pprof(kAll + std::string("-peek=sqrt_rn"));
  EXPECT_THAT(peek.out, HasSubstr("3000ns 66.67% |   one_line (inline)\n"));
  EXPECT_THAT(peek.out, HasSubstr("1500ns 33.33% |   inner (inline)\n"));
}

TEST_F(GoPprofCalls, OnlyWhatHasALineIsResolved) {
  EXPECT_EQ(stats_.sources[0].of(cubin::SourceStatus::kResolved), 90u);
  EXPECT_EQ(stats_.sources[0].of(cubin::SourceStatus::kNoLineInfo), 30u);
  const Output resolved = pprof(kAll + std::string("-tagfocus=gpu_src_status=resolved -top"));
  EXPECT_THAT(resolved.out, HasSubstr("6250ns, 89.29% of 7000ns total"));
}

}  // namespace
}  // namespace gpuprof::pprof
