// SPDX-License-Identifier: Apache-2.0
//
// A FrameSource over tables: module i of a process covers pcs [i << 20, (i + 1) << 20).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/join/assemble.h"

namespace gpuprof::join::testing {

class FakeFrames : public FrameSource {
 public:
  static constexpr uint64_t kSpan = 1 << 20;

  struct Proc {
    ProcessInfo info;
    std::vector<symbolize::Module> modules;
    std::map<uint64_t, symbolize::SymbolizedPc> pcs;
    std::map<uint64_t, std::string> kernels;
  };

  Proc& operator[](ProcessId id) { return processes_[id]; }

  uint32_t add_module(ProcessId id, const std::string& path, uint64_t start = 0x1000) {
    Proc& process = processes_[id];
    process.modules.push_back({path, "", start, start + kSpan});
    return static_cast<uint32_t>(process.modules.size() - 1);
  }

  // `functions` innermost first; empty: no symbol.
  uint64_t add_pc(ProcessId id, uint32_t module, uint64_t offset,
                  const std::vector<std::string>& functions) {
    symbolize::SymbolizedPc pc;
    pc.module = module;
    pc.address = processes_[id].modules[module].start + offset;
    uint32_t line = 10;
    for (const std::string& name : functions) {
      pc.frames.push_back({name, name, "/src/" + name + ".cc", line++, 5});
    }
    const uint64_t key = (uint64_t{module} + 1) * kSpan + offset;
    processes_[id].pcs[key] = pc;
    return key;
  }

  const symbolize::SymbolizedPc& resolve(ProcessId id, uint64_t pc) override {
    return processes_[id].pcs[pc];
  }
  const std::vector<symbolize::Module>& modules(ProcessId id) override {
    return processes_[id].modules;
  }
  bool is_tool(const symbolize::Module& module) override { return module.path == tool_; }
  void set_tool(const std::string& path) { tool_ = path; }
  ProcessInfo process(ProcessId id) override { return processes_[id].info; }
  std::string thread_name(ProcessId, uint32_t tid) override {
    return tid == 1 ? "worker" : std::string();
  }
  DeviceInfo device(ProcessId, uint32_t device) override {
    return {"NVIDIA H200", "GPU-" + std::to_string(device)};
  }
  std::string_view kernel_name(ProcessId id, uint64_t name) override {
    return processes_[id].kernels[name];
  }

 private:
  std::string tool_;
  std::map<ProcessId, Proc> processes_;
};

}  // namespace gpuprof::join::testing
