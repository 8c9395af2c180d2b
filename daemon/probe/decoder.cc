// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/decoder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "daemon/probe/record_checks.h"
#include "daemon/probe/text.h"

namespace gpuprof::probe {
namespace {

constexpr int64_t kAnyAge = std::numeric_limits<int64_t>::max();

constexpr std::array<LossReason, GPUPROF_LOSS_COUNT> kBpfReasons = {
    LossReason::kRingFull, LossReason::kQuota, LossReason::kFault, LossReason::kMalformed};

}  // namespace

Decoder::Decoder(const DecoderOptions& options, EventSink& sink, LossSource& losses)
    : options_(options), sink_(sink), losses_(losses) {}

const gpuprof_ring_header* Decoder::check_header(std::span<const uint8_t> entry) {
  if (entry.size() < sizeof(gpuprof_ring_header)) return nullptr;
  const auto* header = reinterpret_cast<const gpuprof_ring_header*>(entry.data());
  const size_t bytes = gpuprof_record_bytes(header->probe);
  if (bytes == 0 || header->count == 0 || header->count > GPUPROF_MAX_BATCH_RECORDS) return nullptr;
  if (bytes * header->count > GPUPROF_MAX_BATCH_BYTES) return nullptr;
  if (header->payload_bytes > entry.size() - sizeof(*header)) return nullptr;
  return header;
}

void Decoder::on_events_entry(std::span<const uint8_t> entry, int64_t now_ns) {
  const gpuprof_ring_header* header = check_header(entry);
  if (!header ||
      header->payload_bytes != size_t{gpuprof_record_bytes(header->probe)} * header->count) {
    counters_.malformed++;
    return;
  }
  arrive(*header, entry.subspan(sizeof(*header), header->payload_bytes), nullptr, now_ns);
}

void Decoder::on_stacks_entry(std::span<const uint8_t> entry, int64_t now_ns) {
  constexpr size_t kFixed = sizeof(gpuprof_launch_v1) + sizeof(gpuprof_stack_head);
  const gpuprof_ring_header* header = check_header(entry);
  if (!header || header->probe != GPUPROF_PROBE_LAUNCH || header->count != 1 ||
      header->payload_bytes < kFixed) {
    counters_.malformed++;
    return;
  }
  if ((header->flags & GPUPROF_RING_PYTHON) != 0) {
    on_python_entry(*header, entry.subspan(sizeof(*header), header->payload_bytes));
    return;
  }
  const auto launch = entry.subspan(sizeof(*header), sizeof(gpuprof_launch_v1));
  const auto* head =
      reinterpret_cast<const gpuprof_stack_head*>(entry.data() + sizeof(*header) + launch.size());
  if (head->stack_bytes > GPUPROF_STACK_MAX_BYTES ||
      head->stack_bytes != header->payload_bytes - kFixed) {
    counters_.malformed++;
    return;
  }
  const PythonFrames::Frames& python = python_.take(*header);
  const StackSample stack{
      .regs = std::span(head->regs),
      .stack_address = head->stack_address,
      .stack_top = head->stack_top,
      .bytes = entry.subspan(sizeof(*header) + kFixed, head->stack_bytes),
      .flags = head->flags,
      .python = python.frames,
      .python_end = python.end,
  };
  arrive(*header, launch, &stack, now_ns);
}

void Decoder::on_python_entry(const gpuprof_ring_header& header, std::span<const uint8_t> payload) {
  if (payload.size() != sizeof(gpuprof_python_chunk) ||
      !python_.add(header, *reinterpret_cast<const gpuprof_python_chunk*>(payload.data())))
    counters_.malformed++;
}

ProcessId Decoder::process_id(uint64_t start_boottime, uint32_t pid) const {
  const uint64_t start_ns = start_boottime + static_cast<uint64_t>(options_.boottime_offset_ns);
  return {pid, start_ns / kNsPerStartTick};
}

Decoder::Process& Decoder::process_of(uint64_t start_boottime, uint32_t pid, int64_t now_ns) {
  const ProcessId id = process_id(start_boottime, pid);
  auto found = processes_.find(id);
  if (found == processes_.end()) {
    if (processes_.size() >= options_.max_processes) evict();
    found = processes_.emplace(id, Process{}).first;
    found->second.id = id;
    found->second.start_boottime = start_boottime;
  }
  found->second.last_active_ns = now_ns;
  return found->second;
}

// An eighth at a time, so that the scan is paid once in thousands of new processes.
void Decoder::evict() {
  std::vector<std::pair<int64_t, ProcessId>> by_age;
  by_age.reserve(processes_.size());
  for (const auto& [id, process] : processes_) by_age.emplace_back(process.last_active_ns, id);
  const size_t count = by_age.size() / 8 + 1;
  std::partial_sort(by_age.begin(), by_age.begin() + static_cast<ptrdiff_t>(count), by_age.end());
  for (size_t i = 0; i < count; i++) forget(by_age[i].second);
}

Decoder::Slot& Decoder::slot_of(Process& process, const gpuprof_ring_header& header) {
  auto image = std::find_if(process.images.begin(), process.images.end(),
                            [&](const Image& i) { return i.exec_id == header.exec_id; });
  if (image == process.images.end()) {
    if (process.images.size() == kMaxImages) {
      close_image(process, process.images.front(), kAnyAge);
      process.images.erase(process.images.begin());
    }
    image = process.images.insert(process.images.end(), Image{});
    image->exec_id = header.exec_id;
  }
  auto& slot = image->slots[header.probe];
  if (!slot) slot = std::make_unique<Slot>();
  return *slot;
}

void Decoder::arrive(const gpuprof_ring_header& header, std::span<const uint8_t> records,
                     const StackSample* stack, int64_t now_ns) {
  Process& process = process_of(header.start_boottime, header.pid, now_ns);
  Slot& slot = slot_of(process, header);
  const Stream::Verdict verdict = slot.stream.accept(header.seq, header.count, now_ns);
  const bool is_launch = header.probe == GPUPROF_PROBE_LAUNCH;
  switch (verdict) {
    case Stream::Verdict::kDeliver:
      slot.last_cookie = header.cookie;
      deliver(header, records, stack);
      pop_ready(slot);
      if (slot.stream.has_gaps()) with_gaps_.insert(process.id);
      return;
    case Stream::Verdict::kHold: {
      slot.last_cookie = header.cookie;
      if (is_launch) deliver(header, records, stack);
      HeldBatch batch{.header = header, .records = {}, .arrived_ns = now_ns};
      if (!is_launch) batch.records.assign(records.begin(), records.end());
      held_bytes_ += batch.bytes();
      slot.stream.hold(std::move(batch));
      with_gaps_.insert(process.id);
      if (held_bytes_ > options_.max_held_bytes) close_gaps(process, kAnyAge);
      return;
    }
    case Stream::Verdict::kDuplicate:
    case Stream::Verdict::kLate:
    case Stream::Verdict::kMalformed:
      refuse(process, slot, header, verdict);
      return;
  }
}

void Decoder::refuse(Process& process, Slot& slot, const gpuprof_ring_header& header,
                     Stream::Verdict verdict) {
  if (verdict == Stream::Verdict::kLate) {
    counters_.late_records += header.count;
  } else if (verdict == Stream::Verdict::kMalformed) {
    counters_.malformed++;
    report(process.id, header.probe, header.count, LossReason::kMalformed);
  } else {
    counters_.duplicate_records += header.count;
    if (header.cookie != slot.last_cookie) {
      duplicate_attaches_.emplace_back(slot.last_cookie, header.cookie);
    }
  }
}

void Decoder::pop_ready(Slot& slot) {
  while (auto batch = slot.stream.pop()) {
    held_bytes_ -= batch->bytes();
    if (!batch->records.empty()) deliver(batch->header, batch->records, nullptr);
  }
}

void Decoder::close_image(Process& process, Image& image, int64_t deadline_ns) {
  for (uint32_t probe = 0; probe < GPUPROF_PROBE_COUNT; probe++) {
    if (!image.slots[probe]) continue;
    Slot& slot = *image.slots[probe];
    while (const uint64_t lost = slot.stream.close_gap(deadline_ns)) {
      tell_loss(process, probe, lost);
      pop_ready(slot);
    }
  }
}

void Decoder::close_gaps(Process& process, int64_t deadline_ns) {
  for (Image& image : process.images) close_image(process, image, deadline_ns);
}

void Decoder::close_gaps(int64_t now_ns) {
  for (auto it = with_gaps_.begin(); it != with_gaps_.end();) {
    const auto found = processes_.find(*it);
    bool open = false;
    if (found != processes_.end()) {
      close_gaps(found->second, now_ns - options_.reorder_window_ns);
      for (const Image& image : found->second.images) {
        for (const auto& slot : image.slots) open = open || (slot && slot->stream.has_gaps());
      }
    }
    it = open ? std::next(it) : with_gaps_.erase(it);
  }
}

void Decoder::restart() {
  for (auto& [id, process] : processes_) {
    close_gaps(process, kAnyAge);
    process.images.clear();
  }
  with_gaps_.clear();
}

void Decoder::restart(uint32_t pid) {
  for (auto& [id, process] : processes_) {
    if (id.pid != pid) continue;
    close_gaps(process, kAnyAge);
    process.images.clear();
  }
}

void Decoder::flush() {
  restart();
  for (const gpuprof_stream_key& key : losses_.lossy_streams()) {
    if (gpuprof_record_bytes(key.probe) == 0) continue;
    tell_trailing(process_of(key.start_boottime, key.pid, 0), key.probe);
  }
}

void Decoder::forget(ProcessId id) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  Process& process = found->second;
  close_gaps(process, kAnyAge);
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_COUNT; probe++) {
    tell_trailing(process, probe);
    losses_.forget({process.start_boottime, id.pid, probe});
  }
  names_.forget(id);
  counters_.names_incomplete = names_.given_up();
  with_gaps_.erase(id);
  processes_.erase(found);
}

