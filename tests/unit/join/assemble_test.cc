// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/assemble.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/records.h"

namespace gpuprof::join {
namespace {

using namespace testing;
using ::testing::ElementsAre;

class Assemble : public ::testing::Test {
 protected:
  Assemble() {
    frames_[kProcess].info = {"app", "/bin/app", {}};
    shim_ = frames_.add_module(kProcess, "/x/libgpu-profiled-cupti.so");
    cupti_ = frames_.add_module(kProcess, "/x/libcupti.so.13");
    cuda_ = frames_.add_module(kProcess, "/usr/lib/libcuda.so.1");
    cudart_ = frames_.add_module(kProcess, "/x/libcudart.so.13");
    app_ = frames_.add_module(kProcess, "/bin/app");
    frames_[kProcess].kernels[9] = "_Z5saxpyifPKfPf";
  }

  uint64_t pc(uint32_t module, uint64_t offset, const std::vector<std::string>& names = {}) {
    return frames_.add_pc(kProcess, module, offset, names);
  }

  // Root to leaf.
  static std::vector<std::string> names(const Model& model, uint32_t stack) {
    std::vector<std::string> out;
    for (const uint32_t location : model.stacks[stack]) {
      for (const ModelLine& line : model.locations[location].lines) {
        out.insert(out.begin(), model.functions[line.function].name);
      }
    }
    return out;
  }

  static std::string label(const Model& model, const ModelSample& sample, const std::string& key) {
    for (const ModelLabel& label : model.label_sets[sample.label_set]) {
      if (label.key == key) return label.text;
    }
    return "";
  }

  Model one(const std::vector<uint64_t>& pcs, gpuprof_exec_v1 record = exec(1, 9, 100)) {
    Joiner joiner;
    joiner.add_launch(kProcess, launch(1), stacks_.intern(pcs), 1);
    add(joiner, record);
    return assemble(joiner.finish_window(), stacks_, frames_);
  }

