// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "shim/core/correlation.h"

namespace gpuprof::cupti {

/// The kernels' names as they were at the launch, for records that come after their module has
/// gone.
///
/// A kernel record points at its name, and the name's memory goes with the module: with two modules
/// loaded and unloaded in turns 16 of 20 batches of records had the other one's name by the time
/// they were delivered (H200, CUPTI 13.0.1). So each kernel launch leaves its name's id here, by
/// its correlation id, and once a module has gone the records of this arm are named by it, whatever
/// their times say: by these 26 of 4,000 seemed to have run after their module's end. Before that
/// they are not: where CUPTI gives all launches of a thread one id, the records' own names are
/// right.
///
/// Threads: all from callbacks of any thread; lock-free. 1 MiB, committed by use.
class LaunchNames {
 public:
  static constexpr uint32_t kSlots = 1u
                                     << 16;  // a quarter of a second at 250,000 launches a second

  /// What a thread remembers of the functions that it launches. Plain data, as it is thread-local.
  struct Memory {
    struct Entry {
      uint64_t work;  // CUfunction, or host function; 0: none
      uint64_t name_id;
      uint32_t generation;
    };
    static constexpr uint32_t kEntries = 32;
    Entry entries[kEntries];
  };

  constexpr LaunchNames() = default;

  /// Modules changed unseen while nothing was armed.
  void begin_arm() noexcept {
    generation_.fetch_add(1, std::memory_order_relaxed);
    gone_.store(false, std::memory_order_relaxed);
  }
  void module_loaded() noexcept { generation_.fetch_add(1, std::memory_order_relaxed); }
  /// A module, or a context with all of its own, is about to go.
  void names_going() noexcept {
    generation_.fetch_add(1, std::memory_order_relaxed);
    gone_.store(true, std::memory_order_relaxed);
  }

  /// A kernel launch at its EXIT. `work`: launched_work().
  void note(const shim::WideCorrelation& launch, uint64_t work, const char* name,
            Memory& memory) noexcept;

  /// The name's id of a kernel whose record's own may not be read any more; 0 if it may, or is not
  /// known.
  [[nodiscard]] uint64_t of(const shim::WideCorrelation& execution) const noexcept;

 private:
  struct Slot {
    std::atomic<uint64_t> launch{0};  // epoch << 32 | correlation; 0: none, or being written
    std::atomic<uint64_t> name_id{0};
  };
  uint64_t id_of(uint64_t work, const char* name, Memory& memory) const noexcept;

  std::atomic<uint32_t> generation_{0};  // all zero: 1 MiB of .bss, not of the file
  std::atomic<bool> gone_{false};        // a module, in this arm
  Slot slots_[kSlots];
};

LaunchNames& launch_names() noexcept;

}  // namespace gpuprof::cupti