// The numbers say how many, BPF says why; what BPF knows nothing of is a plain gap.
void Decoder::tell_loss(Process& process, uint32_t probe, uint64_t records) {
  const auto counted = losses_.losses({process.start_boottime, process.id.pid, probe});
  for (uint32_t i = 0; counted && i < GPUPROF_LOSS_COUNT; i++) {
    uint64_t& told = process.told[probe][i];
    const uint64_t known = counted->records[i] > told ? counted->records[i] - told : 0;
    const uint64_t part = std::min(records, known);
    told += part;
    records -= part;
    report(process.id, probe, part, kBpfReasons[i]);
  }
  report(process.id, probe, records, LossReason::kGap);
}

// Lost before the first or after the last record that arrived: no number tells of them.
void Decoder::tell_trailing(Process& process, uint32_t probe) {
  const auto counted = losses_.losses({process.start_boottime, process.id.pid, probe});
  for (uint32_t i = 0; counted && i < GPUPROF_LOSS_COUNT; i++) {
    uint64_t& told = process.told[probe][i];
    if (counted->records[i] <= told) continue;
    report(process.id, probe, counted->records[i] - told, kBpfReasons[i]);
    told = counted->records[i];
  }
}

void Decoder::report(ProcessId process, uint32_t probe, uint64_t records, LossReason reason) {
  if (records == 0) return;
  counters_.lost[probe][static_cast<size_t>(reason)] += records;
  sink_.on_loss(process, probe, records, reason);
}

std::vector<std::pair<uint64_t, uint64_t>> Decoder::take_duplicate_attaches() {
  return std::exchange(duplicate_attaches_, {});
}

}  // namespace gpuprof::probe
