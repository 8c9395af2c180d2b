// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/scope_filter.h"

namespace gpuprof::cli {

bool ScopeFilter::admits(const probe::EventSource& source, size_t records) {
  auto known = programs_known_.find(source.process);
  if (known == programs_known_.end() || known->second.exec_id != source.exec_id) {
    // To be asked again costs a look at /proc each.
    if (programs_known_.size() >= kMaxPrograms) programs_known_.clear();
    const bool meant = judge_(source);
    if (!meant && !source.watched) return false;  // a stranger's first word; it may move in
    programs_ += meant ? 0 : 1;
    known = programs_known_.insert_or_assign(source.process, Program{source.exec_id, meant}).first;
  }
  if (!known->second.meant) records_ += records;
  return known->second.meant;
}

// That eBPF does not watch it may mean no more than that it could not know.
void ScopeFilter::on_process(const probe::EventSource& source, const gpuprof_process_v1& record) {
  if (!admits(source, 1)) return;
  probe::EventSource meant = source;
  meant.watched = true;
  next_.on_process(meant, record);
}

void ScopeFilter::on_launch(const probe::EventSource& source, const gpuprof_launch_v1& launch,
                            const StackSample* stack) {
  if (admits(source, 1)) next_.on_launch(source, launch, stack);
}

void ScopeFilter::on_execs(const probe::EventSource& source,
                           std::span<const gpuprof_exec_v1> execs) {
  if (admits(source, execs.size())) next_.on_execs(source, execs);
}

void ScopeFilter::on_pc_samples(const probe::EventSource& source,
                                std::span<const gpuprof_pc_sample_v1> samples) {
  if (admits(source, samples.size())) next_.on_pc_samples(source, samples);
}

void ScopeFilter::on_name(const probe::EventSource& source, uint32_t kind, uint64_t id,
                          std::string_view name) {
  if (admits(source, 1)) next_.on_name(source, kind, id, name);
}

void ScopeFilter::on_modules(const probe::EventSource& source,
                             std::span<const gpuprof_module_v1> modules) {
  if (admits(source, modules.size())) next_.on_modules(source, modules);
}

void ScopeFilter::on_device(const probe::EventSource& source, const gpuprof_device_v1& device) {
  if (admits(source, 1)) next_.on_device(source, device);
}

void ScopeFilter::on_window(const probe::EventSource& source, const gpuprof_window_v1& window) {
  if (admits(source, 1)) next_.on_window(source, window);
}

void ScopeFilter::on_drop(const probe::EventSource& source, const gpuprof_drop_v1& drop) {
  if (admits(source, 1)) next_.on_drop(source, drop);
}

void ScopeFilter::on_loss(ProcessId process, uint32_t probe, uint64_t records,
                          probe::LossReason reason) {
  const auto known = programs_known_.find(process);
  if (known == programs_known_.end() || known->second.meant)
    next_.on_loss(process, probe, records, reason);
}

}  // namespace gpuprof::cli
