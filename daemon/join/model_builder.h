// SPDX-License-Identifier: Apache-2.0
//
// ModelBuilder: frames of processes and of the GPU as the model's shared modules, functions,
// locations and stacks, each made once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/join/assemble.h"
#include "daemon/join/device_code.h"
#include "daemon/join/flat_index.h"
#include "daemon/join/gpu_functions.h"
#include "daemon/join/model.h"

namespace gpuprof::join {

// One use: build, then finish(). `process` is an index into the processes given at the start.
class ModelBuilder {
 public:
  ModelBuilder(std::vector<ProcessId> processes, const StackTable& stacks, FrameSource& source,
               DeviceSource* device);
  ModelBuilder(const ModelBuilder&) = delete;
  ModelBuilder& operator=(const ModelBuilder&) = delete;

  // The stack of a row, as an index into Model::stacks. `place`: of the instruction at the leaf;
  // null: the kernel as such.
  uint32_t stack_of(const Row& row, const DeviceCode::Place* place = nullptr);
  DeviceCode& device_code() { return device_code_; }
  Model& model() { return model_; }

  // Gives kernels their shown names and puts the module of `main_process` that is `executable`
  // first: pprof takes the first mapping for the main binary.
  Model finish(uint32_t main_process, const std::string& executable);

 private:
  // Whose code a frame is, as far as trimming cares.
  enum class Owner : uint8_t { kApplication, kTool, kDriver };
  struct Frame {
    uint32_t location = 0;
    Owner owner = Owner::kApplication;
    bool is_named = false;
  };
  struct PcKey {
    uint64_t pc;
    uint64_t process;
  };
  struct CpuKey {
    uint32_t process, stack;
  };
  struct StackKey {
    uint32_t cpu, leaf, parent, is_graph;
  };
  struct NameKey {
    uint64_t name_id;
    uint64_t process;
  };

  Frame frame(uint32_t process, uint64_t pc);
  uint32_t cpu_stack(uint32_t process, StackId stack);
  uint32_t cpu_stack_of(const Row& row);
  std::vector<uint32_t> trim(const std::vector<Frame>& frames) const;
  uint32_t module_of(uint32_t process, uint32_t index);
  uint32_t function(const std::string& name, const std::string& system_name,
                    const std::string& file, int64_t start_line);
  uint32_t gpu_frame(const Row& row);
  uint32_t kernel_function(const Row& row);
  uint32_t synthetic(const std::string& name);
  uint32_t synthetic_location(uint32_t function);
  void put_first(uint32_t module);

  std::vector<ProcessId> processes_;
  const StackTable& stacks_;
  FrameSource& source_;
  Model model_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> modules_;  // (process, index) → model module
  std::vector<Owner> owners_;                                  // by model module
  FlatIndex<PcKey, Frame> frames_;
  FlatIndex<CpuKey, uint32_t> cpu_stacks_;  // → cpu_locations_
  std::vector<std::vector<uint32_t>> cpu_locations_;
  uint32_t unattributed_ = UINT32_MAX;         // of those
  FlatIndex<StackKey, uint32_t> full_stacks_;  // → Model::stacks
  FlatIndex<NameKey, uint32_t> kernels_;       // → function
  std::unordered_map<std::string, uint32_t> functions_;
  std::unordered_map<uint32_t, uint32_t> synthetic_;  // function → location
  uint32_t synthetic_module_ = UINT32_MAX;
  GpuFunctions gpu_functions_{model_};
  DeviceCode device_code_;
};

}  // namespace gpuprof::join
