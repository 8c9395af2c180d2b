// SPDX-License-Identifier: Apache-2.0
//
// Sampled instructions of real cubins as frames of the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "daemon/join/flat_index.h"
#include "tests/unit/cubin/cubin_writer.h"
#include "tests/unit/cubin/fixture.h"
#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using namespace testing;
using cubin::SourceStatus;
using ::testing::ElementsAre;

uint64_t id_of(std::string_view mangled) { return XXH3_64bits(mangled.data(), mangled.size()); }

class AssembleDeviceCode : public ::testing::Test {
 protected:
  AssembleDeviceCode() {
    const uint32_t app = frames_.add_module(kProcess, "/bin/app");
    stack_ = stacks_.intern(std::vector{frames_.add_pc(kProcess, app, 1, {"main"})});
  }

  // Under the key kCubin + `number`.
  void load(const std::string& name, uint64_t number = 0, ProcessId process = kProcess) {
    DeviceModule& module = device_[{process, kCubin + number}];
    module.image = cubin::test::fixture_image(name);
    ASSERT_NE(module.image, nullptr);
    module.sha256 = "sha256-of-" + name;
  }
  void load(const cubin::test::CubinWriter& writer) {
    auto image = cubin::Image::parse(writer.finish());
    ASSERT_TRUE(image.has_value()) << image.error().message;
    device_[{kProcess, kCubin}].image = *image;
    device_[{kProcess, kCubin}].sha256 = "handmade";
  }
  uint64_t kernel(const std::string& mangled, ProcessId process = kProcess) {
    frames_[process].kernels[id_of(mangled)] = mangled;
    return id_of(mangled);
  }
  void run(const std::string& mangled, uint64_t ns = 1000, ProcessId process = kProcess) {
    joiner_.add_launch(process, launch(++id_), stack_, 1);
    add(joiner_, exec(id_, kernel(mangled, process), ns), process);
  }
  void sample(const std::string& mangled, uint32_t pc, uint32_t samples = 10, uint64_t number = 0,
              ProcessId process = kProcess) {
    gpuprof_pc_sample_v1 record = pc_sample(kernel(mangled, process), pc, samples);
    record.cubin_key = kCubin + number;
    add(joiner_, record, process);
  }
  Model finish() {
    const JoinResult result = joiner_.finish_window(&frames_, &device_);
    Model model = assemble(result, stacks_, frames_, &device_, {}, &stats_);
    check_values(result, model);
    return model;
  }
  // Every value of the model is the joiner's, in sum.
  void check_values(const JoinResult& result, const Model& model) {
    int64_t sums[kValueCount] = {};
    for (const ModelSample& sample : model.samples) {
      for (size_t i = 0; i < kValueCount; ++i) sums[i] += sample.values[i];
    }
    uint64_t received = 0, received_ns = 0, samples = 0, not_issued = 0;
    for (size_t i = 0; i < result.processes.size(); ++i) {
      const Accounting& window = result.processes[i].window;
      EXPECT_EQ(window.check(), "");
      received += window.received;
      received_ns += window.received_ns;
      samples += window.pc.samples;
      not_issued += window.pc.not_issued;
      const SourceCounts& counts = stats_.sources[i];
      EXPECT_EQ(counts.of(SourceStatus::kInvalid), 0u);
      EXPECT_EQ(window.pc.samples,
                std::accumulate(counts.by_status.begin(), counts.by_status.end(), counts.folded));
    }
    EXPECT_EQ(static_cast<uint64_t>(sums[kGpuTimeNs]), received_ns);
    EXPECT_EQ(static_cast<uint64_t>(sums[kGpuExecutions]), received);
    EXPECT_EQ(static_cast<uint64_t>(sums[kGpuPcSamples]), samples);
    EXPECT_EQ(static_cast<uint64_t>(sums[kGpuStallSamples]), not_issued);
  }

