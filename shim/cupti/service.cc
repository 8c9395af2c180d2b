// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/service.h"

#include <string.h>

#include <atomic>

#include "shim/core/clock.h"
#include "shim/core/knobs.h"
#include "shim/core/memfd.h"
#include "shim/core/metadata.h"
#include "shim/core/owner.h"
#include "shim/core/sampler.h"
#include "shim/core/status.h"
#include "shim/core/thread.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/pc_sampling.h"

namespace gpuprof::cupti {
namespace {

constexpr uint64_t kExitTimeoutNs = 2'000'000'000;

bool is_refusal(gpuprof_reason reason) noexcept {
  return reason == GPUPROF_REASON_OTHER_CLIENT || reason == GPUPROF_REASON_SUBSCRIBE_FAILED ||
         reason == GPUPROF_REASON_ENABLE_FAILED;
}

struct Service {
  const Driver* driver = nullptr;
  shim::Lease lease;         // init until released, then the service thread
  shim::SamplerRates rates;  // as last configured
  bool devices_published = false;
  std::atomic<uint32_t> released{0};
  std::atomic<uint32_t> wakes{0};  // futex: counts wake-ups
  std::atomic<uint32_t> exiting{0};
  std::atomic<uint32_t> finished{0};  // futex: the last flush is done
  std::atomic<bool> launch_seen{false};
};
constinit Service service;

/// The controller's rates, else those of the environment, else the sampler's defaults (0).
shim::SamplerRates rates_of(const shim::ControlRequest& request) {
  shim::SamplerRates rates;
  rates.per_thread = request.stack_rate != 0 ? request.stack_rate : shim::knobs().stack_rate;
  rates.per_process = request.process_rate;
  rates.process_bytes = request.process_bytes;
  rates.seed = request.sampler_seed != 0 ? request.sampler_seed : shim::knobs().seed;
  return rates;
}

/// Configuring starts every thread's sampler afresh, so only a change does it.
void follow_rates(const shim::ControlRequest& request) {
  const shim::SamplerRates rates = rates_of(request);
  const shim::SamplerRates& now = service.rates;
  if (rates.per_thread == now.per_thread && rates.per_process == now.per_process &&
      rates.process_bytes == now.process_bytes && rates.seed == now.seed) {
    return;
  }
  service.rates = rates;
  shim::configure_sampler(rates);
}

void publish_metadata(const shim::Demand& demand) {
  if (!service.devices_published && service.launch_seen.load(std::memory_order_relaxed)) {
    service.devices_published = publish_devices(*service.driver) > 0;
  }
  shim::replay_on_edges();
  if (demand.new_controller) {
    shim::replay_all();
    shim::forget_emitted_drops();
  }
  shim::emit_drops(false);
}

/// One round; answers how long to sleep, ns.
uint64_t run_round() {
  const uint64_t now_ns = shim::monotonic_ns();
  shim::ControlRequest request;
  const shim::ControlRead read = shim::channel().read(&request);
  const shim::Demand demand = service.lease.update(read, request, now_ns);
  if (demand.tier != GPUPROF_TIER_OFF) follow_rates(demand.request);
  arming().round(demand, now_ns);
  pc_sampling().round(demand, now_ns);
  if (demand.tier != GPUPROF_TIER_OFF) shim::clock_converter().sample();
  publish_metadata(demand);
  (void)shim::channel().modules().grow_if_needed();
  shim::publish_heartbeat(now_ns);
  const uint64_t deadline_ns = service.lease.deadline_ns();
  const uint64_t sleep_ns = arming().sleep_ns();
  if (deadline_ns <= now_ns) return sleep_ns;
  return deadline_ns - now_ns < sleep_ns ? deadline_ns - now_ns : sleep_ns;
}

void finish() {
  pc_sampling().finish();
  arming().final_flush();
  shim::emit_drops(true);
  shim::publish_heartbeat(shim::monotonic_ns());
  service.finished.store(1, std::memory_order_release);
  shim::futex_wake(service.finished);
}

void run_service(void*) {
  while (service.released.load(std::memory_order_acquire) == 0) {
    shim::futex_wait(service.released, 0, UINT64_MAX);
  }
  while (shim::owned()) {
    const uint32_t wakes = service.wakes.load(std::memory_order_acquire);
    if (service.exiting.load(std::memory_order_acquire) != 0) {
      finish();
      return;
    }
    const uint64_t sleep_ns = run_round();
    shim::futex_wait(service.wakes, wakes, sleep_ns);
  }
}

}  // namespace

shim::Status start_service(const Driver& driver) noexcept {
  service.driver = &driver;
  return shim::start_service_thread(run_service, nullptr);
}

void grant_at_init(gpuprof_tier tier) noexcept {
  service.rates = rates_of(shim::ControlRequest{});
  shim::configure_sampler(service.rates);
  service.lease.grant(tier, shim::kInitLeaseMs, shim::monotonic_ns());
}

void release_service() noexcept {
  service.released.store(1, std::memory_order_release);
  shim::futex_wake(service.released);
}

void wake_service() noexcept {
  service.wakes.fetch_add(1, std::memory_order_release);
  shim::futex_wake(service.wakes);
}

void note_launch() noexcept {
  if (!service.launch_seen.load(std::memory_order_relaxed)) {
    service.launch_seen.store(true, std::memory_order_relaxed);
    wake_service();  // devices are published then; a short program may be over before the next
                     // round
  }
}

void stop_service_at_exit() noexcept {
  service.exiting.store(1, std::memory_order_release);
  wake_service();
  const uint64_t deadline_ns = shim::monotonic_ns() + kExitTimeoutNs;
  while (service.finished.load(std::memory_order_acquire) == 0) {
    const uint64_t now_ns = shim::monotonic_ns();
    if (now_ns >= deadline_ns) break;
    shim::futex_wait(service.finished, 0, deadline_ns - now_ns);
  }
  // A reader that comes after the exit still wants to know why nothing was traced.
  char text[sizeof(gpuprof_status_page::reason_text)] = {};
  const gpuprof_status_page* page = shim::channel().status_page();
  if (page != nullptr && is_refusal(shim::current_reason())) {
    memcpy(text, page->reason_text, sizeof text - 1);
  }
  arming().go_inert(GPUPROF_REASON_EXITING, text[0] == '\0' ? nullptr : text);
}

}  // namespace gpuprof::cupti
