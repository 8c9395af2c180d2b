// SPDX-License-Identifier: Apache-2.0
//
// ModuleReader: finds and reads the images (cubins) that one process has loaded, through the module
// table in the shim's memfd (proto/memfd_layout.h).
//
// The table and the images are the target's: every number is bounded, the table is read with pread,
// an image in pieces, and what does not hash (XXH3-64) to the key it was asked for is not handed
// out, whatever the table says and however often the target changes it meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "proto/memfd_layout.h"

namespace gpuprof::target {

// Why there is no image for a key.
enum class ModuleFailure : uint8_t {
  kNone = 0,
  kForeignKey,    // not in the table: another tool replaced the hash callback, or it was full
  kGone,          // unloaded, or the process ended, before it was read
  kHashMismatch,  // what lies there is something else
  kTooLarge,      // the image is larger than we take
  kUnreadable,    // the memory or the descriptor cannot be read
  kOverBudget,    // as much was read of the process as ever will be
};
inline constexpr size_t kModuleFailureCount = 7;
// "foreign-key", "gone", "hash-mismatch", "too-large", "unreadable", "over-budget"; "" for kNone.
const char* module_failure_name(ModuleFailure failure);

struct ModuleLimits {
  uint64_t max_image_bytes = 256ull << 20;
  // Read from the process in all, failures included: a target must not keep us reading for ever.
  uint64_t max_total_bytes = 512ull << 20;
};

// Takes an image in pieces. What it got is nothing before read() said so.
class ImageSink {
 public:
  virtual ~ImageSink() = default;
  // An image begins; forget what came before.
  virtual void restart() = 0;
  // False: it does not fit; reading ends with kTooLarge.
  virtual bool add(std::span<const std::byte> bytes) = 0;
};

// Reading another process's memory faults its pages in, and a hostile one can make that last for
// ever (userfaultfd, a FUSE file): read() belongs on a thread that nobody waits for. One thread at
// a time; process_gone() and the counters from any.
class ModuleReader {
 public:
  static constexpr size_t kPieceBytes = 256 * 1024;

  // `memfd`: a descriptor for reading of the verified memfd (ShimChannel::open_for_reading).
  ModuleReader(UniqueFd memfd, ProcessId process, const ModuleLimits& limits = {});

  // Streams the image with this key into `sink`. Of several entries (a module loaded into two
  // contexts) copies in the memfd come first, then the newest. kOverBudget beyond `most_bytes`, of
  // all entries together.
  ModuleFailure read(uint64_t key, ImageSink& sink, uint64_t most_bytes = UINT64_MAX);

  // Is the key in the table without a copy in the memfd? What is copied can be read later, too.
  [[nodiscard]] bool lies_in_process_only(uint64_t key);

  // The table's hashes are kept for a while, for the next keys: 128 KiB at most. Gives them back.
  void forget_table() { table_ = {}, table_ns_ = 0; }

  // From now on only copies in the memfd count: the number may be another process's soon.
  void process_gone() { gone_.store(true, std::memory_order_relaxed); }

  // Entries that the process claimed; may exceed the capacity.
  [[nodiscard]] uint32_t claimed() const;
  [[nodiscard]] uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  // Times that the whole table was read.
  [[nodiscard]] uint64_t table_reads() const { return table_reads_; }

 private:
  struct Place {
    uint64_t hash;
    uint32_t index;
  };
  void read_table();
  std::vector<gpuprof_module_entry> candidates(uint64_t key);
  ModuleFailure read_entry(const gpuprof_module_entry& entry, uint64_t key, ImageSink& sink);
  template <class Fetch>
  ModuleFailure stream(const gpuprof_module_entry& entry, uint64_t key, ImageSink& sink,
                       const Fetch& fetch);

  const UniqueFd memfd_;
  const ProcessId process_;
  const ModuleLimits limits_;
  std::atomic<bool> gone_{false};
  std::atomic<uint64_t> bytes_read_{0};
  uint64_t most_bytes_read_ = UINT64_MAX;  // of the read in work: what bytes_read_ may become
  std::vector<Place> table_;               // sorted
  uint64_t table_ns_ = 0;                  // when it was read, 0: it was not
  uint32_t table_claimed_ = 0;
  bool table_is_final_ = false;  // read after the process had gone
  uint64_t table_reads_ = 0;
};

}  // namespace gpuprof::target
