// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/module_reader.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/target/process.h"

namespace gpuprof::target {
namespace {

// Tries for one key: a table full of one hash must not cost a reading each.
constexpr size_t kMaxCandidates = 8;
// The table is 384 KiB: once for all keys that are asked for together. An entry that was
// half-written is asked for again later than that.
constexpr uint64_t kTableAgeNs = 50'000'000;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// Copies first, then what may still lie in the process.
int rank(uint32_t state) {
  switch (state) {
    case GPUPROF_MODULE_COPIED:
      return 0;
    case GPUPROF_MODULE_PRESENT:
      return 1;
    case GPUPROF_MODULE_GONE:
      return 2;
    default:  // being written, or nonsense
      return 3;
  }
}

ModuleFailure of_errno(int error) {
  return error == ESRCH ? ModuleFailure::kGone : ModuleFailure::kUnreadable;
}

}  // namespace

const char* module_failure_name(ModuleFailure failure) {
  constexpr const char* kNames[] = {"",          "foreign-key", "gone",       "hash-mismatch",
                                    "too-large", "unreadable",  "over-budget"};
  static_assert(std::size(kNames) == kModuleFailureCount);
  return kNames[static_cast<size_t>(failure)];
}

ModuleReader::ModuleReader(UniqueFd memfd, ProcessId process, const ModuleLimits& limits)
    : memfd_(std::move(memfd)), process_(process.process()), limits_(limits) {}

uint32_t ModuleReader::claimed() const {
  uint32_t out = 0;
  const ssize_t got = ::pread(memfd_.get(), &out, sizeof out,
                              static_cast<off_t>(offsetof(gpuprof_status_page, module_count)));
  return got == static_cast<ssize_t>(sizeof out) ? out : 0;
}

void ModuleReader::read_table() {
  table_is_final_ = gone_.load(std::memory_order_relaxed);
  table_claimed_ = claimed();
  table_ns_ = monotonic_ns();
  ++table_reads_;
  std::vector<gpuprof_module_entry> entries(std::min(table_claimed_, GPUPROF_MODULE_CAPACITY));
  const ssize_t got =
      ::pread(memfd_.get(), entries.data(), entries.size() * sizeof(gpuprof_module_entry),
              GPUPROF_MODULES_OFFSET);
  entries.resize(got < 0 ? 0 : static_cast<size_t>(got) / sizeof(gpuprof_module_entry));
  table_.clear();
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (rank(entries[i].state) <= 2) table_.push_back({entries[i].hash, i});
  }
  std::ranges::sort(table_, {}, [](const Place& at) { return std::pair(at.hash, at.index); });
}

// Which entries may have the key is as old as the table that we have; their states are not.
std::vector<gpuprof_module_entry> ModuleReader::candidates(uint64_t key) {
  const bool is_gone = gone_.load(std::memory_order_relaxed);
  if (table_ns_ == 0 || monotonic_ns() - table_ns_ > kTableAgeNs || claimed() != table_claimed_ ||
      (is_gone && !table_is_final_))
    read_table();
  std::vector<gpuprof_module_entry> entries;
  // No view: clang 14 cannot iterate over those of libstdc++ 12.
  for (auto place = std::ranges::lower_bound(table_, key, {}, &Place::hash);
       place != table_.end() && place->hash == key; ++place) {
    gpuprof_module_entry entry;
    const auto at = static_cast<off_t>(GPUPROF_MODULES_OFFSET + place->index * sizeof entry);
    if (::pread(memfd_.get(), &entry, sizeof entry, at) != ssize_t{sizeof entry}) continue;
    if (entry.hash == key && rank(entry.state) <= 2) entries.push_back(entry);
  }
  std::reverse(entries.begin(), entries.end());  // newest first
  std::stable_sort(entries.begin(), entries.end(), [](const auto& left, const auto& right) {
    return rank(left.state) < rank(right.state);
  });
  if (entries.size() > kMaxCandidates) entries.resize(kMaxCandidates);
  return entries;
}

bool ModuleReader::lies_in_process_only(uint64_t key) {
  const auto found = candidates(key);
  return !found.empty() && found.front().state != GPUPROF_MODULE_COPIED;
}

