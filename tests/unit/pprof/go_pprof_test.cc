// SPDX-License-Identifier: Apache-2.0
//
// The real `go tool pprof` reads what we write: no warning, no search for binaries, nothing billed
// to another function.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/records.h"
#include "tests/unit/pprof/go_pprof.h"

namespace gpuprof::pprof {
namespace {

using namespace join::testing;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Output;
using testing::read_file;

class GoPprof : public testing::GoPprofTest {
 protected:
  void SetUp() override {
    GoPprofTest::SetUp();
    if (!HasFatalFailure()) build();
  }

  // Two processes of one executable, same addresses; two kernels of one short name, one 3,000 bytes
  // long; copies, memset, a graph, JIT code, code without symbols.
  void build() {
    using namespace join;
    Joiner joiner;
    uint32_t id = 0;
    const auto run = [&](ProcessId process, StackId stack, const gpuprof_exec_v1& like) {
      ++id;
      if (stack != kNoStack) joiner.add_launch(process, launch(id), stack, 1);
      gpuprof_exec_v1 record = like;
      record.correlation = id;
      add(joiner, record, process);
    };
    std::string longest = "_Z6kernelI";
    while (longest.size() < 2990) longest += "N16another_libraryx11SomeElementE";
    // pprof's own demangler would show both as "odd".
    const std::string odd = "_Z3oddILi7E";
    for (const ProcessId process : {kProcess, ProcessId{200, 1}}) {
      frames_[process].info = {"app", "/nowhere/bin/app", {}};
      frames_[process].kernels = {{1, "_Z5saxpyifPKfPf"}, {2, longest + "fEvv"},
                                  {3, longest + "dEvv"},  {4, "plain"},
                                  {5, odd + "fEvT_"},     {6, odd + "dEvT_"}};
      const uint32_t lib = frames_.add_module(process, "/nowhere/lib/libwork.so.1");
      const uint32_t app = frames_.add_module(process, "/nowhere/bin/app");
      const uint32_t jit = frames_.add_module(process, "[jit]", 0x7f0000000000);
      const uint32_t bare = frames_.add_module(process, "/nowhere/lib/libbare.so");
      const uint64_t main = frames_.add_pc(process, app, 0x10, {"main"});
      const uint64_t step = frames_.add_pc(process, lib, 0x20, {"inlined_step", "step"});
      const uint64_t other = frames_.add_pc(process, lib, 0x30, {"other"});
      const uint64_t jitted = frames_.add_pc(process, jit, 0x40, {"py::<module>:train.py"});
      const uint64_t nameless = frames_.add_pc(process, bare, 0x50, {});
      const StackId a = stacks_.intern(std::vector{step, main});
      const StackId b = stacks_.intern(std::vector{other, nameless, jitted, main});
      gpuprof_exec_v1 copy = exec(0, 0, 50);
      copy.kind = GPUPROF_KIND_MEMCPY;
      copy.copy_kind = GPUPROF_COPY_HTOD;
      gpuprof_exec_v1 set = exec(0, 0, 25);
      set.kind = GPUPROF_KIND_MEMSET;
      gpuprof_exec_v1 node = exec(0, 4, 10);
      node.graph_id = 5;
      run(process, a, exec(0, 1, 1000));
      run(process, a, exec(0, 2, 2000));
      run(process, b, exec(0, 3, 4000));
      run(process, b, copy);
      run(process, a, set);
      run(process, b, node);
      run(process, kNoStack, exec(0, 4, 7));
      run(process, a, exec(0, 5, 100));
      run(process, a, exec(0, 6, 300));
    }
    Model model = assemble(joiner.finish_window(), stacks_, frames_);
    model.time_unix_ns = 1'700'000'000'000'000'000;
    model.duration_ns = 2'000'000'000;
    model.comments = {"gpu-profiled test"};
    write(model);
  }

