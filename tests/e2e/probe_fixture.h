// SPDX-License-Identifier: Apache-2.0
//
// What the probe tests share: a sink that keeps everything, the fallback modes, a session on the
// test library in this very process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/probe/probe_session.h"

namespace gpuprof::probe {

struct SeenLaunch {
  gpuprof_launch_v1 record{};
  ProcessId process;
  uint32_t tid = 0;
  bool has_stack = false;
  std::vector<uint64_t> regs;
  uint64_t stack_address = 0;
  uint64_t stack_top = 0;
  uint32_t flags = 0;
  std::vector<uint8_t> bytes;
  std::vector<gpuprof_python_frame> python;
  uint32_t python_end = 0;
};

struct SeenName {
  uint32_t kind;
  uint64_t id;
  std::string name;
};

class KeepingSink : public EventSink {
 public:
  void on_process(const EventSource& from, const gpuprof_process_v1& r) override {
    note(from);
    processes.push_back(r);
  }
  void on_launch(const EventSource& from, const gpuprof_launch_v1& r,
                 const StackSample* stack) override;
  void on_execs(const EventSource& from, std::span<const gpuprof_exec_v1> r) override {
    note(from);
    execs.insert(execs.end(), r.begin(), r.end());
    execs_of[from.process.pid] += r.size();
  }
  void on_pc_samples(const EventSource& from, std::span<const gpuprof_pc_sample_v1> r) override {
    note(from);
    pc_samples.insert(pc_samples.end(), r.begin(), r.end());
  }
  void on_name(const EventSource& from, uint32_t kind, uint64_t id,
               std::string_view name) override {
    note(from);
    names.push_back({kind, id, std::string(name)});
  }
  void on_modules(const EventSource& from, std::span<const gpuprof_module_v1> r) override {
    note(from);
    modules.insert(modules.end(), r.begin(), r.end());
  }
  void on_device(const EventSource& from, const gpuprof_device_v1& r) override {
    note(from);
    devices.push_back(r);
  }
  void on_window(const EventSource& from, const gpuprof_window_v1& r) override {
    note(from);
    windows.push_back(r);
  }
  void on_drop(const EventSource& from, const gpuprof_drop_v1& r) override {
    note(from);
    drops.push_back(r);
  }
  void on_loss(ProcessId, uint32_t probe, uint64_t records, LossReason reason) override {
    lost[{probe, reason}] += records;
  }

  [[nodiscard]] uint64_t lost_of(uint32_t probe) const {
    uint64_t total = 0;
    for (const auto& [key, records] : lost) total += key.first == probe ? records : 0;
    return total;
  }

  std::vector<gpuprof_process_v1> processes;
  std::vector<SeenLaunch> launches;
  std::vector<gpuprof_exec_v1> execs;
  std::map<uint32_t, uint64_t> execs_of;  // by process number
  std::vector<gpuprof_pc_sample_v1> pc_samples;
  std::vector<SeenName> names;
  std::vector<gpuprof_module_v1> modules;
  std::vector<gpuprof_device_v1> devices;
  std::vector<gpuprof_window_v1> windows;
  std::vector<gpuprof_drop_v1> drops;
  std::map<std::pair<uint32_t, LossReason>, uint64_t> lost;
  ProcessId last_process;
  uint32_t last_tid = 0;
  uint32_t last_uid = 0;
  std::string last_comm;

 private:
  void note(const EventSource& from) {
    last_process = from.process;
    last_tid = from.tid;
    last_uid = from.uid;
    last_comm = from.comm;
  }
};

// One way to run: a set of forced fallbacks.
struct Mode {
  std::string name;
  std::string fallbacks;
};
inline void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }
const std::vector<Mode>& all_modes();
std::string mode_name(const testing::TestParamInfo<Mode>& info);

std::string site_library_path();
gpuprof_exec_v1 sample_exec(uint64_t n);
gpuprof_launch_v1 sample_launch(uint32_t correlation);

// Runs `body` in a forked child and returns its wait status; what it returns is its exit status.
int in_child(const std::function<int()>& body);

// Root and BPF or nothing: without root it skips and says so; with root every trouble fails.
class ProbeE2e : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override;

  void start(ProbeOptions options = {});
  void attach();
  void watch_self();
  // Fires launches, executions and so on are asynchronous to nothing: one poll sees all.
  void poll();

  KeepingSink sink;
  std::unique_ptr<ProbeSession> session;
  uint64_t cookie = 0;
};

}  // namespace gpuprof::probe
