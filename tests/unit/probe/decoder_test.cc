// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "daemon/probe/record_checks.h"

namespace gpuprof::probe {
namespace {

constexpr uint64_t kStart = 5'000'000'000;  // ns since boot: 500 ticks
constexpr ProcessId kProcess{42, 500};

class FakeLosses : public LossSource {
 public:
  std::optional<gpuprof_stream_losses> losses(const gpuprof_stream_key& key) override {
    const auto found = table.find(key.probe);
    if (key.pid != kProcess.pid || found == table.end()) return std::nullopt;
    return found->second;
  }
  std::vector<gpuprof_stream_key> lossy_streams() override {
    std::vector<gpuprof_stream_key> keys;
    for (const auto& [probe, losses] : table) keys.push_back({kStart, kProcess.pid, probe});
    return keys;
  }
  void forget(const gpuprof_stream_key& key) override { table.erase(key.probe); }

  std::map<uint32_t, gpuprof_stream_losses> table;
};

class CountingSink : public EventSink {
 public:
  void on_process(const EventSource&, const gpuprof_process_v1&) override { processes++; }
  void on_launch(const EventSource&, const gpuprof_launch_v1& r, const StackSample* s) override {
    launches.push_back(r.correlation);
    stacks += s != nullptr;
    if (s) {
      stack_bytes = s->bytes.size();
      python_frames = s->python.size();
      python_end = s->python_end;
    }
  }
  void on_execs(const EventSource& from, std::span<const gpuprof_exec_v1> r) override {
    process = from.process;
    comm = from.comm;
    for (const auto& exec : r) execs.push_back(exec.correlation);
  }
  void on_pc_samples(const EventSource&, std::span<const gpuprof_pc_sample_v1>) override {}
  void on_name(const EventSource&, uint32_t, uint64_t, std::string_view n) override { name = n; }
  void on_modules(const EventSource&, std::span<const gpuprof_module_v1>) override {}
  void on_device(const EventSource&, const gpuprof_device_v1& d) override { device = d.name; }
  void on_window(const EventSource&, const gpuprof_window_v1&) override {}
  void on_drop(const EventSource&, const gpuprof_drop_v1&) override {}
  void on_loss(ProcessId, uint32_t probe, uint64_t records, LossReason reason) override {
    lost[{probe, reason}] += records;
  }

