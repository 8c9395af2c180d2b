// SPDX-License-Identifier: Apache-2.0
#include "shim/core/name_table.h"

#include <cstring>

#include <sys/mman.h>

#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/status.h"
#include "shim/core/xxh3.h"

namespace gpuprof::shim {

// `text` is 0 while the claimer copies, kFull if there was no room, else
// offset << 32 | kind << 24 | bytes + 1.
struct NameTable::Slot {
  std::atomic<uint64_t> id;
  std::atomic<uint64_t> text;
};

namespace {

constexpr uint64_t kFull = UINT64_MAX;
constexpr uint32_t kMaxUsed = NameTable::kSlots / 8 * 7;
static_assert(GPUPROF_NAME_MAX_BYTES + 1 < (1u << 24));

constinit NameTable the_names;

uint32_t slot_of(uint64_t id, uint32_t step) {
  // Stall ids are small numbers: mix, or they would all start in a row.
  return static_cast<uint32_t>(((id * 0x9e3779b97f4a7c15u) >> 48) + step) % NameTable::kSlots;
}

// Collects chunks and emits them some at a time; 4 KiB on the caller's stack.
class ChunkBatch {
 public:
  ~ChunkBatch() { flush(); }
  void add(uint64_t id, uint32_t kind, const char* text, uint32_t bytes) {
    for (uint32_t offset = 0; offset < bytes; offset += GPUPROF_NAME_CHUNK_BYTES) {
      if (count_ == kChunks) flush();
      const uint32_t left = bytes - offset;
      gpuprof_name_v1& chunk = chunks_[count_++];
      chunk.id = id;
      chunk.kind = kind;
      chunk.total_bytes = bytes;
      chunk.offset = offset;
      chunk.chunk_bytes = left < GPUPROF_NAME_CHUNK_BYTES ? left : GPUPROF_NAME_CHUNK_BYTES;
      chunk.reserved = 0;
      memcpy(chunk.bytes, text + offset, chunk.chunk_bytes);
      memset(chunk.bytes + chunk.chunk_bytes, 0, sizeof chunk.bytes - chunk.chunk_bytes);
    }
  }
  void flush() {
    if (count_ != 0) emit(GPUPROF_PROBE_NAME, chunks_, count_);
    count_ = 0;
  }

 private:
  static constexpr uint32_t kChunks = 16;
  uint32_t count_ = 0;
  gpuprof_name_v1 chunks_[kChunks];
};

}  // namespace

NameTable& names() { return the_names; }

Status NameTable::create() {
  if (slots_.load(std::memory_order_relaxed) != nullptr) return Status::kAlready;
  constexpr size_t kTableBytes = size_t{kSlots} * sizeof(Slot);
  void* base = mmap(nullptr, kTableBytes + kArenaBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return Status::kNoMemory;
  // A huge page would commit 2 MiB for the first name.
  madvise(base, kTableBytes + kArenaBytes, MADV_NOHUGEPAGE);
  arena_ = static_cast<char*>(base) + kTableBytes;
  slots_.store(static_cast<Slot*>(base), std::memory_order_release);
  return Status::kOk;
}

uint64_t NameTable::intern(const char* name) {
  if (name == nullptr || name[0] == '\0') return 0;
  const size_t bytes = strlen(name);
  uint64_t id = xxh3_64(name, bytes);
  if (id == 0) id = 1;
  return insert(GPUPROF_NAME_FUNCTION, id, name, bytes) ? id : 0;
}

bool NameTable::put(gpuprof_name_kind kind, uint64_t id, const char* text, size_t bytes) {
  // Id 0 (stall 0 of device 0) is valid on the wire; an empty slot is 0, so it is kept as ~0.
  return text != nullptr && bytes != 0 && insert(kind, id == 0 ? UINT64_MAX : id, text, bytes);
}

bool NameTable::insert(gpuprof_name_kind kind, uint64_t id, const char* text, size_t bytes) {
  Slot* slots = slots_.load(std::memory_order_acquire);
  if (slots == nullptr || !owned()) return false;
  for (uint32_t step = 0; step < kSlots; ++step) {
    Slot& slot = slots[slot_of(id, step)];
    uint64_t seen = slot.id.load(std::memory_order_acquire);
    if (seen == 0) {
      if (used_.load(std::memory_order_relaxed) >= kMaxUsed) return false;
      if (slot.id.compare_exchange_strong(seen, id, std::memory_order_acq_rel)) {
        used_.fetch_add(1, std::memory_order_relaxed);
        return fill(slot, kind, id, text, bytes);
      }
    }
    if (seen != id) continue;
    const uint64_t stored = slot.text.load(std::memory_order_acquire);
    if (stored == kFull) return false;
    // Still 0: another thread is copying it this moment and will emit it.
    if (stored == 0 || ((stored >> 24) & 0xff) == static_cast<uint64_t>(kind)) return true;
  }
  return false;
}

bool NameTable::fill(Slot& slot, gpuprof_name_kind kind, uint64_t id, const char* text,
                     size_t bytes) {
  if (bytes > GPUPROF_NAME_MAX_BYTES) {
    bytes = GPUPROF_NAME_MAX_BYTES;
    count_drop(GPUPROF_DROP_NAME_CUT);
  }
  uint64_t at = arena_used_.load(std::memory_order_relaxed);
  do {
    if (bytes > kArenaBytes - at) {
      slot.text.store(kFull, std::memory_order_release);
      return false;
    }
  } while (!arena_used_.compare_exchange_weak(at, at + bytes, std::memory_order_relaxed));
  memcpy(arena_ + at, text, bytes);
  slot.text.store(at << 32 | static_cast<uint64_t>(kind) << 24 | (bytes + 1),
                  std::memory_order_release);
  // Publish, then look at the semaphore; replay() looks at the semaphore, then at the slots. So one
  // of the two emits a name that comes in while somebody attaches.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (enabled(GPUPROF_PROBE_NAME)) {
    ChunkBatch batch;
    batch.add(id == UINT64_MAX ? 0 : id, kind, arena_ + at, static_cast<uint32_t>(bytes));
  }
  return true;
}

void NameTable::replay() {
  Slot* slots = slots_.load(std::memory_order_acquire);
  if (slots == nullptr || !enabled(GPUPROF_PROBE_NAME)) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ChunkBatch batch;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint64_t id = slots[i].id.load(std::memory_order_acquire);
    if (id == 0) continue;
    const uint64_t stored = slots[i].text.load(std::memory_order_acquire);
    if (stored == 0 || stored == kFull) continue;
    batch.add(id == UINT64_MAX ? 0 : id, (stored >> 24) & 0xff, arena_ + (stored >> 32),
              static_cast<uint32_t>((stored & 0xffffff) - 1));
  }
}

}  // namespace gpuprof::shim
