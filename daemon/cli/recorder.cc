// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/recorder.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "daemon/target/process.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {
namespace {

const symbolize::SymbolizedPc kUnresolved;
// What unresolved pcs of a process whose maps were never read point into.
const std::vector<symbolize::Module> kUnknownModules = {{"[unknown]", "", 0, UINT64_MAX}};

std::string uuid_text(const uint8_t (&uuid)[16]) {
  if (std::all_of(uuid, uuid + 16, [](uint8_t byte) { return byte == 0; })) return {};
  std::string out = "GPU-";  // as nvidia-smi -L prints it
  char hex[3];
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    std::snprintf(hex, sizeof hex, "%02x", uuid[i]);
    out += hex;
  }
  return out;
}

std::string executable_of(uint32_t pid) {
  char path[PATH_MAX];
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0
             ? target::printable(std::string_view(path, static_cast<size_t>(length)), PATH_MAX)
             : std::string();
}

}  // namespace

ProcessRecord* Recorder::find(ProcessId process) {
  const auto it = processes_.find(process);
  return it == processes_.end() ? nullptr : &it->second;
}

ProcessRecord* Recorder::add_process(ProcessId process, const ShimBaseline& baseline) {
  if (ProcessRecord* known = find(process)) return known;
  if (processes_.size() >= kMaxProcesses) return nullptr;
  ProcessRecord& record = processes_[process];
  record.id = process;
  record.baseline = baseline;
  open_space(record);
  return &record;
}

void Recorder::process_exited(ProcessId process) {
  joiner_.remove_process(process);
  if (ProcessRecord* record = find(process); record != nullptr && record->space)
    record->space->process_exited();
}

void Recorder::open_space(ProcessRecord& record) {
  if (auto stat = target::process_stat(record.id.pid);
      stat && stat->start_ticks == record.id.start_ticks) {
    record.comm = stat->comm;
    record.executable = executable_of(record.id.pid);
  }
  auto space = unwind::AddressSpace::open(record.id, files_);
  if (!space) {
    record.space_error = space.error().message;
    return;
  }
  record.space = std::move(*space);
  record.unwinder = std::make_unique<unwind::Unwinder>(record.space);
  record.symbolizer = std::make_unique<symbolize::Symbolizer>(record.space, symbols_);
}

// BPF delivers launches and executions of watched processes only, so an unknown sender is a child
// whose process_v1 we did not recognise (its parent had exited) or did not get.
ProcessRecord* Recorder::record_of(const probe::EventSource& source) {
  ProcessRecord* record = find(source.process);
  if (record == nullptr) record = add_process(source.process, {});
  if (record == nullptr) return nullptr;
  if (record->first_record_ns == 0) record->first_record_ns = source.time_ns;
  if (record->comm.empty()) record->comm = target::printable(source.comm, 15);
  return record;
}

void Recorder::on_process(const probe::EventSource& source, const gpuprof_process_v1& record) {
  ProcessRecord* known = find(source.process);
  if (!admit_(source.process, record) && known == nullptr) return;
  if (known == nullptr) known = add_process(source.process, {});
  if (known != nullptr) known->injected_ns = source.time_ns;
}

void Recorder::on_launch(const probe::EventSource& source, const gpuprof_launch_v1& launch,
                         const StackSample* stack) {
  ProcessRecord* record = record_of(source);
  if (record == nullptr) {
    joiner_.add_launch(source.process, launch, join::kNoStack, source.tid);
    return;
  }
  ++record->stacks_taken;
  join::StackId id = join::kNoStack;
  if (stack == nullptr || record->unwinder == nullptr) {
    ++record->stack_ends[static_cast<size_t>(unwind::StackEnd::kNoStack)];
  } else {
    record->unwinder->unwind(*stack, scratch_);
    ++record->stack_ends[static_cast<size_t>(scratch_.end)];
    id = stacks_.intern(scratch_.pcs);
    if (id == join::kNoStack && !scratch_.pcs.empty()) ++record->stacks_refused;
  }
  if (record->thread_names.size() < kMaxThreadNames && !record->thread_names.contains(source.tid))
    record->thread_names.emplace(source.tid, target::printable(source.comm, 15));
  joiner_.add_launch(source.process, launch, id, source.tid);
}

void Recorder::on_execs(const probe::EventSource& source, std::span<const gpuprof_exec_v1> execs) {
  ProcessRecord* record = record_of(source);
  joiner_.add_execs(source.process, execs);
  if (record == nullptr) return;
  record->executions += execs.size();
  for (const gpuprof_exec_v1& exec : execs) {
    record->gpu_time_ns += exec.end_ns - exec.start_ns;
    if (record->busy_until_ns.size() >= kMaxDevices &&
        !record->busy_until_ns.contains(exec.device_id))
      continue;
    uint64_t& until = record->busy_until_ns[exec.device_id];
    if (exec.end_ns <= until) continue;  // records come nearly in the order of their ends
    record->busy_ns += exec.end_ns - std::max(exec.start_ns, until);
    until = exec.end_ns;
  }
}

