// SPDX-License-Identifier: Apache-2.0
//
// ModuleTable: the modules (cubins) that this process loaded, in the memfd after the two pages.
//
// append() runs in CUPTI's hash callback: no lock, no allocation, no CUPTI call. It claims an entry
// by fetch-add, copies images of at most 64 KiB into room that exists already, and publishes with a
// release store of `state`. Room is made by grow_if_needed() on the service thread: the file grows
// (never past RLIMIT_FSIZE or the byte limit) and the pages are allocated before anybody writes
// them, so that no write can raise SIGBUS.
//
// Without a memfd append() only counts. In a child nothing is touched.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/core/held_fd.h"
#include "shim/core/status_code.h"

namespace gpuprof::shim {

inline constexpr uint64_t kModuleCopyMaxBytes = 64 * 1024;  // larger images stay in the driver [m]
inline constexpr uint32_t kNoModule = UINT32_MAX;

class ModuleTable {
 public:
  constexpr ModuleTable() = default;

  // Appends a module; its index, or kNoModule if the table is full (counted MODULE_TABLE_FULL) or
  // does not exist. Small images that do not fit the room are counted MODULE_COPY_FULL and stay
  // readable where they are. `image` must be readable for `size_bytes`. Any thread.
  uint32_t append(uint64_t hash, const void* image, uint64_t size_bytes, uint64_t load_time_ns);

  // Unloading starts: copies the image (any size) unless it is copied already, making room for it
  // within the limit (one fallocate), or marks it GONE. `image` and `size_bytes` as loaded. The
  // index, or kNoModule if it is not in the table. Newest matching entry first. Any thread, while
  // the image is still readable; not from the hash callback.
  uint32_t on_unload(const void* image, uint64_t size_bytes, bool copy);

  // Makes more room where less than half a growth step (1 MiB) is left. kLimit when the byte limit
  // or RLIMIT_FSIZE is reached; kUnsupported for good once `file` is not ours any more. Service
  // thread, once a round.
  Status grow_if_needed();

  // Entries claimed, may exceed the capacity; bytes of copies used; bytes of room that exist.
  uint32_t count() const { return claimed_.load(std::memory_order_relaxed); }
  uint64_t copies_used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t room() const { return room_.load(std::memory_order_relaxed); }
  const gpuprof_module_entry* entry(uint32_t index) const;

  // Wired by Channel::create(). `entries` and `copies` are mapped; `copies` for `limit_bytes`, of
  // which `room_bytes` exist. `copies_offset` is from the start of the file.
  void attach(HeldFd& file, gpuprof_module_entry* entries, char* copies, uint64_t copies_offset,
              uint64_t room_bytes, uint64_t limit_bytes);
  void detach();  // in a child

 private:
  uint64_t copy(const void* image, uint64_t size_bytes);  // offset in the file, 0 if no room

  Status make_room(uint64_t bytes);

  std::atomic<gpuprof_module_entry*> entries_{nullptr};
  std::atomic<uint32_t> claimed_{0};
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> room_{0};
  std::atomic<bool> growing_{false};
  char* copies_ = nullptr;
  uint64_t copies_offset_ = 0;
  uint64_t limit_ = 0;
  HeldFd* file_ = nullptr;
};

// XXH3-64 with seed 0 of a module image: what the hash callback returns and PC records carry.
uint64_t hash_image(const void* image, uint64_t size_bytes);

}  // namespace gpuprof::shim