  // Root to leaf: "function file:line" for each line.
  static std::vector<std::string> chain(const Model& model, const ModelSample& sample) {
    std::vector<std::string> out;
    for (const uint32_t location : model.stacks[sample.stack]) {
      for (const ModelLine& line : model.locations[location].lines) {
        const ModelFunction& function = model.functions[line.function];
        std::string text = function.name;
        if (line.line != 0)
          text += " " + function.file.substr(function.file.rfind('/') + 1) + ":" +
                  std::to_string(line.line);
        out.insert(out.begin(), text);
      }
    }
    return out;
  }
  // Root to leaf, without the CPU's.
  static std::vector<std::string> device_chain(const Model& model, const ModelSample& sample) {
    std::vector<std::string> frames = chain(model, sample);
    frames.erase(frames.begin());
    return frames;
  }
  static uint64_t leaf_address(const Model& model, const ModelSample& sample) {
    return model.locations[model.stacks[sample.stack].front()].address;
  }
  static std::string label(const Model& model, const ModelSample& sample, const std::string& key) {
    for (const uint32_t set : {sample.label_set, sample.code_labels}) {
      if (set == UINT32_MAX) continue;
      for (const ModelLabel& label : model.label_sets[set]) {
        if (label.key == key) return label.text;
      }
    }
    return "";
  }
  static std::set<uint32_t> functions_named(const Model& model, const std::string& name) {
    std::set<uint32_t> found;
    for (const ModelLocation& location : model.locations) {
      for (const ModelLine& line : location.lines) {
        if (model.functions[line.function].name == name) found.insert(line.function);
      }
    }
    return found;
  }

  FakeFrames frames_;
  FakeDevice device_;
  StackTable stacks_;
  StackId stack_ = kNoStack;
  Joiner joiner_;
  AssembleStats stats_;
  uint32_t id_ = 0;
};

TEST_F(AssembleDeviceCode, InlinedFunctionsNestUnderTheirKernel) {
  load("inline_chain.sm_90");
  run("chain");
  sample("chain", 0x20);
  const Model model = finish();
  ASSERT_EQ(model.samples.size(), 1u);
  EXPECT_THAT(chain(model, model.samples[0]),
              ElementsAre("main main.cc:10", "chain inline_chain.cu:28", "outer inline_chain.cu:18",
                          "middle inline_chain.cu:13", "inner inline_chain.cu:6"));
  EXPECT_EQ(label(model, model.samples[0], "gpu_src_status"), "resolved");
  EXPECT_EQ(label(model, model.samples[0], "gpu_pc_attrib"), "kernel");
  EXPECT_EQ(label(model, model.samples[0], "gpu_stall"), "wait");
  EXPECT_EQ(label(model, model.samples[0], "gpu_serialized"), "unknown");  // no window came
  EXPECT_EQ(stats_.sources[0].of(SourceStatus::kResolved), 10u);
}

TEST_F(AssembleDeviceCode, ANotInlinedFunctionIsUnderItsKernelToo) {
  load("inline_chain.sm_90");
  const cubin::Function* found = nullptr;
  for (const cubin::Function& function : device_[{kProcess, kCubin}].image->functions()) {
    if (!function.is_kernel && function.mangled.find("apart") != std::string_view::npos)
      found = &function;
  }
  ASSERT_NE(found, nullptr);
  run("chain");
  sample("chain", static_cast<uint32_t>(found->offset) + 0x30);  // as CUPTI counts
  sample(std::string(found->mangled), 0x30, 5);                  // by its own name
  const Model model = finish();
  ASSERT_EQ(model.samples.size(), 1u);
  const std::vector<std::string> frames = chain(model, model.samples[0]);
  ASSERT_GE(frames.size(), 3u);
  EXPECT_EQ(frames[0], "main main.cc:10");
  EXPECT_EQ(frames[1], "chain inline_chain.cu:29");  // its call
  EXPECT_THAT(frames[2], ::testing::StartsWith("apart inline_chain.cu:"));
  EXPECT_EQ(model.samples[0].values[kGpuPcSamples], 15);
}

