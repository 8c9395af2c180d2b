// SPDX-License-Identifier: Apache-2.0
//
// ShimChannel: the daemon's side of the memfd that the shim keeps in a target
// (proto/memfd_layout.h).
//
// The target is hostile: it decides what its descriptors are and what their bytes say. A descriptor
// is pinned with O_PATH, must be a regular unlinked file on the kernel's own memfd mount, sealed
// against shrinking, with our magic and its owner's identity; only then is it opened for writing,
// and no other file of a target ever is. A bind mount can give a root-owned file the link text of a
// memfd, so names are only a hint. Pages are read with pread, never mapped: a mapping could fault.
//
// Not thread-safe; one thread owns a channel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemon/base/process_id.h"
#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/target/shim_status.h"
#include "proto/memfd_layout.h"

namespace gpuprof::target {

// What the daemon asks of the shim.
struct ControlRequest {
  gpuprof_tier tier = GPUPROF_TIER_TRACE;
  uint32_t pc_period = 0;      // log2 cycles 5..31; 0 default
  uint32_t pc_duty = 0;        // serialized: per mille of the time, 1..100; 0 default
  uint32_t stack_rate = 0;     // stacks a second and thread; 0 default, UINT32_MAX every launch
  uint32_t process_rate = 0;   // stacks a second and process; likewise
  uint64_t process_bytes = 0;  // stack bytes a second and process; 0 default
  uint32_t lease_ms = 3000;
  uint64_t sampler_seed = 0;  // 0: random
  PcGrant pc_grant;
};

class ShimChannel {
 public:
  // Finds and verifies the memfd of `process`. `fd_hint` is its number in the target (process_v1),
  // tried first; then descriptors linked to memfd:gpu-profiled; then mappings of it, for an
  // application that closed the descriptor.
  // Errors: kNotFound (no such process), kNoTarget (no memfd), kPermission, kCorrupt (a memfd that
  // breaks the rules), kUnsupported (another ABI version). Takes 50 ms at most, however many memfds
  // the target keeps half-written.
  static Result<ShimChannel> open(ProcessId process, std::optional<int> fd_hint = {});

  // Verifies one candidate by path (a link of /proc/PID/fd or map_files). Public for the tests.
  static Result<ShimChannel> open_path(const std::string& path, ProcessId process);

  // kUnavailable: the page was being written at each try (a stopped process, or a hostile one).
  // kNever: three tries at once; kBriefly: up to 50 ms, for a first look.
  enum class Wait { kNever, kBriefly };
  Result<ShimStatus> read_status(Wait wait = Wait::kNever) const;

  // Of the status page only what is said of grants; as read_status(kNever).
  Result<PcClaims> read_claims() const;

  // Who holds the controller's lock; nullopt: nobody, or we do.
  struct Controller {
    std::string name;  // empty: it gave none
    uint32_t pid = 0;  // in its own pid namespace
  };
  [[nodiscard]] Result<std::optional<Controller>> controller() const;

  // Takes the controller's lock and names us on the page. kUnavailable: another controller holds
  // it; the message names it.
  Status acquire(const std::string& controller_name);
  [[nodiscard]] bool acquired() const { return acquired_; }

  // Writes the request with a fresh lease. Requires acquire().
  Status request(const ControlRequest& request);
  // The same request with a fresh lease.
  Status renew();
  // The same with another grant, and a fresh lease.
  Status grant(const PcGrant& grant);
  // The same with another tier, and a fresh lease.
  Status set_tier(gpuprof_tier tier);
  // Tier off; keeps the lock, so that nobody re-arms before the final records are read.
  Status release();

  // The verified memfd for reading only, without our lock: it may outlive the channel.
  [[nodiscard]] Result<UniqueFd> open_for_reading() const;

  [[nodiscard]] ProcessId process() const { return process_; }

 private:
  ShimChannel() = default;
  static Result<ShimChannel> open_candidate(const std::string& path, ProcessId process,
                                            int& pauses);
  Status write_control();

  ProcessId process_;
  UniqueFd fd_;
  bool acquired_ = false;
  uint32_t seq_ = 0;
  uint64_t lease_serial_ = 0;
  std::string controller_name_;
  ControlRequest request_;
};

}  // namespace gpuprof::target
