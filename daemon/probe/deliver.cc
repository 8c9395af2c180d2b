// SPDX-License-Identifier: Apache-2.0
//
// Decoder's second half: from an accepted batch to the sink's calls.
#include <algorithm>
#include <cstring>

#include "daemon/probe/decoder.h"
#include "daemon/probe/record_checks.h"
#include "daemon/probe/text.h"

namespace gpuprof::probe {

EventSource Decoder::source(const gpuprof_ring_header& header) {
  std::string_view comm(header.comm, strnlen(header.comm, sizeof(header.comm)));
  if (!is_plain(comm)) {
    comm_ = sanitize(comm);
    comm = comm_;
  }
  return {.process = process_id(header.start_boottime, header.pid),
          .tid = header.tid,
          .uid = header.uid,
          .exec_id = header.exec_id,
          .watched = (header.flags & GPUPROF_RING_WATCHED) != 0,
          .time_ns = header.time_ns,
          .comm = comm};
}

// Hands out all records in one span. Invalid ones are taken out first and told as lost.
template <class Record, class Call>
void Decoder::deliver_span(const gpuprof_ring_header& header, std::span<const uint8_t> bytes,
                           Call call) {
  std::span records(reinterpret_cast<const Record*>(bytes.data()), header.count);
  const auto valid = [](const Record& record) { return is_valid(record); };
  if (!std::all_of(records.begin(), records.end(), valid)) {
    kept_.resize(bytes.size());
    auto* kept = reinterpret_cast<Record*>(kept_.data());
    auto* end = std::copy_if(records.begin(), records.end(), kept, valid);
    const uint64_t bad = header.count - static_cast<uint64_t>(end - kept);
    records = {kept, end};
    report(process_id(header.start_boottime, header.pid), header.probe, bad,
           LossReason::kMalformed);
  }
  if (records.empty()) return;
  counters_.delivered[header.probe] += records.size();
  call(source(header), records);
}

template <class Record, class Call>
void Decoder::deliver_each(const gpuprof_ring_header& header, std::span<const uint8_t> bytes,
                           Call call) {
  deliver_span<Record>(header, bytes, [&](const EventSource& from, std::span<const Record> all) {
    for (const Record& record : all) call(from, record);
  });
}

void Decoder::deliver_launch(const gpuprof_ring_header& header, std::span<const uint8_t> bytes,
                             const StackSample* stack) {
  deliver_each<gpuprof_launch_v1>(header, bytes, [&](const EventSource& from, const auto& launch) {
    if (stack) {
      counters_.stacks_delivered++;
      if (stack->flags & GPUPROF_STACK_CUT) counters_.stacks_cut++;
      if (stack->flags & GPUPROF_STACK_PARTIAL) counters_.stacks_partial++;
    } else {
      counters_.stacks_lost++;
    }
    sink_.on_launch(from, launch, stack);
  });
}

void Decoder::deliver_name(const gpuprof_ring_header& header, const gpuprof_name_v1& chunk) {
  const EventSource from = source(header);
  const auto whole = names_.add(from.process, chunk);
  counters_.names_incomplete = names_.given_up();
  if (!whole) return;
  if (is_plain(*whole)) {
    sink_.on_name(from, chunk.kind, chunk.id, *whole);
  } else {
    sink_.on_name(from, chunk.kind, chunk.id, sanitize(*whole));
  }
}

void Decoder::deliver_device(const gpuprof_ring_header& header, const gpuprof_device_v1& device) {
  gpuprof_device_v1 clean = device;
  const std::string name = sanitize({device.name, strnlen(device.name, sizeof(device.name) - 1)});
  std::memset(clean.name, 0, sizeof(clean.name));
  std::memcpy(clean.name, name.data(), name.size());
  sink_.on_device(source(header), clean);
}

void Decoder::deliver(const gpuprof_ring_header& header, std::span<const uint8_t> records,
                      const StackSample* stack) {
  switch (header.probe) {
    case GPUPROF_PROBE_PROCESS:
      return deliver_each<gpuprof_process_v1>(
          header, records, [&](const auto& from, const auto& r) { sink_.on_process(from, r); });
    case GPUPROF_PROBE_LAUNCH:
      return deliver_launch(header, records, stack);
    case GPUPROF_PROBE_EXEC:
      return deliver_span<gpuprof_exec_v1>(
          header, records, [&](const auto& from, auto all) { sink_.on_execs(from, all); });
    case GPUPROF_PROBE_PC_SAMPLE:
      return deliver_span<gpuprof_pc_sample_v1>(
          header, records, [&](const auto& from, auto all) { sink_.on_pc_samples(from, all); });
    case GPUPROF_PROBE_NAME:
      return deliver_each<gpuprof_name_v1>(
          header, records, [&](const auto&, const auto& r) { deliver_name(header, r); });
    case GPUPROF_PROBE_MODULE:
      return deliver_span<gpuprof_module_v1>(
          header, records, [&](const auto& from, auto all) { sink_.on_modules(from, all); });
    case GPUPROF_PROBE_DEVICE:
      return deliver_each<gpuprof_device_v1>(
          header, records, [&](const auto&, const auto& r) { deliver_device(header, r); });
    case GPUPROF_PROBE_WINDOW:
      return deliver_each<gpuprof_window_v1>(
          header, records, [&](const auto& from, const auto& r) { sink_.on_window(from, r); });
    case GPUPROF_PROBE_DROP:
      return deliver_each<gpuprof_drop_v1>(
          header, records, [&](const auto& from, const auto& r) { sink_.on_drop(from, r); });
    default:
      return;
  }
}

}  // namespace gpuprof::probe
