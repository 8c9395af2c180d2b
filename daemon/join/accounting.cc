// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/accounting.h"

#include <numeric>

namespace gpuprof::join {
namespace {

template <size_t N>
uint64_t sum(const std::array<uint64_t, N>& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

template <size_t N>
void add(std::array<uint64_t, N>& to, const std::array<uint64_t, N>& from) {
  for (size_t i = 0; i < N; ++i) to[i] += from[i];
}

std::string broken(const char* what, uint64_t left, uint64_t exact, uint64_t sampled,
                   uint64_t unattributed, uint64_t evicted, uint64_t pending) {
  return std::string(what) + ": received " + std::to_string(left) + " is not exact " +
         std::to_string(exact) + " + sampled " + std::to_string(sampled) + " + unattributed " +
         std::to_string(unattributed) + " + evicted " + std::to_string(evicted) + " + pending " +
         std::to_string(pending);
}

}  // namespace

const char* unmatched_name(Unmatched reason) {
  switch (reason) {
    case Unmatched::kNone:
      return "";
    case Unmatched::kNoSample:
      return "no-sample";
    case Unmatched::kBeforeArm:
      return "before-arm";
    case Unmatched::kLaunchLost:
      return "launch-lost";
    case Unmatched::kDeviceLaunched:
      return "device-launched";
  }
  return "";
}

bool is_execution_loss(uint32_t drop_class) {
  switch (drop_class) {
    case GPUPROF_DROP_CUPTI:
    case GPUPROF_DROP_INVALID_TIME:
    case GPUPROF_DROP_NO_BUFFER:
    case GPUPROF_DROP_INCOMPLETE:
      return true;
    default:
      return false;
  }
}

std::optional<uint64_t> Accounting::produced() const {
  if (!emitted) return std::nullopt;
  return *emitted + sum(lost_shim);
}

std::string Accounting::check() const {
  if (received != exact + sampled + sum(unattributed) + evicted + pending) {
    return broken("executions", received, exact, sampled, sum(unattributed), evicted, pending);
  }
  if (received_ns != exact_ns + sampled_ns + sum(unattributed_ns) + evicted_ns + pending_ns) {
    return broken("GPU ns", received_ns, exact_ns, sampled_ns, sum(unattributed_ns), evicted_ns,
                  pending_ns);
  }
  if (emitted && *produced() != received + sum(lost_shim) + sum(lost_ring)) {
    return "produced " + std::to_string(*produced()) + " is not received " +
           std::to_string(received) + " + lost in the shim " + std::to_string(sum(lost_shim)) +
           " + lost in the ring " + std::to_string(sum(lost_ring));
  }
  return {};
}

std::optional<bool> Accounting::identity_holds() const {
  if (!check().empty()) return false;
  if (!emitted) return std::nullopt;
  return true;
}

Accounting& Accounting::operator+=(const Accounting& other) {
  received += other.received;
  exact += other.exact;
  sampled += other.sampled;
  add(unattributed, other.unattributed);
  evicted += other.evicted;
  pending += other.pending;
  received_ns += other.received_ns;
  exact_ns += other.exact_ns;
  sampled_ns += other.sampled_ns;
  add(unattributed_ns, other.unattributed_ns);
  evicted_ns += other.evicted_ns;
  pending_ns += other.pending_ns;
  duplicates += other.duplicates;
  if (other.emitted) emitted = emitted.value_or(0) + *other.emitted;
  add(lost_shim, other.lost_shim);
  add(lost_ring, other.lost_ring);
  pc += other.pc;
  return *this;
}

}  // namespace gpuprof::join
