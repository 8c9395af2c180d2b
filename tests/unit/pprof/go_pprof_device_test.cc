// SPDX-License-Identifier: Apache-2.0
//
// The real `go tool pprof` on device code: two processes at the same addresses, two kernels with
// the same instructions at the same offsets, inlined calls, kernels with and without lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

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
using testing::read_file;

// Where the fixtures' sources lay when they were compiled, and where they are.
const std::string kSources =
    "-trim_path=/tmp/kernels -source_path='" + std::string(CUBIN_FIXTURES) + "' ";
constexpr ProcessId kOther{200, 1};
constexpr uint64_t kOffsets = 1, kChain = 2, kPlain = 3;  // cubin keys
constexpr uint64_t kUp = 11, kTwin = 12, kChainKernel = 13, kPolynomial = 14;

class GoPprofDevice : public testing::GoPprofTest {
 protected:
  void SetUp() override {
    GoPprofTest::SetUp();
    if (HasFatalFailure()) return;
    add_process(kProcess, 1);
    add_process(kOther, 10);
    join::Model model =
        assemble(joiner_.finish_window(&frames_, &device_), stacks_, frames_, &device_);
    model.time_unix_ns = 1'700'000'000'000'000'000;
    model.duration_ns = 2'000'000'000;
    write(model);
  }

  void load(ProcessId process, uint64_t key, const std::string& name) {
    join::DeviceModule& module = device_[{process, key}];
    module.image = cubin::test::fixture_image(name);
    ASSERT_NE(module.image, nullptr);
    module.sha256 = std::string(40, 'a') + name;  // a hash's place: equal for equal images
  }
  void sample(ProcessId process, uint64_t key, uint64_t function, uint32_t pc, uint32_t samples,
              uint32_t stall = kWait) {
    gpuprof_pc_sample_v1 record = pc_sample(function, pc, samples, stall);
    record.cubin_key = key;
    add(joiner_, record, process);
  }
  void run(ProcessId process, uint64_t kernel, uint64_t ns, join::StackId stack) {
    joiner_.add_launch(process, launch(++id_), stack, 1);
    add(joiner_, exec(id_, kernel, ns), process);
  }

  // The second process has everything ten times.
  void add_process(ProcessId process, uint32_t times) {
    frames_[process].info = {"app", "/nowhere/bin/app", {}};
    frames_[process].kernels = {{kUp, "_Z8scale_upPff"},
                                {kTwin, "_Z10scale_twinPff"},
                                {kChainKernel, "chain"},
                                {kPolynomial, "_Z10polynomialPffi"}};
    load(process, kOffsets, "equal_offsets.sm_80");
    load(process, kChain, "inline_chain.sm_90");
    load(process, kPlain, "inline_chain.sm_90.plain");
    const uint32_t app = frames_.add_module(process, "/nowhere/bin/app", 0x400000);
    const uint64_t main = frames_.add_pc(process, app, 0x10, {"main"});
    const uint64_t step = frames_.add_pc(process, app, 0x20, {"step"});
    const join::StackId stack = stacks_.intern(std::vector{step, main});
    const join::StackId direct = stacks_.intern(std::vector{main});
    run(process, kUp, 1000 * times, stack);
    run(process, kTwin, 3000 * times, stack);
    // 0x80: line 9 of one, 17 of the other; 0x90: 10 and 19.
    for (const uint64_t kernel : {kUp, kTwin}) {
      sample(process, kOffsets, kernel, 0x80, 30);
      sample(process, kOffsets, kernel, 0x80, 20, kWaitNotIssued);
      sample(process, kOffsets, kernel, 0x90, 10, kLong);
    }
    run(process, kChainKernel, 8000 * times, stack);
    sample(process, kChain, kChainKernel, 0x20, 60);   // inner:6 < middle:13 < outer:18 < 28
    sample(process, kChain, kChainKernel, 0x810, 20);  // inner:6 < middle:14 < outer:18 < 28
    sample(process, kChain, kChainKernel, 0x10, 20);   // 27
    run(process, kPolynomial, 500 * times, direct);    // no samples
    sample(process, 99, 15, 0x40, 5);                  // no module, no execution
  }