// With -G device functions have sections of their own, and who called them is not in the image.
TEST_F(AssembleDeviceCode, AFunctionInASectionOfItsOwnIsUnattributedUnlessItsLaunchIsKnown) {
  load("apart.sm_100.debug");
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  run("_Z4growPfi");
  gpuprof_pc_sample_v1 record = pc_sample(kernel("_Z4leaff"), 0x100, 7, kWait, id_);
  add(joiner_, record);
  record.correlation = 0;
  record.samples = 4;
  add(joiner_, record);
  const Model model = finish();
  ASSERT_EQ(model.samples.size(), 2u);
  std::vector<std::string> exact = chain(model, model.samples[0]);
  ASSERT_EQ(exact.size(), 3u);
  EXPECT_EQ(exact[1], "grow");
  EXPECT_THAT(exact[2], ::testing::StartsWith("leaf apart.cu:"));
  EXPECT_EQ(label(model, model.samples[0], "gpu_pc_attrib"), "exact");
  EXPECT_EQ(label(model, model.samples[0], "gpu_serialized"), "true");
  std::vector<std::string> alone = chain(model, model.samples[1]);
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_EQ(alone[0], "[unattributed]");
  EXPECT_EQ(alone[1], exact[2]);
  EXPECT_EQ(label(model, model.samples[1], "gpu_pc_attrib"), "unattributed");
  EXPECT_EQ(label(model, model.samples[1], "gpu_join"), "");
}

// Local functions of one name in two kernels, as each calls its own.
TEST_F(AssembleDeviceCode, AFunctionIsThatOfItsKernelsSection) {
  cubin::test::CubinWriter writer;
  cubin::test::LineProgram lines;
  for (const std::string name : {"k1", "k2"}) {
    const uint32_t first = name == "k1" ? 10 : 20;
    const size_t text = writer.text(name, 0x200);
    lines.set_address(writer.symbol(name, text, 0, 0x200, true));
    lines.row(0, first);
    lines.row(0x100, first + 1);
    lines.end_sequence(0x200);
    writer.symbol("own", text, 0x100, 0x100, false, true);
  }
  writer.unit(lines, {"a.cu"});
  load(writer);
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  for (const std::string name : {"k1", "k2"}) {
    run(name);
    gpuprof_pc_sample_v1 record = pc_sample(kernel("own"), 0x10, 7, kWait, id_);
    add(joiner_, record);
    record.function_name_id = kernel(name);
    record.pc_offset = 0x110;
    record.samples = 5;
    add(joiner_, record);
  }
  sample("own", 0x10, 3);  // of which of them is not known
  const Model model = finish();
  std::map<std::vector<std::string>, int64_t> samples;
  std::map<uint64_t, std::vector<std::string>> by_address;
  for (const ModelSample& sample : model.samples) {
    samples[device_chain(model, sample)] += sample.values[kGpuPcSamples];
    const auto [at, is_new] =
        by_address.try_emplace(leaf_address(model, sample), device_chain(model, sample));
    EXPECT_EQ(at->second, device_chain(model, sample)) << "one address, two functions";
  }
  EXPECT_EQ(samples, (std::map<std::vector<std::string>, int64_t>{
                         {{"k1", "own a.cu:11"}, 12}, {{"k2", "own a.cu:21"}, 12}, {{"own"}, 3}}));
}

TEST_F(AssembleDeviceCode, ACorrelationIsExactForDeviceFunctionsOfItsKernelOnly) {
  cubin::test::CubinWriter writer;
  for (const std::string name : {"k1", "k2"}) {
    const size_t text = writer.text(name, 0x200);
    writer.symbol(name, text, 0, 0x200, true);
    writer.symbol("$" + name + "$callee", text, 0x100, 0x100, false, true);
  }
  load(writer);
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  run("k2");
  run("k1");
  add(joiner_, pc_sample(kernel("$k1$callee"), 0x10, 7, kWait, id_));
  add(joiner_, pc_sample(kernel("$k2$callee"), 0x10, 4, kWait, id_));
  const Model model = finish();
  std::map<std::string, int64_t> samples;
  for (const ModelSample& sample : model.samples) {
    const std::string name = device_chain(model, sample).front();
    samples[name + " " + label(model, sample, "gpu_pc_attrib")] += sample.values[kGpuPcSamples];
  }
  EXPECT_EQ(samples, (std::map<std::string, int64_t>{{"k1 exact", 7}, {"k2 kernel", 4}}));
}