  int processes = 0;
  std::vector<uint32_t> launches;
  int stacks = 0;
  size_t stack_bytes = 0;
  size_t python_frames = 0;  // of the last launch
  uint32_t python_end = 0;
  std::vector<uint32_t> execs;
  ProcessId process;
  std::string comm;
  std::string name;
  std::string device;
  std::map<std::pair<uint32_t, LossReason>, uint64_t> lost;
};

gpuprof_ring_header header(uint32_t probe, uint32_t count, uint64_t seq) {
  gpuprof_ring_header h{};
  h.seq = seq;
  h.cookie = 1;
  h.start_boottime = kStart;
  h.probe = probe;
  h.count = count;
  h.pid = kProcess.pid;
  h.payload_bytes = gpuprof_record_bytes(probe) * count;
  std::memcpy(h.comm, "python", 7);
  return h;
}

gpuprof_exec_v1 exec(uint64_t n) {
  gpuprof_exec_v1 e{};
  e.start_ns = e.end_ns = 1;
  e.kind = GPUPROF_KIND_KERNEL;
  e.correlation = static_cast<uint32_t>(n);
  return e;
}

class DecoderTest : public testing::Test {
 protected:
  template <class Record>
  void feed(gpuprof_ring_header h, const std::vector<Record>& records, size_t slack = 0) {
    std::vector<uint8_t> entry(sizeof(h) + records.size() * sizeof(Record) + slack);
    std::memcpy(entry.data(), &h, sizeof(h));
    std::memcpy(entry.data() + sizeof(h), records.data(), records.size() * sizeof(Record));
    decoder.on_events_entry(entry, now_ns);
  }
  void execs(uint64_t seq, uint32_t count, uint64_t cookie = 1, uint32_t exec_id = 0) {
    std::vector<gpuprof_exec_v1> records;
    for (uint32_t i = 0; i < count; i++) records.push_back(exec(seq + i));
    gpuprof_ring_header h = header(GPUPROF_PROBE_EXEC, count, seq);
    h.cookie = cookie;
    h.exec_id = exec_id;
    feed(h, records, 100);
  }
  void launch(uint64_t seq, uint32_t stack_bytes, bool lie = false) {
    gpuprof_launch_v1 record{};
    record.weight_q32 = 1ull << 32;
    record.kind = GPUPROF_KIND_KERNEL;
    record.correlation = static_cast<uint32_t>(seq);
    gpuprof_stack_head head{};
    head.stack_bytes = stack_bytes + (lie ? 1 : 0);
    gpuprof_ring_header h = header(GPUPROF_PROBE_LAUNCH, 1, seq);
    h.payload_bytes = static_cast<uint32_t>(sizeof(record) + sizeof(head)) + stack_bytes;
    std::vector<uint8_t> entry(sizeof(h) + h.payload_bytes);
    std::memcpy(entry.data(), &h, sizeof(h));
    std::memcpy(&entry[sizeof(h)], &record, sizeof(record));
    std::memcpy(&entry[sizeof(h) + sizeof(record)], &head, sizeof(head));
    decoder.on_stacks_entry(entry, now_ns);
  }
  void python(uint64_t seq, uint32_t count, uint32_t missing_bytes = 0) {
    gpuprof_python_chunk chunk{};
    chunk.count = count;
    chunk.end = GPUPROF_PYTHON_WHOLE;
    gpuprof_ring_header h = header(GPUPROF_PROBE_LAUNCH, 1, seq);
    h.flags |= GPUPROF_RING_PYTHON;
    h.payload_bytes = sizeof(chunk) - missing_bytes;
    std::vector<uint8_t> entry(sizeof(h) + h.payload_bytes);
    std::memcpy(entry.data(), &h, sizeof(h));
    std::memcpy(&entry[sizeof(h)], &chunk, h.payload_bytes);
    decoder.on_stacks_entry(entry, now_ns);
  }
  uint64_t lost(uint32_t probe, LossReason reason) { return sink.lost[{probe, reason}]; }

  CountingSink sink;
  FakeLosses losses;
  DecoderOptions options{.boottime_offset_ns = 0,
                         .reorder_window_ns = 100,
                         .max_held_bytes = 1 << 20,
                         .max_processes = 64};
  Decoder decoder{options, sink, losses};
  int64_t now_ns = 0;
};

TEST_F(DecoderTest, DeliversInOrderOfNumbers) {
  execs(0, 2);
  execs(4, 2);
  execs(2, 2);
  EXPECT_EQ(sink.execs, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(sink.process, kProcess);
  EXPECT_EQ(sink.comm, "python");
  EXPECT_TRUE(sink.lost.empty());
}

TEST_F(DecoderTest, GapsCloseAfterTheWindowWithBpfsReasons) {
  execs(0, 1);
  execs(101, 1);
  losses.table[GPUPROF_PROBE_EXEC].records[GPUPROF_LOSS_FULL] = 60;
  losses.table[GPUPROF_PROBE_EXEC].records[GPUPROF_LOSS_QUOTA] = 30;
  now_ns = 99;
  decoder.close_gaps(now_ns);
  EXPECT_TRUE(sink.lost.empty());
  EXPECT_EQ(sink.execs.size(), 1u);
  now_ns = 100;
  decoder.close_gaps(now_ns);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kRingFull), 60u);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kQuota), 30u);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kGap), 10u);
  EXPECT_EQ(sink.execs.size(), 2u);
  // What BPF counted after that, with nothing behind it, is told once.
  losses.table[GPUPROF_PROBE_EXEC].records[GPUPROF_LOSS_FULL] = 65;
  decoder.flush();
  decoder.flush();
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kRingFull), 65u);
}