  FakeFrames frames_;
  FakeDevice device_;
  join::StackTable stacks_;
  join::Joiner joiner_;
  uint32_t id_ = 0;
};

// 11 × (1000 + 3000 + 8000 + 500)
constexpr const char* kTotal = "137500ns";

TEST_F(GoPprofDevice, TopNestsInlinedDeviceFunctionsUnderTheirKernel) {
  const Output top = pprof(kAll + std::string("-top"));
  EXPECT_EQ(top.err, "");
  EXPECT_THAT(top.out, HasSubstr(std::string(kTotal) + ", 100% of " + kTotal + " total"));
  const auto has = [&](const std::string& flat, const std::string& cum, const std::string& name) {
    expect_row(top, flat, cum, name);
  };
  has("70400ns", "70400ns", "inner \\(inline\\)\n");
  has("0", "70400ns", "middle \\(inline\\)\n");
  has("17600ns", "88000ns", "chain\n");
  has("11000ns", "11000ns", "scale_up\n");
  has("33000ns", "33000ns", "scale_twin\n");
  has("5500ns", "5500ns", "polynomial\n");
}

// Equal instructions at equal offsets: only the section tells them apart.
TEST_F(GoPprofDevice, ListBillsEachKernelsOwnLines) {
  const Output up = pprof(kSources + kAll + "-list='^scale_up$'");
  EXPECT_EQ(up.err, "");
  EXPECT_THAT(up.out, HasSubstr("scale_up in equal_offsets.cu\n   11000ns    11000ns (flat"));
  EXPECT_THAT(up.out, HasSubstr("    8250ns     8250ns      9:  x = x * by;\n"));
  EXPECT_THAT(up.out, HasSubstr("    2750ns     2750ns     10:  data[i] = x;\n"));
  EXPECT_THAT(up.out, Not(HasSubstr("24750ns")));
  const Output twin = pprof(kSources + kAll + "-list='^scale_twin$'");
  EXPECT_THAT(twin.out, HasSubstr("   24750ns    24750ns     17:  x = x * by;\n"));
  EXPECT_THAT(twin.out, HasSubstr("    8250ns     8250ns     19:  data[i] = x;\n"));
  const Output chain = pprof(kSources + kAll + "-list='^(chain|middle)$'");
  EXPECT_THAT(chain.out, HasSubstr(" .    70400ns     28:  float x = outer("));
  EXPECT_THAT(chain.out, HasSubstr("   17600ns    17600ns     27:  int i = blockIdx.x"));
  EXPECT_THAT(chain.out, HasSubstr(" .    52800ns     13:  float y = inner(x, n);"));
  EXPECT_THAT(chain.out, HasSubstr(" .    17600ns     14:  return y * y + inner"));
}

TEST_F(GoPprofDevice, LinesAndPeekKnowTheChain) {
  const Output lines = pprof(kAll + std::string("-lines -top"));
  EXPECT_EQ(lines.err, "");
  for (const char* line : {"24750ns 18.00%  scale_twin /tmp/kernels/equal_offsets.cu:17\n",
                           "8250ns  6.00%  scale_up /tmp/kernels/equal_offsets.cu:9\n",
                           "70400ns 51.20%  inner /tmp/kernels/inline_chain.cu:6 (inline)\n",
                           "52800ns 38.40%  middle /tmp/kernels/inline_chain.cu:13 (inline)\n",
                           "70400ns 51.20%  chain /tmp/kernels/inline_chain.cu:28\n"}) {
    EXPECT_THAT(lines.out, HasSubstr(line));
  }
  const Output peek = pprof(kAll + std::string("-peek='^chain$'"));
  EXPECT_THAT(peek.out, HasSubstr("88000ns   100% |   step\n"));
  EXPECT_THAT(peek.out, HasSubstr("70400ns 80.00% |   outer (inline)\n"));
}