  FakeFrames frames_;
  join::StackTable stacks_;
};

// 2 × (1000 + 2000 + 4000 + 50 + 25 + 10 + 7 + 100 + 300)
constexpr const char* kTotal = "14984ns";
constexpr const char* kTop = "-top -unit=ns -nodecount=100 -nodefraction=0";

TEST_F(GoPprof, TopHasEveryFrameAndTheTotal) {
  const Output top = pprof(kTop);
  EXPECT_EQ(top.status, 0) << top.err;
  EXPECT_EQ(top.err, "");
  EXPECT_THAT(top.out, HasSubstr("Type: gpu_time"));
  EXPECT_THAT(top.out, HasSubstr(std::string(kTotal) + ", 100% of " + kTotal + " total"));
  for (const char* frame :
       {"saxpy", "[memcpy HtoD]", "[memset]", "[cuda graph]", "[no stack]", "plain", "main", "step",
        "inlined_step (inline)", "py::<module>:train.py", "[libbare.so]"}) {
    EXPECT_THAT(top.out, HasSubstr(frame));
  }
  EXPECT_TRUE(std::regex_search(
      top.out, std::regex("2000ns +[0-9.]+% +[0-9.]+% +2000ns +[0-9.]+% +saxpy\n")))
      << top.out;
}

TEST_F(GoPprof, EveryViewReadsWithoutAWarning) {
  for (const char* options :
       {"-raw", "-traces", "-tags", "-comments", "-peek=saxpy", "-tree", "-lines -top",
        "-addresses -top", "-sample_index=gpu_executions -top", "-dot",
        "-proto -output=again.pb.gz", "-symbolize=local -top", "-list=saxpy",
        "-tagfocus=gpu_join=exact -top", "-tagroot=pid -top"}) {
    const Output view = pprof(options);
    EXPECT_EQ(view.status, 0) << options << view.err;
    if (std::string(options).find("-proto") != std::string::npos)
      continue;  // tells the file's name
    EXPECT_EQ(view.err, "") << options;
    EXPECT_NE(view.out, "") << options;
  }
}

TEST_F(GoPprof, ExecutionsAreTheSecondSampleType) {
  const Output top = pprof("-top -sample_index=gpu_executions");
  EXPECT_THAT(top.out, HasSubstr("Type: gpu_executions"));
  EXPECT_THAT(top.out, HasSubstr("100% of 18 total"));
}

TEST_F(GoPprof, LabelsAreTags) {
  const Output tags = pprof("-tags");
  for (const char* key :
       {"gpu_join:", "gpu_join_reason:", "gpu_device:", "gpu_uuid:", "gpu_stream:", "gpu_context:",
        "gpu_graph_id:", "pid:", "comm:", "thread:"}) {
    EXPECT_THAT(tags.out, HasSubstr(key));
  }
  EXPECT_THAT(tags.out, HasSubstr("unmatched"));
}

TEST_F(GoPprof, LongKernelsOfOneShortNameStayApart) {
  const Output top = pprof(kTop);
  const std::regex kernel(
      "\n +(4000|8000)ns +[0-9.]+% +[0-9.]+% +(4000|8000)ns +[0-9.]+% +_Z6kernelIN");
  EXPECT_EQ(std::distance(std::sregex_iterator(top.out.begin(), top.out.end(), kernel),
                          std::sregex_iterator()),
            2)
      << top.out;
  EXPECT_THAT(top.out, HasSubstr("odd<7, float>\n"));
  EXPECT_THAT(top.out, HasSubstr("odd<7, double>\n"));
}

TEST_F(GoPprof, MainBinaryIsTheExecutable) {
  const Output top = pprof("-top");
  EXPECT_THAT(top.out, HasSubstr("File: app"));
}

TEST_F(GoPprof, RawMappingsAreDisjointAndSymbolised) {
  const Output raw = pprof("-raw");
  std::istringstream lines(raw.out.substr(raw.out.find("Mappings")));
  std::string line;
  std::getline(lines, line);
  const std::regex mapping("^[0-9]+: (0x[0-9a-f]+)/(0x[0-9a-f]+)/(0x[0-9a-f]+) (.*)$");
  uint64_t last = 0;
  int count = 0;
  while (std::getline(lines, line)) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, mapping)) << line;
    EXPECT_GT(std::stoull(match[1], nullptr, 16), last) << line;
    last = std::stoull(match[2], nullptr, 16);
    EXPECT_THAT(match[4].str(), HasSubstr("[FN]"));
    ++count;
  }
  EXPECT_EQ(count, 9);  // two processes of four objects, and [cuda]
}

// Source view: each function's own lines carry its own cost, a kernel's none of another's.
TEST_F(GoPprof, ListAndWeblistBillNoFunctionForAnother) {
  for (const char* kernel :
       {"saxpy", "plain", "odd<7, float>"}) {  // no line table: said, not guessed
    const Output list = pprof(std::string("-unit=ns -list='^") + kernel + "'");
    EXPECT_EQ(list.status, 0) << list.err;
    EXPECT_THAT(list.out, HasSubstr("ROUTINE ======================== " + std::string(kernel) +
                                    " in [no-source]/"));
    EXPECT_THAT(list.out, HasSubstr("could not find file [no-source]/"));
  }
  const Output step = pprof("-unit=ns -list=^step$");
  EXPECT_THAT(step.out, HasSubstr("ROUTINE ======================== step in /src/step.cc"));
  EXPECT_THAT(step.out, HasSubstr("6850ns"));
  EXPECT_THAT(step.out, Not(HasSubstr("8120ns")));
  const Output web = pprof("-unit=ns -weblist=. -output=web.html");
  EXPECT_EQ(web.status, 0) << web.err;
  // It renders with every binary absent.
  const std::string page = read_file(directory_ / "web.html");
  EXPECT_THAT(page, HasSubstr("step"));
  // Functions of no source are not one to pprof, which goes by file and line.
  for (const char* kernel : {"saxpy", "plain", "odd&lt;7, float&gt;"})
    EXPECT_THAT(page, HasSubstr("<h2>" + std::string(kernel) + "</h2>"));
}

}  // namespace
}  // namespace gpuprof::pprof
