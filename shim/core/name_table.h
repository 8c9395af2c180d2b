// SPDX-License-Identifier: Apache-2.0
//
// NameTable: strings that went out as name_v1, once each, kept for a reader that attaches later.
//
// Lock-free: an open-addressed table of ids and an arena of 8 MiB that is reserved at once and
// committed by use. No allocation after create(), no lock, nothing freed. Full means id 0 for what
// is new; what is known stays known.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/usdt_abi.h"
#include "shim/core/status_code.h"

namespace gpuprof::shim {

class NameTable {
 public:
  static constexpr uint32_t kSlots = 1u << 16;  // at most 7/8 used: 57k names
  static constexpr uint64_t kArenaBytes = 8u << 20;

  constexpr NameTable() = default;

  // Reserves table and arena. Once; without it (or on failure) every new name is id 0.
  Status create();

  // The id of a function name: XXH3-64 (seed 0) of its bytes without NUL, 1 where that is 0. Emits
  // its name_v1 chunks at first sight. 0 for null, "" and when full: the caller counts
  // NAME_TABLE_FULL per execution. Names above GPUPROF_NAME_MAX_BYTES keep the id of the whole name
  // and are cut (counted NAME_CUT once each). Any thread.
  uint64_t intern(const char* name);

  // A string under an id of the caller's (stall reasons: device id << 32 | index). False when full.
  bool put(gpuprof_name_kind kind, uint64_t id, const char* text, size_t bytes);

  // Emits every name again. Service thread.
  void replay();

  uint32_t size() const { return used_.load(std::memory_order_relaxed); }

 private:
  struct Slot;
  bool insert(gpuprof_name_kind kind, uint64_t id, const char* text, size_t bytes);
  bool fill(Slot& slot, gpuprof_name_kind kind, uint64_t id, const char* text, size_t bytes);

  std::atomic<Slot*> slots_{nullptr};
  char* arena_ = nullptr;
  std::atomic<uint64_t> arena_used_{0};
  std::atomic<uint32_t> used_{0};
};

NameTable& names();
inline uint64_t intern(const char* name) { return names().intern(name); }

}  // namespace gpuprof::shim