TEST_F(DecoderTest, DuplicateAttachIsSeenAndDeliversOnce) {
  execs(0, 5, 1);
  execs(0, 5, 2);
  execs(5, 5, 2);
  execs(5, 5, 1);
  launch(0, 16);
  launch(0, 16);
  EXPECT_EQ(sink.execs.size(), 10u);
  EXPECT_EQ(sink.launches.size(), 1u);
  EXPECT_EQ(decoder.counters().duplicate_records, 11u);
  const auto pairs = decoder.take_duplicate_attaches();
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs[0], (std::pair<uint64_t, uint64_t>(1, 2)));
  EXPECT_TRUE(decoder.take_duplicate_attaches().empty());
}

TEST_F(DecoderTest, ExecStartsNumbersAnew) {
  execs(100, 4, 1, 7);
  execs(0, 4, 1, 8);
  execs(4, 4, 1, 8);
  execs(104, 4, 1, 7);  // read late from the other ring
  EXPECT_EQ(sink.execs.size(), 16u);
  decoder.flush();
  EXPECT_TRUE(sink.lost.empty());
  EXPECT_EQ(decoder.counters().duplicate_records, 0u);
}

TEST_F(DecoderTest, LaunchesComeAtOnceAndAreCountedAcrossRings) {
  launch(0, 100);
  launch(2, 100);
  launch(4, 0);
  EXPECT_EQ(sink.launches, (std::vector<uint32_t>{0, 2, 4}));
  gpuprof_launch_v1 record{};
  record.weight_q32 = 1ull << 32;
  record.kind = GPUPROF_KIND_GRAPH;
  gpuprof_ring_header h = header(GPUPROF_PROBE_LAUNCH, 1, 1);
  h.flags = GPUPROF_RING_STACK_LOST;
  feed(h, std::vector{record});
  decoder.flush();
  EXPECT_EQ(lost(GPUPROF_PROBE_LAUNCH, LossReason::kGap), 1u);  // 3 never came
  EXPECT_EQ(sink.stacks, 3);
  EXPECT_EQ(decoder.counters().stacks_lost, 1u);
}

TEST_F(DecoderTest, PythonFramesComeWithTheirLaunchAndAreNoRecords) {
  python(0, 9);
  EXPECT_TRUE(sink.launches.empty());
  launch(0, 100);
  EXPECT_EQ(sink.python_frames, 9u);
  EXPECT_EQ(sink.python_end, GPUPROF_PYTHON_WHOLE);
  launch(1, 100);
  EXPECT_EQ(sink.python_frames, 0u);
  python(2, 4);
  decoder.flush();
  EXPECT_TRUE(sink.lost.empty());
  EXPECT_EQ(decoder.counters().delivered[GPUPROF_PROBE_LAUNCH], 2u);
  EXPECT_EQ(decoder.counters().malformed, 0u);
  python(3, GPUPROF_PYTHON_CHUNK_FRAMES + 1);
  python(3, 1, 8);
  EXPECT_EQ(decoder.counters().malformed, 2u);
}

TEST_F(DecoderTest, InvalidRecordsAreTakenOutAndCounted) {
  std::vector<gpuprof_exec_v1> records = {exec(0), exec(1), exec(2), exec(3), exec(4)};
  records[1].start_ns = 9;  // after its end
  records[2].start_ns = 0;
  records[3].kind = GPUPROF_KIND_GRAPH;
  feed(header(GPUPROF_PROBE_EXEC, 5, 0), records);
  EXPECT_EQ(sink.execs, (std::vector<uint32_t>{0, 4}));
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kMalformed), 3u);
  EXPECT_EQ(decoder.counters().delivered[GPUPROF_PROBE_EXEC], 2u);
}

