// SPDX-License-Identifier: Apache-2.0
//
// Ring entries: the header is BPF's, the records behind it are whatever a process fired a probe
// with.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/probe/decoder.h"
#include "daemon/probe/event_sink.h"
#include "proto/ring_abi.h"

namespace {

using namespace gpuprof;
using namespace gpuprof::probe;

class NoLosses : public LossSource {
 public:
  std::optional<gpuprof_stream_losses> losses(const gpuprof_stream_key&) override { return {}; }
  std::vector<gpuprof_stream_key> lossy_streams() override { return {}; }
  void forget(const gpuprof_stream_key&) override {}
};

// Counts, and reads every byte that it is shown.
class ReadingSink : public EventSink {
 public:
  void on_process(const EventSource&, const gpuprof_process_v1& r) override { take(r); }
  void on_launch(const EventSource&, const gpuprof_launch_v1& r, const StackSample* s) override {
    take(r);
    if (s == nullptr) return;
    read(s->bytes.data(), s->bytes.size());
    read(s->python.data(), s->python.size_bytes());
  }
  void on_execs(const EventSource&, std::span<const gpuprof_exec_v1> r) override { take_all(r); }
  void on_pc_samples(const EventSource&, std::span<const gpuprof_pc_sample_v1> r) override {
    take_all(r);
  }
  void on_name(const EventSource&, uint32_t, uint64_t, std::string_view name) override {
    for (const char c : name) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) std::abort();
    }
  }
  void on_modules(const EventSource&, std::span<const gpuprof_module_v1> r) override {
    take_all(r);
  }
  void on_device(const EventSource&, const gpuprof_device_v1& r) override { take(r); }
  void on_window(const EventSource&, const gpuprof_window_v1& r) override { take(r); }
  void on_drop(const EventSource&, const gpuprof_drop_v1& r) override { take(r); }
  void on_loss(ProcessId, uint32_t probe, uint64_t, LossReason) override {
    if (probe >= GPUPROF_PROBE_COUNT) std::abort();
  }

 private:
  static void read(const void* at, size_t size) {
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < size; ++i) sum = sum + static_cast<const uint8_t*>(at)[i];
  }
  template <class Record>
  static void take(const Record& record) {
    read(&record, sizeof(record));
  }
  template <class Record>
  static void take_all(std::span<const Record> records) {
    read(records.data(), records.size_bytes());
  }
};

constexpr size_t kHeader = sizeof(gpuprof_ring_header);

}  // namespace

// Input: entries of 2 bytes of length (the highest bit: of the ring for stacks) and as many bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  NoLosses losses;
  ReadingSink sink;
  DecoderOptions options;
  options.max_held_bytes = 1 << 16;
  options.max_processes = 4;
  Decoder decoder(options, sink, losses);
  int64_t now_ns = 1'000'000'000;
  for (size_t at = 0; at + 2 <= size;) {
    const uint16_t length = static_cast<uint16_t>(data[at] | data[at + 1] << 8);
    at += 2;
    const size_t bytes = std::min<size_t>(length & 0x7fff, size - at);
    // Entries are 8-byte aligned; a copy of the exact size lets ASan see what lies behind it.
    std::vector<uint64_t> aligned((bytes + 7) / 8);
    if (bytes != 0) std::memcpy(aligned.data(), data + at, bytes);
    if (bytes >= kHeader) {
      // BPF sets these; a process cannot.
      gpuprof_ring_header header;
      std::memcpy(&header, aligned.data(), kHeader);
      header.pid = 1 + header.pid % 6;
      header.start_boottime = 500'000'000;
      header.seq %= 4096;
      header.payload_bytes = static_cast<uint32_t>(bytes - kHeader);
      std::memcpy(aligned.data(), &header, kHeader);
    }
    const std::span<const uint8_t> entry(reinterpret_cast<const uint8_t*>(aligned.data()), bytes);
    if ((length & 0x8000) != 0) {
      decoder.on_stacks_entry(entry, now_ns);
    } else {
      decoder.on_events_entry(entry, now_ns);
    }
    now_ns += 50'000'000;
    decoder.close_gaps(now_ns);
    at += bytes;
  }
  (void)decoder.take_duplicate_attaches();
  decoder.restart(2);
  decoder.forget({1, 50});
  decoder.flush();
  return 0;
}
