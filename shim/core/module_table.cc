// SPDX-License-Identifier: Apache-2.0
#include "shim/core/module_table.h"

#include <cstring>

#include "shim/core/memfd.h"
#include "shim/core/owner.h"
#include "shim/core/status.h"
#include "shim/core/xxh3.h"

namespace gpuprof::shim {
namespace {

constexpr uint64_t kGrowthBytes = 1u << 20;
constexpr uint64_t kCopyAlign = 16;

template <typename T>
void put(T& field, T value) {
  std::atomic_ref<T>(field).store(value, std::memory_order_relaxed);
}

}  // namespace

void ModuleTable::attach(HeldFd& file, gpuprof_module_entry* entries, char* copies,
                         uint64_t copies_offset, uint64_t room_bytes, uint64_t limit_bytes) {
  file_ = &file;
  copies_ = copies;
  copies_offset_ = copies_offset;
  limit_ = limit_bytes;
  room_.store(room_bytes, std::memory_order_relaxed);
  entries_.store(entries, std::memory_order_release);
}

void ModuleTable::detach() { entries_.store(nullptr, std::memory_order_release); }

const gpuprof_module_entry* ModuleTable::entry(uint32_t index) const {
  const gpuprof_module_entry* entries = entries_.load(std::memory_order_acquire);
  return entries == nullptr || index >= GPUPROF_MODULE_CAPACITY ? nullptr : entries + index;
}

uint64_t ModuleTable::copy(const void* image, uint64_t size_bytes) {
  const uint64_t rounded = (size_bytes + kCopyAlign - 1) & ~(kCopyAlign - 1);
  uint64_t at = used_.load(std::memory_order_relaxed);
  do {
    const uint64_t room = room_.load(std::memory_order_acquire);
    if (rounded < size_bytes || at > room || rounded > room - at) return 0;
  } while (!used_.compare_exchange_weak(at, at + rounded, std::memory_order_relaxed));
  memcpy(copies_ + at, image, size_bytes);
  return copies_offset_ + at;
}

uint32_t ModuleTable::append(uint64_t hash, const void* image, uint64_t size_bytes,
                             uint64_t load_time_ns) {
  gpuprof_module_entry* entries = entries_.load(std::memory_order_acquire);
  if (entries == nullptr || !owned()) return kNoModule;
  // The load first: a process that loads modules for ever must not wrap the counter.
  if (claimed_.load(std::memory_order_relaxed) >= GPUPROF_MODULE_CAPACITY) {
    count_drop(GPUPROF_DROP_MODULE_TABLE_FULL);
    return kNoModule;
  }
  const uint32_t index = claimed_.fetch_add(1, std::memory_order_relaxed);
  if (index >= GPUPROF_MODULE_CAPACITY) {
    count_drop(GPUPROF_DROP_MODULE_TABLE_FULL);
    return kNoModule;
  }
  uint64_t copied = 0;
  if (size_bytes != 0 && size_bytes <= kModuleCopyMaxBytes) {
    copied = copy(image, size_bytes);
    if (copied == 0) count_drop(GPUPROF_DROP_MODULE_COPY_FULL);
  }
  gpuprof_module_entry& entry = entries[index];
  put<uint64_t>(entry.hash, hash);
  put<uint64_t>(entry.address, reinterpret_cast<uintptr_t>(image));
  put<uint64_t>(entry.size_bytes, size_bytes);
  put<uint64_t>(entry.load_time_ns, load_time_ns);
  put<uint64_t>(entry.copy_offset, copied);
  std::atomic_ref<uint32_t>(entry.state)
      .store(copied != 0 ? GPUPROF_MODULE_COPIED : GPUPROF_MODULE_PRESENT,
             std::memory_order_release);
  return index;
}

uint32_t ModuleTable::on_unload(const void* image, uint64_t size_bytes, bool copy_it) {
  gpuprof_module_entry* entries = entries_.load(std::memory_order_acquire);
  if (entries == nullptr || !owned()) return kNoModule;
  const uint32_t claimed = claimed_.load(std::memory_order_relaxed);
  uint32_t index = claimed < GPUPROF_MODULE_CAPACITY ? claimed : GPUPROF_MODULE_CAPACITY;
  while (index-- > 0) {
    gpuprof_module_entry& entry = entries[index];
    std::atomic_ref<uint32_t> state(entry.state);
    const uint32_t now = state.load(std::memory_order_acquire);
    if (now == GPUPROF_MODULE_EMPTY || now == GPUPROF_MODULE_GONE) continue;
    if (entry.address != reinterpret_cast<uintptr_t>(image) || entry.size_bytes != size_bytes) {
      continue;
    }
    if (now == GPUPROF_MODULE_COPIED) return index;
    uint64_t copied = 0;
    if (copy_it && make_room(size_bytes) == Status::kOk) copied = copy(image, size_bytes);
    if (copy_it && copied == 0) count_drop(GPUPROF_DROP_MODULE_COPY_FULL);
    put<uint64_t>(entry.copy_offset, copied);
    state.store(copied != 0 ? GPUPROF_MODULE_COPIED : GPUPROF_MODULE_GONE,
                std::memory_order_release);
    return index;
  }
  return kNoModule;
}

Status ModuleTable::make_room(uint64_t bytes) {
  const uint64_t needed = used_.load(std::memory_order_relaxed) + bytes + kCopyAlign;
  if (needed <= room_.load(std::memory_order_relaxed)) return Status::kOk;
  if (needed > limit_) return Status::kLimit;
  // One grower at a time; nobody waits for another's fallocate.
  if (growing_.exchange(true, std::memory_order_acquire)) return Status::kNoMemory;
  const uint64_t room = room_.load(std::memory_order_relaxed);
  uint64_t target = (needed + kGrowthBytes - 1) & ~(kGrowthBytes - 1);
  if (target > limit_) target = limit_;
  Status grown = Status::kOk;
  if (target > room) {
    // Where the number names another file, that one would grow, and a write beyond the end of ours
    // raises SIGBUS.
    const int fd = file_->checked();
    grown = fd < 0 ? Status::kUnsupported
                   : grow_file(fd, copies_offset_ + room, copies_offset_ + target);
    if (grown == Status::kOk) room_.store(target, std::memory_order_release);
  }
  growing_.store(false, std::memory_order_release);
  return grown;
}

Status ModuleTable::grow_if_needed() {
  if (entries_.load(std::memory_order_acquire) == nullptr || !owned()) return Status::kUnsupported;
  return make_room(kGrowthBytes / 2);
}

uint64_t hash_image(const void* image, uint64_t size_bytes) { return xxh3_64(image, size_bytes); }

}  // namespace gpuprof::shim