TEST_F(DecoderTest, RefusesMalformedEntries) {
  const auto refused = [&](auto change) {
    const uint64_t before = decoder.counters().malformed;
    gpuprof_ring_header h = header(GPUPROF_PROBE_EXEC, 1, 0);
    change(h);
    feed(h, std::vector{exec(0)});
    return decoder.counters().malformed == before + 1;
  };
  EXPECT_TRUE(refused([](auto& h) { h.probe = GPUPROF_PROBE_AUTOARM; }));
  EXPECT_TRUE(refused([](auto& h) { h.probe = 99; }));
  EXPECT_TRUE(refused([](auto& h) { h.count = 0; }));
  EXPECT_TRUE(refused([](auto& h) { h.count = 257; }));
  EXPECT_TRUE(refused([](auto& h) { h.count = 2; }));
  EXPECT_TRUE(refused([](auto& h) { h.payload_bytes = 0xffffffff; }));
  EXPECT_TRUE(refused([](auto& h) { h.payload_bytes--; }));
  decoder.on_events_entry({}, 0);
  launch(0, 100, true);
  decoder.on_stacks_entry(std::vector<uint8_t>(79), 0);
  EXPECT_EQ(decoder.counters().malformed, 10u);
  EXPECT_TRUE(sink.execs.empty());
  EXPECT_TRUE(sink.launches.empty());
}

TEST_F(DecoderTest, HeldBatchesAreBounded) {
  execs(0, 1);
  for (uint64_t i = 1; i < 2000; i++) execs(i * 10, 9);  // a gap before each
  // 1 MiB holds about 900 of them; the rest was let go without waiting for the window.
  EXPECT_GT(sink.execs.size(), 1000u * 9);
  decoder.flush();
  EXPECT_EQ(sink.execs.size(), 1u + 1999 * 9);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kGap), 9u + 1998);
}

TEST_F(DecoderTest, ProcessesAreBounded) {
  for (uint32_t pid = 1; pid <= 1000; pid++) {
    now_ns++;
    gpuprof_ring_header h = header(GPUPROF_PROBE_EXEC, 1, 5);
    h.pid = pid;
    feed(h, std::vector{exec(0)});
  }
  EXPECT_EQ(sink.execs.size(), 1000u);
  EXPECT_TRUE(sink.lost.empty());
}

TEST_F(DecoderTest, HostileTextIsSanitised) {
  gpuprof_ring_header h = header(GPUPROF_PROBE_EXEC, 1, 0);
  std::memcpy(h.comm, "a\x1b[2Jbbbbbbbbbbbb", 16);  // no NUL either
  feed(h, std::vector{exec(0)});
  EXPECT_EQ(sink.comm, "a?[2Jbbbbbbbbbbb");
  gpuprof_name_v1 name{};
  name.kind = GPUPROF_NAME_FUNCTION;
  name.total_bytes = name.chunk_bytes = 4;
  std::memcpy(name.bytes, "k\n\xffz", 4);
  feed(header(GPUPROF_PROBE_NAME, 1, 0), std::vector{name});
  EXPECT_EQ(sink.name, "k??z");
  gpuprof_device_v1 device{};
  std::memset(device.name, 'x', sizeof(device.name));
  feed(header(GPUPROF_PROBE_DEVICE, 1, 0), std::vector{device});
  EXPECT_EQ(sink.device, std::string(95, 'x'));
}

TEST_F(DecoderTest, ForgetTellsAndDrops) {
  execs(0, 1);
  execs(3, 1);
  losses.table[GPUPROF_PROBE_DROP].records[GPUPROF_LOSS_FAULT] = 2;
  decoder.forget(kProcess);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kGap), 2u);
  EXPECT_EQ(lost(GPUPROF_PROBE_DROP, LossReason::kFault), 2u);
  EXPECT_TRUE(losses.table.empty());
  EXPECT_EQ(sink.execs.size(), 2u);
}

TEST_F(DecoderTest, RestartForgetsNumbersButNotWhatWasTold) {
  execs(0, 1);
  losses.table[GPUPROF_PROBE_EXEC].records[GPUPROF_LOSS_FULL] = 4;
  execs(5, 1);
  decoder.restart(kProcess.pid);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kRingFull), 4u);
  execs(1'000'000, 1);  // watched again much later
  decoder.flush();
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kRingFull), 4u);
  EXPECT_EQ(lost(GPUPROF_PROBE_EXEC, LossReason::kGap), 0u);
}

}  // namespace
}  // namespace gpuprof::probe
