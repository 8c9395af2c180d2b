// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/buffer_pool.h"

#include <sys/mman.h>

namespace gpuprof::cupti {

shim::Status BufferPool::create() noexcept {
  if (memory_ != nullptr) return shim::Status::kAlready;
  void* memory = mmap(nullptr, kTotalBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return shim::Status::kNoMemory;
  memory_ = static_cast<uint8_t*>(memory);
  for (uint32_t slot = kSlots; slot-- > 0;) push(slot < kBuffers ? free_ : free_scratch_, slot);
  return shim::Status::kOk;
}

uint32_t BufferPool::pop(Head& head) noexcept {
  uint64_t old = head.load(std::memory_order_acquire);
  for (;;) {
    const auto slot = static_cast<uint32_t>(old);
    if (slot == kNone) return kNone;
    const uint64_t tag = (old >> 32) + 1;
    const uint64_t fresh = tag << 32 | next_[slot].load(std::memory_order_relaxed);
    if (head.compare_exchange_weak(old, fresh, std::memory_order_acq_rel,
                                   std::memory_order_acquire)) {
      return slot;
    }
  }
}

void BufferPool::push(Head& head, uint32_t slot) noexcept {
  uint64_t old = head.load(std::memory_order_relaxed);
  for (;;) {
    next_[slot].store(static_cast<uint32_t>(old), std::memory_order_relaxed);
    const uint64_t fresh = ((old >> 32) + 1) << 32 | slot;
    if (head.compare_exchange_weak(old, fresh, std::memory_order_release,
                                   std::memory_order_relaxed)) {
      return;
    }
  }
}

uint8_t* BufferPool::data_of(uint32_t slot) const noexcept {
  return slot < kBuffers ? memory_ + size_t{slot} * kBufferBytes
                         : memory_ + kScratchOffset + size_t{slot - kBuffers} * kScratchBytes;
}

uint32_t BufferPool::slot_of(const uint8_t* data) const noexcept {
  if (memory_ == nullptr || data < memory_ || data >= memory_ + kTotalBytes) return kNone;
  const auto offset = static_cast<size_t>(data - memory_);
  if (offset < kScratchOffset) return static_cast<uint32_t>(offset / kBufferBytes);
  return kBuffers + static_cast<uint32_t>((offset - kScratchOffset) / kScratchBytes);
}

BufferPool::Buffer BufferPool::take() noexcept {
  const uint32_t slot = pop(free_);
  if (slot == kNone) return {};
  outstanding_.fetch_add(1, std::memory_order_acq_rel);
  return {data_of(slot), kBufferBytes, Origin::kPool};
}

BufferPool::Buffer BufferPool::take_scratch() noexcept {
  const uint32_t slot = pop(free_scratch_);
  outstanding_.fetch_add(1, std::memory_order_acq_rel);
  if (slot == kNone) return {data_of(kSlots), kScratchBytes, Origin::kSharedScratch};
  return {data_of(slot), kScratchBytes, Origin::kScratch};
}

BufferPool::Origin BufferPool::origin_of(const uint8_t* data) const noexcept {
  const uint32_t slot = slot_of(data);
  if (slot == kNone) return Origin::kForeign;
  if (slot < kBuffers) return Origin::kPool;
  return slot < kSlots ? Origin::kScratch : Origin::kSharedScratch;
}

void BufferPool::give_back(const uint8_t* data) noexcept {
  const uint32_t slot = slot_of(data);
  if (slot == kNone) return;  // not ours: another client's buffer, nothing to do with it
  if (slot < kSlots) push(slot < kBuffers ? free_ : free_scratch_, slot);
  outstanding_.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace gpuprof::cupti
