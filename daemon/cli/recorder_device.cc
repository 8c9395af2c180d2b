// SPDX-License-Identifier: Apache-2.0
//
// The recorder's part for PC sampling.
#include "daemon/cli/recorder.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {
namespace {

constexpr size_t kMaxStallName = 128;  // CUPTI_STALL_REASON_STRING_SIZE

}  // namespace

void Recorder::on_pc_samples(const probe::EventSource& source,
                             std::span<const gpuprof_pc_sample_v1> samples) {
  const ProcessRecord* record = record_of(source);
  joiner_.add_pc_samples(record != nullptr ? record->id : image_of(source), samples);
  if (record == nullptr) return;
  for (const gpuprof_pc_sample_v1& sample : samples)
    device_modules_.want(record->id, sample.cubin_key);
}

void Recorder::on_modules(const probe::EventSource& source,
                          std::span<const gpuprof_module_v1> modules) {
  const ProcessRecord* record = consumer_of(source, modules.size());
  if (record == nullptr) return;
  for (const gpuprof_module_v1& module : modules) device_modules_.note(record->id, module);
}

void Recorder::on_window(const probe::EventSource& source, const gpuprof_window_v1& window) {
  const ProcessRecord* record = record_of(source);
  joiner_.add_window(record != nullptr ? record->id : image_of(source), window);
}

void Recorder::take_stall_name(ProcessRecord& record, uint64_t id, std::string_view name) {
  if (record.stall_names.contains(id)) return;
  const size_t limit = record.stall_names.size() < kReservedStallNames
                           ? 2 * kMaxStallNamesInAll
                           : size_t{kMaxStallNamesInAll};
  if (record.stall_names.size() >= kMaxStallNames || stall_names_ >= limit) {
    ++record.names_refused;
    return;
  }
  ++stall_names_;
  record.stall_names.emplace(id, target::printable(name, kMaxStallName));
}

const join::DeviceModule& Recorder::device_module(ProcessId process, uint64_t cubin_key) {
  return device_modules_.module(process, cubin_key);
}

std::string_view Recorder::stall_name(ProcessId process, uint32_t device_id, uint32_t stall_index) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->stall_names.find(uint64_t{device_id} << 32 | stall_index);
  return it == record->stall_names.end() ? std::string_view() : it->second;
}

}  // namespace gpuprof::cli
