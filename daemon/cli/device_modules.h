// SPDX-License-Identifier: Apache-2.0
//
// DeviceModules: which cubin each key of each process stands for, read while that can be read.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/module_thread.h"
#include "daemon/cubin/store.h"
#include "daemon/join/device_source.h"
#include "daemon/target/module_reader.h"
#include "proto/usdt_abi.h"

namespace gpuprof::cli {

// Of one process, for the summary.
struct ModuleCounts {
  uint64_t in_table = 0;  // claimed in the shim's table since the process started
  uint64_t sampled = 0;   // keys that PC samples named
  uint64_t read = 0;      // of these
  uint64_t pending = 0;   // of these, neither read nor failed
  std::array<uint64_t, target::kModuleFailureCount> failed{};
  uint64_t keys_refused = 0;  // samples' keys beyond the bounds: told as "too-many-keys"
  uint64_t read_early = 0;    // images that no sample has named, read since they might not last
  uint64_t retries = 0;
  uint64_t reread = 0;  // images that the store had evicted
  uint64_t bytes_read = 0;
};

// An image is read when a PC sample first names its key, since the process may end at any time, and
// early when a module is loaded while we listen (a short program's only samples come when it ends)
// or is unloaded; a module of a process attached late is read when it is sampled. A process has
// only what was read from it. What the store has evicted (ADR 0016) is read again when it is asked
// for. Bounded by process: keys, bytes (target::ModuleLimits), bytes read early. One thread; the
// reading is ModuleThread's.
class DeviceModules {
 public:
  static constexpr size_t kMaxKeys = 16 * 1024;  // per process
  // 200 bytes each. A process with fewer than the second number may have more while there are fewer
  // than twice the first: a few hostile ones cannot refuse everybody else's.
  static constexpr size_t kMaxKeysInAll = 32 * 1024;
  static constexpr size_t kReservedKeys = 64;
  static constexpr uint64_t kEarlyBytes = 32u << 20;        // per process
  static constexpr uint64_t kEarlyBytesInAll = 256u << 20;  // of the processes that are there
  static constexpr size_t kMaxInFlight = 16;  // per process: the others want to be read, too
  static constexpr uint32_t kMaxTries = 3;
  static constexpr uint64_t kRetryNs = 200'000'000;  // an entry may be half-written
  // Samples of a program that exec replaced are on their way for a poll round or so.
  static constexpr uint64_t kLastWordsNs = 2'000'000'000;
  static constexpr uint64_t kRereadNs = 10'000'000'000;  // for all that was evicted

  explicit DeviceModules(const cubin::StoreLimits& limits = {},
                         uint64_t patience_ns = ModuleThread::kPatienceNs);

  // Without it nothing is read, and no sample has a module.
  void enable() { enabled_ = true; }

  // The process's verified memfd, for reading. Keys wanted before that wait for it.
  void add_process(ProcessId process, UniqueFd memfd);
  // PC samples of `process` name `key`. Cheap when repeated.
  void want(ProcessId process, uint64_t key);
  void note(ProcessId process, const gpuprof_module_v1& module);
  // Its memory is another program's now; samples of it come for kLastWordsNs at most.
  void memory_gone(ProcessId process);
  // No more samples come. Its memfd is read to the end.
  void process_exited(ProcessId process);
  // Of a process that exited: nothing of it is asked for any more.
  void forget(ProcessId process);

  // Hands out jobs and takes results. Once a tick.
  void advance(uint64_t now_ns);
  // Something that can be read is not read yet.
  [[nodiscard]] bool pending() const;
  // How long all rereads of evicted images may take together from now on.
  void allow_rereads(uint64_t budget_ns) { reread_ns_ = budget_ns; }
  // Until everything that can be read is read, at most `patience`; `hurry` true ends it.
  void settle(std::chrono::milliseconds patience, const std::function<bool()>& hurry);

  // As join::DeviceSource::device_module.
  const join::DeviceModule& module(ProcessId process, uint64_t key);
  // Of the sampled images, each once: SHA-256.
  [[nodiscard]] std::vector<std::string> sampled() const;
  // As Store::bytes, of an image that some process has.
  Result<std::vector<std::byte>> bytes(const std::string& sha256);
  // No more instructions are asked for soon: what lines cost is given back.
  void release_parsed();
  [[nodiscard]] ModuleCounts counts(ProcessId process) const;
  // Reads that were given up.
  [[nodiscard]] size_t stuck() const { return thread_.stuck(); }
  [[nodiscard]] const cubin::Store& store() const { return *store_; }

 private:
  enum class State : uint8_t { kWaiting, kInFlight, kRead, kFailed };
  // Served in turns, each in its order.
  enum Line : uint8_t { kSampled, kUnloading, kLoaded, kRetry };
  static constexpr size_t kLines = 3;  // without kRetry
  struct Key {
    State state = State::kWaiting;
    Line line = kSampled;  // where it waits; elsewhere its number is stale
    bool sampled = false;
    bool is_lost = false;  // evicted, and could not be read again
    target::ModuleFailure failure = target::ModuleFailure::kNone;
    uint32_t tries = 0;
    uint64_t announced_bytes = 0;  // by module_v1
    uint64_t reserved_bytes = 0;   // of the budget for early reading, for the read in work
    uint64_t next_try_ns = 0;
    std::string sha256;
  };
  struct Process {
    std::shared_ptr<target::ModuleReader> reader;
    std::unordered_map<uint64_t, Key> keys;
    std::array<std::deque<uint64_t>, kLines> lines;  // keys to read
    std::deque<uint64_t> retries;                    // by Key::next_try_ns
    size_t turn = 0;                                 // of `lines`
    size_t in_flight = 0;
    uint64_t owner = 0;    // in the store
    uint64_t gone_ns = 0;  // its memory is another program's since then
    bool exited = false;
    bool forgotten = false;  // as soon as nothing is in flight
    bool stuck = false;      // it let a reader wait for ever
    uint64_t early_bytes = 0;
    ModuleCounts counts;

    [[nodiscard]] bool is_waiting() const;
  };

  Process& process_of(ProcessId id);
  Key* key_of(Process& process, uint64_t key);
  bool reserve(Process& process, Key& entry);
  void settle_reserve(Process& process, Key& entry, uint64_t used);
  static void enqueue(Process& process, uint64_t key, Key& entry, Line line);
  Key* next_of(Process& process, uint64_t now_ns, uint64_t& key);
  void fail_or_retry(Process& process, const ModuleOutcome& outcome, Key& entry, uint64_t now_ns);
  bool reread(ProcessId id, Process& process, uint64_t key, Key& entry);
  void hand_out(ProcessId id, Process& process, uint64_t now_ns);
  void take(const ModuleOutcome& outcome, uint64_t now_ns);
  void close_if_done(Process& process);
  void close(Process& process);

  std::shared_ptr<cubin::Store> store_;
  ModuleThread thread_;
  std::map<ProcessId, Process> processes_;
  // The last sample's, which the next one mostly shares.
  ProcessId last_process_;
  uint64_t last_key_ = 0;
  bool has_last_ = false;
  bool enabled_ = false;
  size_t keys_ = 0;  // of all processes
  uint64_t owners_ = 0;
  uint64_t reread_ns_ = kRereadNs;  // left
  uint64_t early_bytes_ = 0;
  join::DeviceModule current_;
};

}  // namespace gpuprof::cli
