// SPDX-License-Identifier: Apache-2.0
//
// Decoder turns ring entries into calls of an EventSink: validated, in order, once each, with every
// missing record told.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/probe/event_sink.h"
#include "daemon/probe/name_assembler.h"
#include "daemon/probe/probe_session.h"
#include "daemon/probe/python_frames.h"
#include "daemon/probe/stream.h"

namespace gpuprof::probe {

// What BPF counted as lost, per stream and reason.
class LossSource {
 public:
  virtual ~LossSource() = default;
  virtual std::optional<gpuprof_stream_losses> losses(const gpuprof_stream_key& key) = 0;
  virtual std::vector<gpuprof_stream_key> lossy_streams() = 0;
  virtual void forget(const gpuprof_stream_key& key) = 0;
};

struct DecoderOptions {
  int64_t boottime_offset_ns = 0;  // of this process's time namespace
  int64_t reorder_window_ns = 250'000'000;
  uint64_t max_held_bytes = 32u << 20;  // of all streams; beyond it gaps are closed at once
  size_t max_processes = 16384;         // the least recently active make room
};

// Batches are delivered in the order of their numbers. Launches are delivered as they come: their
// stacks are valid only while the ring entry is, and nothing depends on their order.
// Not thread-safe; spans handed in must be 8-byte aligned, as ring entries are.
class Decoder {
 public:
  Decoder(const DecoderOptions& options, EventSink& sink, LossSource& losses);

  void on_events_entry(std::span<const uint8_t> entry, int64_t now_ns);
  void on_stacks_entry(std::span<const uint8_t> entry, int64_t now_ns);

  // Closes the gaps that are older than the reorder window. Call it after both rings were drained.
  void close_gaps(int64_t now_ns);
  // Closes all gaps and starts all streams anew: the probes are about to be, or were, detached.
  void restart();
  // restart(), and reports what was lost after the last record of each stream.
  void flush();
  // As flush(), for one process; its state is dropped.
  void forget(ProcessId process);
  // As restart(), for one process number: it is watched no more.
  void restart(uint32_t pid);

  [[nodiscard]] const ProbeCounters& counters() const { return counters_; }
  // Pairs of attach cookies that delivered the same records since the last call: one inode.
  std::vector<std::pair<uint64_t, uint64_t>> take_duplicate_attaches();

 private:
  struct Slot {
    Stream stream;
    uint64_t last_cookie = 0;
  };
  // exec starts a new image, whose numbers start anew.
  struct Image {
    uint32_t exec_id = 0;
    std::array<std::unique_ptr<Slot>, GPUPROF_PROBE_COUNT> slots;
  };
  struct Process {
    ProcessId id;
    uint64_t start_boottime = 0;
    int64_t last_active_ns = 0;
    std::vector<Image> images;
    // BPF's counts that were told already.
    std::array<std::array<uint64_t, GPUPROF_LOSS_COUNT>, GPUPROF_PROBE_COUNT> told{};
  };
  static constexpr size_t kMaxImages = 4;

  void on_python_entry(const gpuprof_ring_header& header, std::span<const uint8_t> payload);
  const gpuprof_ring_header* check_header(std::span<const uint8_t> entry);
  ProcessId process_id(uint64_t start_boottime, uint32_t pid) const;
  Process& process_of(uint64_t start_boottime, uint32_t pid, int64_t now_ns);
  Slot& slot_of(Process& process, const gpuprof_ring_header& header);
  void evict();

  void arrive(const gpuprof_ring_header& header, std::span<const uint8_t> records,
              const StackSample* stack, int64_t now_ns);
  void refuse(Process& process, Slot& slot, const gpuprof_ring_header& header,
              Stream::Verdict verdict);
  void deliver(const gpuprof_ring_header& header, std::span<const uint8_t> records,
               const StackSample* stack);
  void pop_ready(Slot& slot);
  void close_gaps(Process& process, int64_t deadline_ns);
  void close_image(Process& process, Image& image, int64_t deadline_ns);
  void tell_loss(Process& process, uint32_t probe, uint64_t records);
  void tell_trailing(Process& process, uint32_t probe);
  void report(ProcessId process, uint32_t probe, uint64_t records, LossReason reason);

  template <class Record, class Call>
  void deliver_each(const gpuprof_ring_header& header, std::span<const uint8_t> bytes, Call call);
  template <class Record, class Call>
  void deliver_span(const gpuprof_ring_header& header, std::span<const uint8_t> bytes, Call call);
  void deliver_launch(const gpuprof_ring_header& header, std::span<const uint8_t> bytes,
                      const StackSample* stack);
  void deliver_name(const gpuprof_ring_header& header, const gpuprof_name_v1& chunk);
  void deliver_device(const gpuprof_ring_header& header, const gpuprof_device_v1& device);
  EventSource source(const gpuprof_ring_header& header);

  DecoderOptions options_;
  EventSink& sink_;
  LossSource& losses_;
  ProbeCounters counters_;
  NameAssembler names_;
  PythonFrames python_;
  std::unordered_map<ProcessId, Process> processes_;
  std::unordered_set<ProcessId> with_gaps_;
  uint64_t held_bytes_ = 0;
  std::string comm_;           // backs EventSource::comm where it had to be sanitised
  std::vector<uint8_t> kept_;  // backs the valid records of a batch with invalid ones
  std::vector<std::pair<uint64_t, uint64_t>> duplicate_attaches_;
};

}  // namespace gpuprof::probe