TEST_F(GoPprofDevice, WeblistShowsEachKernelsOwnLines) {
  const Output web = pprof(kSources + kAll + "-weblist='scale|chain|middle' -output=web.html");
  EXPECT_EQ(web.status, 0) << web.err;
  const std::string text = std::regex_replace(
      std::regex_replace(read_file(directory_ / "web.html"), std::regex("<[^>]*>"), ""),
      std::regex(" +"), " ");
  for (const char* line : {" 9 8250ns 8250ns x = x * by;", " 10 2750ns 2750ns data[i] = x;",
                           " 17 24750ns 24750ns x = x * by;", " 19 8250ns 8250ns data[i] = x;",
                           " 27 17600ns 17600ns int i =", " 28 70400ns 70400ns float x = outer("}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("33000ns x = x * by")));
}

TEST_F(GoPprofDevice, StallsAreARoot) {
  const Output stalls = pprof(kAll + std::string("-tagroot=gpu_stall -top"));
  EXPECT_EQ(stalls.err, "");
  EXPECT_TRUE(std::regex_search(stalls.out, std::regex("121000ns +[0-9.]+% +wait\n")))
      << stalls.out;
  EXPECT_TRUE(std::regex_search(stalls.out, std::regex("11000ns +[0-9.]+% +long_scoreboard\n")))
      << stalls.out;
  const Output focused = pprof(kAll + std::string("-tagfocus=gpu_stall=long_scoreboard -top"));
  EXPECT_THAT(focused.out, HasSubstr("11000ns, 8.00% of 137500ns total"));
}

TEST_F(GoPprofDevice, SamplesAreCountedOnce) {
  // 2 × (2 × 40 + 100 + 5), and the not-issued ones among them.
  EXPECT_THAT(pprof("-top -sample_index=gpu_pc_samples").out, HasSubstr("100% of 370 total"));
  EXPECT_THAT(pprof("-top -sample_index=gpu_stall_samples").out, HasSubstr("100% of 80 total"));
  EXPECT_THAT(pprof("-top -sample_index=gpu_executions").out, HasSubstr("100% of 8 total"));
  const Output unattributed =
      pprof(kAll + std::string("-sample_index=gpu_pc_samples -peek=unattributed"));
  EXPECT_THAT(unattributed.out, HasSubstr("10ns   100% |   [unknown kernel]\n"));
}

TEST_F(GoPprofDevice, EveryViewReadsWithoutAWarning) {
  for (const char* options :
       {"-raw", "-traces", "-tags", "-tree", "-addresses -top", "-filefunctions -top", "-dot",
        "-symbolize=local -top", "-list=.", "-tagfocus=gpu_src_status=resolved -top",
        "-tagroot=gpu_pc_attrib -top", "-noinlines -top"}) {
    const Output view = pprof(options);
    EXPECT_EQ(view.status, 0) << options << view.err;
    EXPECT_EQ(view.err, "") << options;
    EXPECT_NE(view.out, "") << options;
  }
}

TEST_F(GoPprofDevice, ComparesWithAProfileWithoutPcSampling) {
  join::Joiner traced;
  traced.add_launch(kProcess, launch(1), join::kNoStack, 1);
  add(traced, exec(1, kUp, 400));
  write(assemble(traced.finish_window(), stacks_, frames_), "base.pb.gz");
  const Output diff = pprof(kAll + std::string("-top -base=base.pb.gz"));
  EXPECT_EQ(diff.err, "");
  EXPECT_TRUE(std::regex_search(diff.out, std::regex("10600ns +[0-9.]+% +scale_up\n"))) << diff.out;
}

}  // namespace
}  // namespace gpuprof::pprof
