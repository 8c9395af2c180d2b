// SPDX-License-Identifier: Apache-2.0
//
// GpuArbiter: which target may PC-sample which GPU (docs/adr/0020).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/target/pc_grant.h"

namespace gpuprof::target {

// What became of a target's wish to sample a GPU.
struct GpuUse {
  GpuUuid gpu{};
  uint32_t device = 0;      // its number in the target
  uint64_t sampled_ns = 0;  // held
  uint64_t waited_ns = 0;   // wanted, and held by another target
  uint32_t taken_by = 0;    // the last one that held it then; 0: none
};

// A GPU has one holder among all targets. A target that is alone has every GPU; with others it has
// what is listed, first come, first served. A GPU is handed on when its holder's page says that the
// list without it is in force and that it is not held, or when the holder is gone.
//
// Targets are hostile: a page claims at most GPUPROF_PC_GPUS_MAX GPUs, for its own target. Times
// are CLOCK_MONOTONIC. One thread.
class GpuArbiter {
 public:
  // So long a target may take to say that a list is in force. Then what its page shows as held is
  // all that it holds: it is stopped, or says nothing at all.
  static constexpr uint64_t kPatienceNs = 5'000'000'000;
  // A GPU that was granted and is not held after so long goes to the next one that waits for it.
  static constexpr uint64_t kUnusedNs = 2'000'000'000;

  // Serials follow `seed`: those of an earlier session must not be taken for ours.
  explicit GpuArbiter(uint64_t seed) : next_serial_(seed | 1) {}

  // A target that is asked for PC sampling from now on. `claims`: its page before it was asked.
  void add(ProcessId process, const PcClaims& claims, uint64_t now_ns);
  // What its page says now.
  void update(ProcessId process, const PcClaims& claims, uint64_t now_ns);
  // It has ended, or samples no more. Its record goes to the caller.
  std::vector<GpuUse> remove(ProcessId process, uint64_t now_ns);

  // Hands out what is free. The targets whose grant is another one than when this was last called.
  std::vector<ProcessId> settle(uint64_t now_ns);

  // Null for a target that was not added.
  [[nodiscard]] const PcGrant* grant_of(ProcessId process) const;
  [[nodiscard]] std::vector<GpuUse> uses_of(ProcessId process) const;
  [[nodiscard]] size_t size() const { return targets_.size(); }

 private:
  struct Granted {
    GpuUuid gpu{};
    uint64_t serial = 0;  // of the first grant that lists it
    uint64_t since_ns = 0;
  };
  struct Leaving {
    GpuUuid gpu{};
    uint64_t serial = 0;  // of the first grant without it
    uint64_t since_ns = 0;
  };
  struct Wait {
    GpuUuid gpu{};
    uint64_t turn = 0;
    uint32_t holder = 0;  // pid, as of the last settle(); 0: none
  };
  struct Target {
    PcGrant grant;
    PcClaims claims;
    std::vector<Granted> granted;  // LISTED: grant.gpus
    std::vector<Leaving> leaving;
    std::vector<Wait> waits;
    std::vector<GpuUse> uses;
    bool is_new = true;        // the grant, since the last settle()
    uint64_t open_serial = 0;  // may hold any GPU until this one is in force; 0: no
    uint64_t open_since_ns = 0;
    uint64_t counted_ns = 0;  // times are added up so far
  };
  struct Holder {
    uint32_t pid = 0;
    const Target* target = nullptr;
    const Target* second = nullptr;  // another one that may hold it too
  };
  using Holders = std::map<GpuUuid, Holder>;

  void change_grant(Target& target);
  void list(Target& target, uint64_t now_ns);
  void take_waits(Target& target);
  void confirm(Target& target, uint64_t now_ns);
  void release_unused(Target& target, uint64_t now_ns);
  [[nodiscard]] bool waited_for(const Target& by_other_than, const GpuUuid& gpu) const;
  [[nodiscard]] Holders holders() const;
  void hand_out(uint64_t now_ns);
  void count(Target& target, uint64_t now_ns);

  std::map<ProcessId, Target> targets_;
  uint64_t next_serial_;
  uint64_t next_turn_ = 1;
};

}  // namespace gpuprof::target
