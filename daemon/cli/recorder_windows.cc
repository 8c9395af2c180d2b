// SPDX-License-Identifier: Apache-2.0
//
// The recorder's part for runs of several windows: what ends with one, and what stays in the sums.
#include <algorithm>
#include <set>

#include "daemon/cli/recorder.h"

namespace gpuprof::cli {
namespace {

constexpr size_t kMaxForgottenGpus = 1024;  // what a target says of a GPU is its own word

}  // namespace

void Recorder::add_totals(const ProcessRecord& record, Totals& out) {
  out.executions += record.executions;
  out.gpu_time_ns += record.gpu_time_ns;
  out.busy_ns += record.busy_ns;
  for (const auto& reasons : record.lost) {
    for (const uint64_t count : reasons) out.lost += count;
  }
  for (uint32_t drop_class = 0; drop_class < GPUPROF_DROP_CLASS_COUNT; ++drop_class) {
    if (join::is_execution_loss(drop_class)) out.lost += record.drops[drop_class];
  }
}

Recorder::Totals Recorder::totals() const {
  Totals out = forgotten_;
  for (const auto& [id, record] : processes_) add_totals(record, out);
  out.devices = device_count();
  return out;
}

// Adds the GPUs that the process ran on to `known`; returns how many have no UUID.
size_t Recorder::add_devices(const ProcessRecord& record, std::set<GpuUuid>& known) {
  size_t nameless = 0;
  for (const auto& [device_id, until] : record.busy_until_ns) {
    GpuUuid uuid{};
    if (const auto it = record.devices.find(device_id); it != record.devices.end())
      std::ranges::copy(it->second.uuid, uuid.begin());
    if (uuid == GpuUuid{}) {
      ++nameless;
    } else {
      known.insert(uuid);
    }
  }
  return nameless;
}

size_t Recorder::device_count() const {
  std::set<GpuUuid> known = forgotten_gpus_;
  size_t unknown = forgotten_nameless_;
  for (const auto& [id, record] : processes_)
    unknown = std::max(unknown, add_devices(record, known));
  return known.size() + unknown;
}

Recorder::Cut Recorder::cut_window() {
  Cut out{finish(), stacks_, {}};
  const std::vector<join::StackId> live = joiner_.live_stacks();
  stacks_.retain([&](join::StackId id) { return std::ranges::binary_search(live, id); });
  for (const auto& [id, record] : processes_) {
    if (record.exited) out.ended.push_back(id);
  }
  return out;
}

void Recorder::forget(ProcessId process) {
  const auto it = processes_.find(process);
  if (it == processes_.end()) device_modules_.forget(process);
  if (it == processes_.end() || !it->second.exited) return;
  add_totals(it->second, forgotten_);
  if (forgotten_gpus_.size() < kMaxForgottenGpus)
    forgotten_nameless_ = std::max(forgotten_nameless_, add_devices(it->second, forgotten_gpus_));
  for (const auto& [id, name] : it->second.kernel_names) name_bytes_ -= name.size();
  stall_names_ -= it->second.stall_names.size();
  processes_.erase(it);
  device_modules_.forget(process);
}

}  // namespace gpuprof::cli