template <class Fetch>
ModuleFailure ModuleReader::stream(const gpuprof_module_entry& entry, uint64_t key, ImageSink& sink,
                                   const Fetch& fetch) {
  const std::unique_ptr<XXH3_state_t, FreeHash> hash(XXH3_createState());
  if (!hash) return ModuleFailure::kUnreadable;
  XXH3_64bits_reset(hash.get());
  // Its own: 64 readers that each kept one held 16 MiB.
  std::vector<std::byte> piece(std::min<uint64_t>(kPieceBytes, entry.size_bytes));
  sink.restart();
  for (uint64_t at = 0; at < entry.size_bytes;) {
    const size_t wanted = std::min<uint64_t>(piece.size(), entry.size_bytes - at);
    if (bytes_read() + wanted > std::min(limits_.max_total_bytes, most_bytes_read_))
      return ModuleFailure::kOverBudget;
    const ssize_t got = fetch(at, piece.data(), wanted);
    if (got < 0) return of_errno(errno);
    if (got == 0) return ModuleFailure::kUnreadable;
    const std::span<const std::byte> bytes(piece.data(), static_cast<size_t>(got));
    bytes_read_.fetch_add(bytes.size(), std::memory_order_relaxed);
    XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
    if (!sink.add(bytes)) return ModuleFailure::kTooLarge;
    at += bytes.size();
  }
  return XXH3_64bits_digest(hash.get()) == key ? ModuleFailure::kNone
                                               : ModuleFailure::kHashMismatch;
}

ModuleFailure ModuleReader::read_entry(const gpuprof_module_entry& entry, uint64_t key,
                                       ImageSink& sink) {
  if (entry.size_bytes == 0) return ModuleFailure::kHashMismatch;
  if (entry.size_bytes > limits_.max_image_bytes) return ModuleFailure::kTooLarge;
  // Not a byte of what cannot be had whole.
  if (entry.size_bytes > most_bytes_read_ - bytes_read()) return ModuleFailure::kOverBudget;
  if (entry.state == GPUPROF_MODULE_COPIED) {
    struct stat info = {};
    if (::fstat(memfd_.get(), &info) != 0) return ModuleFailure::kUnreadable;
    const auto file_bytes = static_cast<uint64_t>(info.st_size);
    if (entry.copy_offset < GPUPROF_MODULES_OFFSET || entry.copy_offset > file_bytes ||
        entry.size_bytes > file_bytes - entry.copy_offset)
      return ModuleFailure::kUnreadable;
    return stream(entry, key, sink, [&](uint64_t at, std::byte* into, size_t bytes) {
      return ::pread(memfd_.get(), into, bytes, static_cast<off_t>(entry.copy_offset + at));
    });
  }
  // An entry that says GONE is tried as well: the driver frees the memory a little later.
  if (gone_.load(std::memory_order_relaxed)) return ModuleFailure::kGone;
  if (entry.address == 0 || entry.address > UINT64_MAX - entry.size_bytes)
    return ModuleFailure::kUnreadable;
  const ModuleFailure failure =
      stream(entry, key, sink, [&](uint64_t at, std::byte* into, size_t bytes) {
        iovec local = {into, bytes};
        iovec remote = {reinterpret_cast<void*>(entry.address + at), bytes};
        return ::process_vm_readv(static_cast<pid_t>(process_.pid), &local, 1, &remote, 1, 0);
      });
  // The number was reused, or the program was replaced by exec: then it was read from another one.
  const auto now = process_id(process_.pid);
  if (!now || *now != process_ || gone_.load(std::memory_order_relaxed))
    return ModuleFailure::kGone;
  if (failure != ModuleFailure::kNone && entry.state == GPUPROF_MODULE_GONE)
    return ModuleFailure::kGone;
  return failure;
}

ModuleFailure ModuleReader::read(uint64_t key, ImageSink& sink, uint64_t most_bytes) {
  most_bytes_read_ =
      most_bytes < UINT64_MAX - bytes_read() ? bytes_read() + most_bytes : UINT64_MAX;
  ModuleFailure first = ModuleFailure::kForeignKey;
  for (const gpuprof_module_entry& entry : candidates(key)) {
    const ModuleFailure failure = read_entry(entry, key, sink);
    if (failure == ModuleFailure::kNone) return failure;
    if (first == ModuleFailure::kForeignKey) first = failure;
  }
  return first;
}

}  // namespace gpuprof::target
