// SPDX-License-Identifier: Apache-2.0
#include "shim/core/exec_batch.h"

#include <atomic>
#include <cstring>

#include "shim/core/probes.h"

namespace gpuprof::shim {
namespace {

constexpr uint32_t kSlots = 8;  // more bufferCompleted calls at once use the inline records
constexpr uint32_t kSlotRecords = GPUPROF_MAX_BATCH_RECORDS;
static_assert(kSlotRecords * sizeof(gpuprof_exec_v1) <= GPUPROF_MAX_BATCH_BYTES);

// In .bss: a slot that was never used costs nothing.
constinit gpuprof_exec_v1 slots[kSlots][kSlotRecords]{};
constinit std::atomic<uint32_t> slots_taken{0};  // a bit each

int claim_slot() {
  uint32_t taken = slots_taken.load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t free_bits = ~taken & ((1u << kSlots) - 1);
    if (free_bits == 0) return -1;
    const int slot = __builtin_ctz(free_bits);
    if (slots_taken.compare_exchange_weak(taken, taken | 1u << slot, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
      return slot;
    }
  }
}

}  // namespace

ExecBatch::ExecBatch() : records_(inline_), capacity_(kInlineRecords), slot_(claim_slot()) {
  if (slot_ < 0) return;
  records_ = slots[slot_];
  capacity_ = kSlotRecords;
}

ExecBatch::~ExecBatch() {
  flush();
  if (slot_ >= 0) slots_taken.fetch_and(~(1u << slot_), std::memory_order_release);
}

gpuprof_exec_v1& ExecBatch::next() {
  if (count_ == capacity_) flush();
  gpuprof_exec_v1& record = records_[count_++];
  memset(&record, 0, sizeof record);
  return record;
}

void ExecBatch::cancel() {
  if (count_ > 0) --count_;
}

void ExecBatch::flush() {
  if (count_ != 0) emit(GPUPROF_PROBE_EXEC, records_, count_);
  count_ = 0;
}

}  // namespace gpuprof::shim
