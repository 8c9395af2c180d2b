// SPDX-License-Identifier: Apache-2.0
//
// The producer-side counters of status.h.
#include <atomic>

#include "shim/core/clock.h"
#include "shim/core/memfd.h"
#include "shim/core/probes.h"
#include "shim/core/status.h"

namespace gpuprof::shim {
namespace {

constinit std::atomic<uint64_t> drops[GPUPROF_DROP_CLASS_COUNT]{};

// A thread's counters: its own pair of cache lines (the prefetcher fetches pairs), given out in
// order at its first launch, so that threads which launch side by side share none. The 257th thread
// shares the first one's; they still count exactly, and what an ended thread counted stays.
constexpr uint32_t kShards = 256;
struct alignas(128) LaunchShard {
  std::atomic<uint64_t> seen{0};
  std::atomic<uint64_t> drawn{0};
};
constinit LaunchShard launches[kShards]{};
constinit std::atomic<uint32_t> next_shard{0};
__thread LaunchShard* this_shard;

// What readers were told last. Guarded by `emitting`.
constinit std::atomic<bool> emitting{false};
constinit uint64_t told[GPUPROF_DROP_CLASS_COUNT]{};
constinit std::atomic<bool> forget{false};

// autoarm, the last one, never fires.
constexpr uint32_t kFiringProbes = GPUPROF_PROBE_AUTOARM - 1;
static_assert(GPUPROF_PROBE_AUTOARM == GPUPROF_PROBE_COUNT - 1);

uint64_t sum_launches(bool drawn) {
  uint64_t sum = 0;
  for (const LaunchShard& shard : launches) {
    sum += (drawn ? shard.drawn : shard.seen).load(std::memory_order_relaxed);
  }
  return sum;
}

class DropRecords {
 public:
  void add(uint32_t drop_class, uint32_t detail, uint64_t total) {
    records_[count_++] = gpuprof_drop_v1{drop_class, detail, total, now_ns_};
  }
  uint32_t count() const { return count_; }
  bool emit_all() { return count_ == 0 || emit(GPUPROF_PROBE_DROP, records_, count_) == count_; }

 private:
  uint64_t now_ns_ = monotonic_ns();
  uint32_t count_ = 0;
  gpuprof_drop_v1 records_[GPUPROF_DROP_CLASS_COUNT + kFiringProbes];
};

void emit_totals(bool final) {
  if (forget.exchange(false, std::memory_order_relaxed)) {
    for (uint64_t& total : told) total = 0;
  }
  DropRecords records;
  uint64_t totals[GPUPROF_DROP_CLASS_COUNT] = {};
  for (uint32_t i = 1; i < GPUPROF_DROP_CLASS_COUNT; ++i) {
    if (i == GPUPROF_DROP_FINAL_TOTAL) continue;
    totals[i] = drop_total(static_cast<gpuprof_drop_class>(i));
    if (totals[i] != (final ? 0 : told[i])) records.add(i, 0, totals[i]);
  }
  if (final) {
    // The drop probe's own total includes this very batch.
    const uint32_t batch = records.count() + kFiringProbes;
    for (uint32_t probe = 1; probe <= kFiringProbes; ++probe) {
      records.add(
          GPUPROF_DROP_FINAL_TOTAL, probe,
          emitted(static_cast<gpuprof_probe>(probe)) + (probe == GPUPROF_PROBE_DROP ? batch : 0));
    }
  }
  if (!records.emit_all()) return;  // nobody listens: tell it to the next one
  for (uint32_t i = 1; i < GPUPROF_DROP_CLASS_COUNT; ++i) told[i] = totals[i];
}

}  // namespace

void count_drop(gpuprof_drop_class drop_class, uint64_t count) {
  if (drop_class <= GPUPROF_DROP_INVALID || drop_class >= GPUPROF_DROP_CLASS_COUNT) return;
  drops[drop_class].fetch_add(count, std::memory_order_relaxed);
  if (gpuprof_status_page* page = channel().status_page()) {
    std::atomic_ref<uint64_t>(page->drop_totals[drop_class])
        .fetch_add(count, std::memory_order_relaxed);
  }
}

uint64_t drop_total(gpuprof_drop_class drop_class) {
  if (drop_class <= GPUPROF_DROP_INVALID || drop_class >= GPUPROF_DROP_CLASS_COUNT) return 0;
  const uint64_t counted = drops[drop_class].load(std::memory_order_relaxed);
  if (drop_class == GPUPROF_DROP_LAUNCHES_SEEN) return counted + sum_launches(false);
  if (drop_class == GPUPROF_DROP_LAUNCHES_DRAWN) return counted + sum_launches(true);
  return counted;
}

void count_launch(bool drawn) {
  if (this_shard == nullptr) {
    this_shard = &launches[next_shard.fetch_add(1, std::memory_order_relaxed) % kShards];
  }
  LaunchShard& shard = *this_shard;
  shard.seen.fetch_add(1, std::memory_order_relaxed);
  if (drawn) shard.drawn.fetch_add(1, std::memory_order_relaxed);
}

void emit_drops(bool final) {
  if (!enabled(GPUPROF_PROBE_DROP)) return;
  if (emitting.exchange(true, std::memory_order_acquire)) return;
  emit_totals(final);
  emitting.store(false, std::memory_order_release);
}

void forget_emitted_drops() { forget.store(true, std::memory_order_relaxed); }

}  // namespace gpuprof::shim
