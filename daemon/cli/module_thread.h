// SPDX-License-Identifier: Apache-2.0
//
// ModuleThread: reads images out of targets, on a thread that nobody waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/cubin/store.h"
#include "daemon/target/module_reader.h"

namespace gpuprof::cli {

struct ModuleJob {
  ProcessId process;
  std::shared_ptr<target::ModuleReader> reader;
  uint64_t key = 0;
  // No sample has named it: read only if the image lies in the process alone (what is copied in the
  // memfd does not run away), and at most `most_bytes` of the process.
  bool is_early = false;
  uint64_t most_bytes = UINT64_MAX;
  uint64_t owner = 0;  // in the store
};

struct ModuleOutcome {
  ProcessId process;
  uint64_t key = 0;
  bool is_early = false;
  bool skipped = false;  // is_early, and it is copied
  bool stuck = false;    // given up: ask this process for nothing more
  target::ModuleFailure failure = target::ModuleFailure::kNone;
  std::string sha256;  // in the store, where nothing failed
  uint64_t bytes = 0;  // that were read, failures included
};

// A read faults the target's pages in, and a hostile target can hold that up for ever. So a read
// that makes no progress for `patience_ns` is given up: its thread is left behind (it is in the
// kernel and ends with us), the target's other jobs fail, and a new thread goes on with the rest.
// After kMaxStuck of them no more is read.
// Jobs are done in their order, those for samples and early ones in turns of kTurn, so that neither
// keeps the other waiting.
// The thread starts with the first job, by which time our privileges are dropped and our children
// forked; it takes on what the starting thread has. One thread calls; nothing waits but collect().
class ModuleThread {
 public:
  static constexpr size_t kMaxStuck = 4;
  static constexpr size_t kTurn = 8;
  static constexpr uint64_t kPatienceNs = 5'000'000'000;

  explicit ModuleThread(std::shared_ptr<cubin::Store> store, uint64_t patience_ns = kPatienceNs);
  ~ModuleThread();
  ModuleThread(const ModuleThread&) = delete;
  ModuleThread& operator=(const ModuleThread&) = delete;

  void add(ModuleJob job);
  // What is done, in no particular order; waits at most `wait_ns` if there is nothing.
  std::vector<ModuleOutcome> collect(uint64_t now_ns, uint64_t wait_ns = 0);

  // Threads given up.
  [[nodiscard]] size_t stuck() const { return stuck_; }

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared);
  bool start();
  void give_up(std::vector<ModuleOutcome>& out);

  std::shared_ptr<cubin::Store> store_;
  const uint64_t patience_ns_;
  std::shared_ptr<Shared> shared_;  // with the present thread; null: none was started
  std::vector<ModuleOutcome> refused_;
  size_t stuck_ = 0;
};

}  // namespace gpuprof::cli