TEST_F(AssembleDeviceCode, AnInlinedFunctionWithoutAUsableNameIsUnknown) {
  cubin::test::CubinWriter writer;
  cubin::test::LineProgram lines;
  lines.set_address(writer.kernel("k", 0x200));
  lines.row(0, 10);
  lines.inlined_call(1, 1000);  // a name beyond the table
  lines.row(0x10, 20);
  lines.end_sequence(0x200);
  writer.unit(lines, {"a.cu"});
  load(writer);
  run("k");
  sample("k", 0x10);
  const Model model = finish();
  ASSERT_EQ(model.samples.size(), 1u);
  EXPECT_THAT(device_chain(model, model.samples[0]), ElementsAre("k a.cu:10", "[unknown] a.cu:20"));
  for (const ModelFunction& function : model.functions) {
    EXPECT_NE(function.name, "");
    EXPECT_NE(function.system_name, "");
  }
}

TEST_F(AssembleDeviceCode, AKernelOfTwoNamesIsEachOfThem) {
  cubin::test::CubinWriter writer;
  cubin::test::LineProgram lines;
  const size_t text = writer.text("k", 0x200);
  lines.set_address(writer.symbol("k", text, 0, 0x200, true));
  writer.symbol("alias", text, 0, 0x200, true);
  writer.symbol("$k$callee", text, 0x100, 0x100, false, true);
  lines.row(0, 10);
  lines.row(0x100, 20);
  lines.end_sequence(0x200);
  writer.unit(lines, {"a.cu"});
  load(writer);
  for (const std::string name : {"k", "alias"}) {
    run(name);
    sample(name, 0x10);
    sample(name, 0x110);
  }
  const Model model = finish();
  std::set<std::vector<std::string>> chains;
  std::set<uint64_t> addresses;
  for (const ModelSample& sample : model.samples) {
    chains.insert(device_chain(model, sample));
    addresses.insert(leaf_address(model, sample));
  }
  EXPECT_EQ(
      chains,
      (std::set<std::vector<std::string>>{
          {"k a.cu:10"}, {"k", "callee a.cu:20"}, {"alias a.cu:10"}, {"alias", "callee a.cu:20"}}));
  EXPECT_EQ(addresses.size(), 4u);
  for (const ModelModule& module : model.modules) {
    if (module.build_id == "handmade") {
      EXPECT_GT(module.limit, *addresses.rbegin());
    }
  }
}

TEST_F(AssembleDeviceCode, TheKernelsFrameIsOneWithAndWithoutLines) {
  load("inline_chain.sm_90", 0);
  load("inline_chain.sm_90.plain", 1);
  const ProcessId other{200, 1};
  for (const ProcessId process : {kProcess, other}) run("chain", 100, process);
  sample("chain", 0x10, 10, 0);
  sample("chain", 0x20, 10, 0);
  sample("chain", 0x20, 10, 1);  // no lines
  sample("chain", 0x20, 10, 2);  // no module; the other process has no samples at all
  const Model model = finish();
  EXPECT_EQ(functions_named(model, "chain").size(), 1u);
  const ModelFunction& function = model.functions[*functions_named(model, "chain").begin()];
  EXPECT_EQ(function.file, "/tmp/kernels/inline_chain.cu");
  EXPECT_EQ(function.system_name, "chain");
  const SourceCounts& counts = stats_.sources[0];
  EXPECT_EQ(counts.of(SourceStatus::kResolved), 20u);
  EXPECT_EQ(counts.of(SourceStatus::kNoLineInfo), 10u);
  EXPECT_EQ(counts.of(SourceStatus::kNoModule), 10u);
}