void Recorder::on_name(const probe::EventSource& source, uint32_t kind, uint64_t id,
                       std::string_view name) {
  if (kind != GPUPROF_NAME_FUNCTION) return;
  ProcessRecord* record = record_of(source);
  if (record == nullptr || record->kernel_names.contains(id)) return;
  if (name_bytes_ + name.size() > kMaxNameBytes) {
    ++record->names_refused;
    return;
  }
  name_bytes_ += name.size();
  record->kernel_names.emplace(id, name);
}

void Recorder::on_device(const probe::EventSource& source, const gpuprof_device_v1& device) {
  ProcessRecord* record = record_of(source);
  if (record == nullptr) return;
  if (record->devices.size() < kMaxDevices || record->devices.contains(device.device_id))
    record->devices[device.device_id] = device;
}

void Recorder::apply_drop(ProcessRecord& record, uint32_t drop_class, uint64_t total) {
  if (drop_class == GPUPROF_DROP_INVALID || drop_class >= GPUPROF_DROP_CLASS_COUNT) return;
  const uint64_t before = record.baseline.drops[drop_class];
  const uint64_t since = total > before ? total - before : 0;
  if (since < record.drops[drop_class]) return;  // totals only grow: an older report came late
  record.drops[drop_class] = since;
  if (join::is_execution_loss(drop_class)) joiner_.set_shim_loss(record.id, drop_class, since);
}

void Recorder::apply_emitted(ProcessRecord& record, uint32_t probe, uint64_t total) {
  if (probe == GPUPROF_PROBE_INVALID || probe >= GPUPROF_PROBE_COUNT) return;
  const uint64_t before = record.baseline.emitted[probe];
  const uint64_t since = total > before ? total - before : 0;
  record.emitted[probe] = std::max(record.emitted[probe], since);
  if (probe != GPUPROF_PROBE_EXEC) return;
  record.emitted_known = true;
  joiner_.set_emitted(record.id, record.emitted[probe]);
}

void Recorder::on_drop(const probe::EventSource& source, const gpuprof_drop_v1& drop) {
  ProcessRecord* record = record_of(source);
  if (record == nullptr) return;
  if (drop.drop_class == GPUPROF_DROP_FINAL_TOTAL) {
    apply_emitted(*record, drop.detail, drop.total);
  } else {
    apply_drop(*record, drop.drop_class, drop.total);
  }
}

void Recorder::set_totals(ProcessId process, const target::ShimStatus& status) {
  ProcessRecord* record = find(process);
  if (record == nullptr) return;
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_COUNT; ++probe)
    apply_emitted(*record, probe, status.probe_totals[probe]);
  for (uint32_t drop_class = 1; drop_class < GPUPROF_DROP_CLASS_COUNT; ++drop_class) {
    if (drop_class != GPUPROF_DROP_FINAL_TOTAL)
      apply_drop(*record, drop_class, status.drop_totals[drop_class]);
  }
}

void Recorder::on_loss(ProcessId process, uint32_t probe, uint64_t records,
                       probe::LossReason reason) {
  joiner_.add_ring_loss(process, probe, records, static_cast<uint32_t>(reason));
  ProcessRecord* record = find(process);
  if (record == nullptr || probe >= GPUPROF_PROBE_COUNT) return;
  record->lost[probe][static_cast<size_t>(reason)] += records;
}

Recorder::Totals Recorder::totals() const {
  Totals out;
  for (const auto& [id, record] : processes_) {
    out.executions += record.executions;
    out.gpu_time_ns += record.gpu_time_ns;
    out.busy_ns += record.busy_ns;
    out.devices = std::max(out.devices, record.busy_until_ns.size());
    for (const auto& reasons : record.lost) {
      for (const uint64_t count : reasons) out.lost += count;
    }
    for (uint32_t drop_class = 0; drop_class < GPUPROF_DROP_CLASS_COUNT; ++drop_class) {
      if (join::is_execution_loss(drop_class)) out.lost += record.drops[drop_class];
    }
  }
  return out;
}

const symbolize::SymbolizedPc& Recorder::resolve(ProcessId process, uint64_t pc) {
  ProcessRecord* record = find(process);
  return record != nullptr && record->symbolizer ? record->symbolizer->resolve(pc) : kUnresolved;
}

const std::vector<symbolize::Module>& Recorder::modules(ProcessId process) {
  ProcessRecord* record = find(process);
  return record != nullptr && record->symbolizer ? record->symbolizer->modules() : kUnknownModules;
}

join::ProcessInfo Recorder::process(ProcessId process) {
  const ProcessRecord* record = find(process);
  return record == nullptr ? join::ProcessInfo()
                           : join::ProcessInfo{record->comm, record->executable};
}

std::string Recorder::thread_name(ProcessId process, uint32_t tid) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->thread_names.find(tid);
  return it == record->thread_names.end() ? std::string() : it->second;
}

join::DeviceInfo Recorder::device(ProcessId process, uint32_t device_id) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->devices.find(device_id);
  if (it == record->devices.end()) return {};
  return {target::printable(std::string_view(it->second.name, sizeof it->second.name)),
          uuid_text(it->second.uuid)};
}

std::string_view Recorder::kernel_name(ProcessId process, uint64_t name_id) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->kernel_names.find(name_id);
  return it == record->kernel_names.end() ? std::string_view() : it->second;
}

}  // namespace gpuprof::cli
