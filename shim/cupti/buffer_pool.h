// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shim/core/status_code.h"

namespace gpuprof::cupti {

/// The activity buffers that CUPTI fills: a fixed number, reserved once, never freed (CUPTI may
/// hold one for as long as it likes).
///
/// take() runs on the application's thread inside CUPTI and give_back() on whichever thread
/// completes a buffer, so both are lock-free: a stack of free slots, newest first, which keeps the
/// touched memory small. When it is empty and CUPTI is too old to be told so (before 12.9 it
/// crashes on a null buffer), smaller scratch buffers serve, and when those are gone too one last
/// buffer that everybody shares, whose records are only counted as lost.
class BufferPool {
 public:
  /// 256 KiB is about 1,200 kernel records. CUPTI returns full buffers at once and the rest at the
  /// flush every 100 ms, so 40 of them carry well over 500k kernels a second.
  static constexpr size_t kBufferBytes = 256 * 1024;
  static constexpr uint32_t kBuffers = 40;
  static constexpr size_t kScratchBytes = 64 * 1024;
  static constexpr uint32_t kScratchBuffers = 129;  // 8 MiB and the shared one

  enum class Origin : uint8_t { kPool, kScratch, kSharedScratch, kForeign };
  struct Buffer {
    uint8_t* data = nullptr;
    size_t size_bytes = 0;
    Origin origin = Origin::kForeign;
  };

  constexpr BufferPool() = default;

  /// Reserves the memory; pages are touched by use. Once.
  shim::Status create() noexcept;

  /// A free buffer, or data == nullptr.
  Buffer take() noexcept;
  /// A scratch buffer; never fails. The last one is handed out any number of times at once, so its
  /// contents mean nothing: kSharedScratch.
  Buffer take_scratch() noexcept;
  /// What a buffer is that CUPTI hands back.
  [[nodiscard]] Origin origin_of(const uint8_t* data) const noexcept;
  void give_back(const uint8_t* data) noexcept;

  /// Buffers that CUPTI holds.
  [[nodiscard]] uint32_t outstanding() const noexcept {
    return outstanding_.load(std::memory_order_acquire);
  }

 private:
  static constexpr uint32_t kSlots = kBuffers + kScratchBuffers - 1;
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kScratchOffset = size_t{kBuffers} * kBufferBytes;
  static constexpr size_t kTotalBytes = kScratchOffset + kScratchBuffers * kScratchBytes;

  /// Head of a free list: slot index in the low half, a tag against ABA in the high half.
  using Head = std::atomic<uint64_t>;
  uint32_t pop(Head& head) noexcept;
  void push(Head& head, uint32_t slot) noexcept;
  [[nodiscard]] uint32_t slot_of(const uint8_t* data) const noexcept;
  [[nodiscard]] uint8_t* data_of(uint32_t slot) const noexcept;

  uint8_t* memory_ = nullptr;
  Head free_{kNone};
  Head free_scratch_{kNone};
  std::atomic<uint32_t> outstanding_{0};
  std::atomic<uint32_t> next_[kSlots] = {};
};

}  // namespace gpuprof::cupti