TEST_F(AssembleDeviceCode, EveryStatusIsSaid) {
  load("inline_chain.sm_90.plain");
  device_[{kProcess, kCubin + 1}].missing = "foreign-key";
  run("chain");
  run("_Z7missingv");
  sample("chain", 0x20, 1);
  sample("chain", 0x20, 2, 1);
  sample("chain", 0x1000000, 4);   // beyond its end
  sample("_Z7missingv", 0x20, 8);  // not in this image
  const Model model = finish();
  std::map<std::string, int64_t> by_status;
  for (const ModelSample& sample : model.samples) {
    by_status[label(model, sample, "gpu_src_status") + "/" +
              label(model, sample, "gpu_src_reason")] += sample.values[kGpuPcSamples];
  }
  EXPECT_EQ(by_status, (std::map<std::string, int64_t>{
                           {"no-lineinfo/", 1}, {"no-module/foreign-key", 2}, {"unmapped/", 12}}));
}

TEST_F(AssembleDeviceCode, OneModuleACubinWhoeverLoadedIt) {
  const ProcessId other{200, 1};
  for (const ProcessId process : {kProcess, other}) {
    load("equal_offsets.sm_80", 0, process);
    load("inline_chain.sm_90", 1, process);
    for (const char* name : {"_Z8scale_upPff", "_Z10scale_twinPff", "chain"})
      run(name, 10, process);
    sample("_Z8scale_upPff", 0x80, 1, 0, process);
    sample("_Z10scale_twinPff", 0x80, 1, 0, process);
    sample("chain", 0x20, 1, 1, process);
  }
  const Model model = finish();
  std::vector<const ModelModule*> cubins;
  for (const ModelModule& module : model.modules) {
    if (module.is_device_code) cubins.push_back(&module);
  }
  ASSERT_EQ(cubins.size(), 2u);
  EXPECT_EQ(cubins[0]->build_id, "sha256-of-equal_offsets.sm_80");
  EXPECT_EQ(cubins[0]->path, "[cubin sm_80 sha256-of-eq]");
  EXPECT_TRUE(cubins[0]->has_line_numbers);
  EXPECT_FALSE(cubins[0]->has_inline_frames);
  EXPECT_TRUE(cubins[1]->has_inline_frames);
  std::set<std::pair<uint32_t, uint64_t>> addresses;
  for (const ModelLocation& location : model.locations) {
    const ModelModule& module = model.modules[location.module];
    if (!module.is_device_code) continue;
    EXPECT_LT(location.address, module.limit);
    EXPECT_TRUE(addresses.insert({location.module, location.address}).second);
  }
}

TEST_F(AssembleDeviceCode, TritonKernelsResolveToPython) {
  load("triton_softmax.sm_90");
  run("softmax");
  for (uint32_t pc = 0x100; pc < 0x600; pc += 0x10) sample("softmax", pc);
  const Model model = finish();
  std::set<std::string> files;
  for (const ModelFunction& function : model.functions) files.insert(function.file);
  EXPECT_TRUE(files.contains("/tmp/kernels/triton_softmax.py"));
  EXPECT_TRUE(files.contains("/tmp/triton/triton/language/standard.py"));
  // Triton names what it inlined after the kernel, too: in another file, the kernel is one frame.
  for (const ModelSample& sample : model.samples) {
    const ModelLine& kernel = model.locations[model.stacks[sample.stack][0]].lines.back();
    EXPECT_EQ(model.functions[kernel.function].name, "softmax");
    EXPECT_EQ(model.functions[kernel.function].file, "/tmp/kernels/triton_softmax.py");
  }
}

TEST_F(AssembleDeviceCode, APeriodIsToldInCycles) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1));
  run("chain");
  EXPECT_EQ(finish().pc_period_cycles, 0);  // no samples
  sample("chain", 0x20);
  EXPECT_EQ(finish().pc_period_cycles, 1024);
}

}  // namespace
}  // namespace gpuprof::join