  FakeFrames frames_;
  StackTable stacks_;
  uint32_t shim_ = 0, cupti_ = 0, cuda_ = 0, cudart_ = 0, app_ = 0;
};

TEST_F(Assemble, WhatTheSourceCallsAToolIsTrimmedUnderAnyName) {
  const uint32_t renamed = frames_.add_module(kProcess, "/opt/renamed.so");
  const std::vector<uint64_t> pcs = {pc(renamed, 1, {"emit"}), pc(renamed, 2), pc(cupti_, 3),
                                     pc(app_, 4, {"main"})};
  EXPECT_THAT(names(one(pcs), 0),
              ElementsAre("main", "[libcupti.so.13]", "[renamed.so]", "emit", "saxpy"));
  frames_.set_tool("/opt/renamed.so");
  EXPECT_THAT(names(one(pcs), 0), ElementsAre("main", "saxpy"));
}

TEST_F(Assemble, BetweenTwoRowsTheCallerMayFeedTheSource) {
  const auto join = [&] {
    Joiner joiner;
    for (uint32_t i = 1; i <= 5; ++i) {
      joiner.add_launch(kProcess, launch(i),
                        stacks_.intern(std::vector<uint64_t>{pc(app_, 100 + i, {"main"})}), 1);
      add(joiner, exec(i, 9, 100));
    }
    return joiner.finish_window();
  };
  const JoinResult result = join();
  const Model alone = assemble(result, stacks_, frames_);
  uint64_t calls = 0;
  AssembleOptions options;
  options.meanwhile = [&] {
    ++calls;
    const std::string name = "new_" + std::to_string(calls);
    pc(frames_.add_module(kProcess, "/lib/" + name + ".so"), 1, {name});
  };
  const Model fed = assemble(result, stacks_, frames_, nullptr, options);
  EXPECT_EQ(calls, result.rows.size());
  ASSERT_EQ(fed.samples.size(), 5u);
  for (size_t i = 0; i < fed.samples.size(); ++i)
    EXPECT_EQ(names(fed, fed.samples[i].stack), names(alone, alone.samples[i].stack));
}

TEST_F(Assemble, ShimCuptiAndNamelessDriverFramesAreTrimmed) {
  const Model model =
      one({pc(shim_, 1, {"emit"}), pc(shim_, 2), pc(cupti_, 3), pc(cuda_, 4), pc(cuda_, 5),
           pc(cuda_, 6, {"cuLaunchKernel"}), pc(cudart_, 7), pc(cudart_, 8),
           pc(cudart_, 9, {"cudaLaunchKernel"}), pc(app_, 10, {"inlined", "step"}), pc(app_, 11),
           pc(app_, 12, {"main"})});
  ASSERT_EQ(model.samples.size(), 1u);
  EXPECT_THAT(names(model, 0), ElementsAre("main", "[app]", "step", "inlined", "cudaLaunchKernel",
                                           "[libcudart.so.13]", "cuLaunchKernel", "saxpy"));
  EXPECT_EQ(model.samples[0].values[kGpuTimeNs], 100);
  EXPECT_EQ(model.samples[0].values[kGpuExecutions], 1);
  EXPECT_EQ(model.modules[0].path, "/bin/app");
}

TEST_F(Assemble, NamelessDriverEntryLeavesTheRuntimesLaunchCall) {
  // cudart calls what cuGetProcAddress gave it: no exported name.
  EXPECT_THAT(names(one({pc(cupti_, 1), pc(cuda_, 2), pc(cudart_, 3),
                         pc(cudart_, 4, {"cudaLaunchKernel"}), pc(app_, 5, {"main"})}),
                    0),
              ElementsAre("main", "cudaLaunchKernel", "saxpy"));
}

TEST_F(Assemble, OnlyDriverFramesAreKeptForWantOfBetter) {
  EXPECT_THAT(names(one({pc(shim_, 1), pc(cuda_, 2), pc(cuda_, 3)}), 0),
              ElementsAre("[libcuda.so.1]", "saxpy"));
}

TEST_F(Assemble, NothingLeftIsNoStack) {
  EXPECT_THAT(names(one({pc(shim_, 1), pc(cupti_, 2)}), 0), ElementsAre("[no stack]", "saxpy"));
}

TEST_F(Assemble, GraphCopiesAndUnmatchedRows) {
  gpuprof_exec_v1 record = exec(1, 9, 100);
  record.graph_id = 77;
  const uint64_t main = pc(app_, 1, {"main"});
  Model model = one({main}, record);
  EXPECT_THAT(names(model, 0), ElementsAre("main", "[cuda graph]", "saxpy"));
  EXPECT_EQ(label(model, model.samples[0], "gpu_graph_id"), "77");
  record = exec(1, 0, 100);
  record.kind = GPUPROF_KIND_MEMCPY;
  record.copy_kind = GPUPROF_COPY_DTOH;
  EXPECT_THAT(names(one({main}, record), 0), ElementsAre("main", "[memcpy DtoH]"));
  record.kind = GPUPROF_KIND_MEMSET;
  EXPECT_THAT(names(one({main}, record), 0), ElementsAre("main", "[memset]"));
  record.kind = GPUPROF_KIND_KERNEL;
  EXPECT_THAT(names(one({main}, record), 0), ElementsAre("main", "[unknown kernel]"));
  record.flags = GPUPROF_EXEC_BEFORE_ARM;
  model = one({main}, record);
  EXPECT_THAT(names(model, 0), ElementsAre("[no stack]", "[unknown kernel]"));
  EXPECT_EQ(label(model, model.samples[0], "gpu_join"), "unmatched");
  EXPECT_EQ(label(model, model.samples[0], "gpu_join_reason"), "before-arm");
}

TEST_F(Assemble, LabelsSayWhereAndHow) {
  frames_[kProcess].info.labels = {{"container_id", "c0ffee"}, {"rank", "3"}, {"ns_pid", ""}};
  const Model model = one({pc(app_, 1, {"main"})});
  const ModelSample& sample = model.samples[0];
  EXPECT_EQ(label(model, sample, "gpu_join"), "exact");
  EXPECT_EQ(label(model, sample, "gpu_device"), "0");
  EXPECT_EQ(label(model, sample, "gpu_uuid"), "GPU-0");
  EXPECT_EQ(label(model, sample, "gpu_context"), "1");
  EXPECT_EQ(label(model, sample, "gpu_stream"), "7");
  EXPECT_EQ(label(model, sample, "pid"), "100");
  EXPECT_EQ(label(model, sample, "start_ticks"), std::to_string(kProcess.start_ticks));
  EXPECT_EQ(label(model, sample, "comm"), "app");
  EXPECT_EQ(label(model, sample, "container_id"), "c0ffee");
  EXPECT_EQ(label(model, sample, "rank"), "3");
  const auto& labels = model.label_sets[sample.label_set];
  EXPECT_EQ(std::ranges::count(labels, "ns_pid", &ModelLabel::key), 0) << "an empty one";
  EXPECT_EQ(label(model, sample, "thread"), "worker/1");
  EXPECT_EQ(label(model, sample, "gpu_join_reason"), "");
}

TEST_F(Assemble, TwoProcessesOfOneNumberAreToldApart) {
  const ProcessId later{kProcess.pid, kProcess.start_ticks + 500};
  frames_[later].info = frames_[kProcess].info;
  Joiner joiner;
  joiner.add_execs(kProcess, std::vector{exec(1, 9, 100)});
  joiner.add_execs(later, std::vector{exec(1, 9, 10)});
  const Model model = assemble(joiner.finish_window(), stacks_, frames_);
  ASSERT_EQ(model.samples.size(), 2u);
  EXPECT_EQ(label(model, model.samples[0], "pid"), label(model, model.samples[1], "pid"));
  EXPECT_NE(label(model, model.samples[0], "start_ticks"),
            label(model, model.samples[1], "start_ticks"));
}

TEST_F(Assemble, LabelValuesAreBoundedAndSamplesMerged) {
  Joiner joiner;
  const StackId stack = stacks_.intern(std::vector<uint64_t>{pc(app_, 1, {"main"})});
  for (uint32_t id = 1; id <= 100; ++id) {
    joiner.add_launch(kProcess, launch(id), stack, 1);
    gpuprof_exec_v1 record = exec(id, 9, 10);
    record.stream_id = id;
    add(joiner, record);
  }
  AssembleOptions options;
  options.max_label_values = 10;
  AssembleStats stats;
  const Model model = assemble(joiner.finish_window(), stacks_, frames_, nullptr, options, &stats);
  EXPECT_EQ(model.samples.size(), 11u);
  EXPECT_EQ(model.label_sets.size(), 11u);
  EXPECT_EQ(stats.labels_suppressed, 90u);
  int64_t total = 0;
  for (const ModelSample& sample : model.samples) total += sample.values[kGpuTimeNs];
  EXPECT_EQ(total, 1000);
}

TEST_F(Assemble, KernelsWithOneShortNameAreShownInFull) {
  auto& kernels = frames_[kProcess].kernels;
  kernels[1] = "_Z1ki";
  kernels[2] = "_Z1kf";
  kernels[3] = "_Z5otheri";
  Joiner joiner;
  for (uint32_t id = 1; id <= 3; ++id) add(joiner, exec(id, id, 10));
  const Model model = assemble(joiner.finish_window(), stacks_, frames_);
  std::vector<std::string> shown;
  for (const ModelFunction& function : model.functions) shown.push_back(function.name);
  EXPECT_THAT(shown, ::testing::IsSupersetOf({"k(int)", "k(float)", "other"}));
}

TEST_F(Assemble, NamesOf3000BytesStayApart) {
  auto& kernels = frames_[kProcess].kernels;
  for (uint64_t id = 1; id <= 2; ++id) {
    std::string name = "_Z6kernelI";
    for (int i = 0; i < 100; ++i) name += "N16another_libraryx11SomeElementE";
    kernels[id] = name + (id == 1 ? "f" : "d") + "Evv";
    ASSERT_GT(kernels[id].size(), 2400u);
  }
  Joiner joiner;
  for (uint32_t id = 1; id <= 2; ++id) add(joiner, exec(id, id, 10));
  const Model model = assemble(joiner.finish_window(), stacks_, frames_);
  ASSERT_EQ(model.samples.size(), 2u);
  const auto& a = model.functions[model.locations[model.stacks[0][0]].lines[0].function];
  const auto& b = model.functions[model.locations[model.stacks[1][0]].lines[0].function];
  EXPECT_NE(a.name, b.name);
  EXPECT_EQ(a.system_name, kernels[1]);
  EXPECT_EQ(b.system_name, kernels[2]);
}

TEST_F(Assemble, NoFrameNameHoldsAnAddressOrAnId) {
  gpuprof_exec_v1 record = exec(1, 4242, 100);  // a name id that no name came for
  record.stream_id = 4343;
  const Model model =
      one({pc(cuda_, 0x4444), pc(app_, 0x4545), pc(app_, 0x4646, {"main"})}, record);
  for (const ModelFunction& function : model.functions) {
    EXPECT_EQ(function.name.find_first_of("0123456789"),
              function.name == "[libcuda.so.1]" ? 12u : std::string::npos)
        << function.name;
  }
}

TEST_F(Assemble, SecondProcessHasItsOwnModules) {
  const ProcessId other{200, 9};
  frames_[other].info = {"tool", "/bin/tool", {}};
  const uint32_t module = frames_.add_module(other, "/bin/tool");
  const uint64_t there = frames_.add_pc(other, module, 1, {"main"});
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), stacks_.intern(std::vector{pc(app_, 1, {"main"})}), 1);
  add(joiner, exec(1, 9, 100));
  joiner.add_launch(other, launch(1), stacks_.intern(std::vector{there}), 1);
  add(joiner, exec(1, 9, 500), other);
  const Model model = assemble(joiner.finish_window(), stacks_, frames_);
  EXPECT_EQ(model.modules[0].path, "/bin/tool");  // more GPU time
  EXPECT_EQ(model.modules.size(), 3u);            // and [cuda]
  EXPECT_EQ(model.samples.size(), 2u);
}

TEST(AssembleEmpty, NothingGivesAnEmptyModel) {
  FakeFrames frames;
  const Model model = assemble(JoinResult{}, StackTable(), frames);
  EXPECT_TRUE(model.samples.empty());
}

}  // namespace
}  // namespace gpuprof::join
