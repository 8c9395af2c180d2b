// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/adapter.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "proto/libcuda_kind.h"
#include "shim/core/knobs.h"
#include "shim/core/log.h"
#include "shim/core/memfd.h"
#include "shim/core/name_table.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/status.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/driver.h"
#include "shim/cupti/loader.h"
#include "shim/cupti/modules.h"
#include "shim/cupti/oldest_version.h"
#include "shim/cupti/pc_sampling.h"
#include "shim/cupti/service.h"

namespace gpuprof::cupti {
namespace {

/// What InitializeInjection learns. Static: libcuda may call it on a thread with a small stack.
struct Facts {
  MappedObjects objects;
  Driver driver;
  CuptiLibrary library;
  Attempts attempts;
  uint32_t version = 0;
  char text[1024] = {};
  char libcuda_trouble[640] = {};
};
constinit Facts facts;

/// The process runs unprofiled: one line on stderr, the same on the status page.
bool decline(gpuprof_reason reason, const char* text) noexcept {
  shim::set_state(GPUPROF_STATE_DECLINED, reason, text);
  shim::complain("%s", text);
  return false;
}

gpuprof_cupti_origin origin() noexcept {
  return facts.library.was_mapped ? GPUPROF_CUPTI_MAPPED : GPUPROF_CUPTI_LOADED;
}

const char* why_no_page(shim::Status status) noexcept {
  switch (status) {
    case shim::Status::kLimit:
      return "no status page: the file size limit forbids it (raise ulimit -f); this process runs "
             "unprofiled";
    case shim::Status::kNoMemory:
      return "no status page: no memory for it; this process runs unprofiled";
    case shim::Status::kUnsupported:
      return "no status page: this kernel or sandbox has no memfd_create with seals; this process "
             "runs unprofiled";
    default:
      return "no status page: memfd_create is refused (allow it in the seccomp profile, or raise "
             "ulimit -n); this process runs unprofiled";
  }
}

/// The parts that need neither CUDA nor CUPTI.
bool set_up_process() noexcept {
  const shim::Knobs& knobs = shim::knobs();
  const shim::Status made = shim::channel().create(knobs.modules ? knobs.module_bytes : 0);
  if (made != shim::Status::kOk) return decline(GPUPROF_REASON_NO_MEMORY, why_no_page(made));
  if (shim::install_fork_handler() != shim::Status::kOk) {
    return decline(GPUPROF_REASON_NO_MEMORY, "no fork handler, this process runs unprofiled");
  }
  if (knobs.disabled) {
    shim::set_state(GPUPROF_STATE_DECLINED, GPUPROF_REASON_DISABLED, "GPU_PROFILED_DISABLE is set");
    return false;
  }
  return true;
}

bool decline_newer(const char* how) noexcept {
  shim::set_cupti(facts.version, facts.library.path, origin());
  snprintf(facts.text, sizeof facts.text,
           "%.300s %s the driver (CUDA %u.%u), this process runs unprofiled", facts.library.path,
           how, facts.driver.version / 1000, facts.driver.version % 1000 / 10);
  return decline(GPUPROF_REASON_CUPTI_NEWER_THAN_DRIVER, facts.text);
}

bool load_library() noexcept {
  const LoadResult result = load_cupti(facts.objects, shim::knobs().cupti_path,
                                       facts.driver.version, &facts.library, &facts.attempts);
  if (result == LoadResult::kLoaded) return true;
  if (result == LoadResult::kNewerThanDriver) return decline_newer("is newer than");
  snprintf(facts.text, sizeof facts.text,
           "no usable libcupti, this process runs unprofiled (CUPTI comes with the CUDA toolkit or "
           "pip, not with the driver, and the container toolkit does not inject it); tried %s",
           facts.attempts.text());
  return decline(GPUPROF_REASON_NO_CUPTI, facts.text);
}

/// Asks CUPTI for its version: its first call, at which it starts from 13.2 on.
bool ask_version(const Guard& guard) noexcept {
  if (Guard::is_13_2(facts.library.handle) && !can_start_cupti_13_2(facts.driver)) {
    return decline_newer("(CUPTI 13.2) would crash on");
  }
  uint32_t answered = 0;
  const CUptiResult result = guard.version(&answered);
  if (result == CUPTI_SUCCESS) {
    facts.version = version_of(answered, major_of_library(facts.library.handle));
    shim::set_cupti(facts.version, facts.library.path, origin());
    return true;
  }
  shim::set_cupti(0, facts.library.path, origin());
  snprintf(
      facts.text, sizeof facts.text,
      "%.300s does not start: cuptiGetVersion answered %d (a driver, CUDA %u.%u, that is too old "
      "for it, or not working?); this process runs unprofiled",
      facts.library.path, result, facts.driver.version / 1000, facts.driver.version % 1000 / 10);
  return decline(GPUPROF_REASON_CUPTI_FAILED, facts.text);
}

bool bind_library() noexcept {
  const Guard guard = Guard::lock();
  const char* missing = guard.bind(facts.library.handle);
  if (missing != nullptr) {
    snprintf(facts.text, sizeof facts.text, "%.300s lacks %s, this process runs unprofiled",
             facts.library.path, missing);
    return decline(GPUPROF_REASON_MISSING_SYMBOL, facts.text);
  }
  if (!ask_version(guard)) return false;
  if (facts.version < GPUPROF_OLDEST_CUPTI_API) {
    snprintf(facts.text, sizeof facts.text,
             "%.300s has API version %u, that of CUDA " GPUPROF_OLDEST_CUPTI_CUDA
             " (%u) is the oldest supported; this process runs unprofiled",
             facts.library.path, facts.version, GPUPROF_OLDEST_CUPTI_API);
    return decline(GPUPROF_REASON_CUPTI_TOO_OLD, facts.text);
  }
  const uint32_t driver_major = facts.driver.version / 1000;
  if (driver_major != 0 && cuda_major_of(facts.version) > driver_major) {
    return decline_newer("is newer than");
  }
  return true;
}

/// Registers the hash callback and settles whether the subscriber is held from now on: where
/// modules are wanted and the callback is missing, MODULE_LOADED is the only source of them.
void register_modules() noexcept {
  const Quirks quirks = quirks_of(facts.version, facts.driver.version);
  const shim::Knobs& knobs = shim::knobs();
  bool eager = quirks.eager || knobs.subscribe == shim::SubscribeMode::kEager;
  if (knobs.modules) {
    const Guard guard = Guard::lock();
    const CUptiResult result = guard.register_hash(on_hash);
    if (result != CUPTI_SUCCESS) {
      shim::log_line("no hash callback (%d): modules come from the subscriber", result);
      eager = true;
    }
  }
  shim::set_subscribe_mode(eager ? shim::SubscribeMode::kEager : shim::SubscribeMode::kOnDemand);
  arming().configure(facts.version, quirks, eager);
  pc_sampling().configure(facts.version);
}

/// What asks for the subscriber now: eager mode, the environment, an attached `autoarm`. False if
/// it was refused; it is tried again while somebody wants it.
bool take_subscriber_if_asked() noexcept {
  uint32_t tier = shim::knobs().arm_tier;
  if (tier == GPUPROF_TIER_OFF && shim::semaphore(GPUPROF_PROBE_AUTOARM) > 0) {
    tier = GPUPROF_TIER_TRACE;
  }
  if (tier == GPUPROF_TIER_OFF) return !arming().eager() || arming().subscribe_at_init();
  grant_at_init(static_cast<gpuprof_tier>(tier));
  return arming().arm_at_init();
}

void on_exit() {
  if (shim::owned_by_caller()) stop_service_at_exit();
}

bool start() noexcept {
  if (!set_up_process()) return false;
  (void)shim::names().create();  // without it every name is id 0, counted
  facts.objects.read();
  find_driver(facts.objects, &facts.driver);
  shim::set_driver(facts.driver.version, facts.driver.kind, facts.driver.path,
                   facts.driver.kernel_version);
  (void)explain_libcuda(facts.libcuda_trouble, sizeof facts.libcuda_trouble, facts.driver.path,
                        facts.driver.kernel_version);
  arming().explain_unknown(facts.libcuda_trouble);
  if (!load_library() || !bind_library()) return false;
  if (arming().buffers().create() != shim::Status::kOk) {
    return decline(GPUPROF_REASON_NO_MEMORY,
                   "no memory for activity buffers, this process runs unprofiled");
  }
  // Before CUPTI is touched: nothing may stay registered that nobody serves.
  if (start_service(facts.driver) != shim::Status::kOk) {
    return decline(GPUPROF_REASON_NO_THREAD,
                   "the service thread cannot be created, this process runs unprofiled");
  }
  register_modules();
  shim::set_state(GPUPROF_STATE_IDLE, GPUPROF_REASON_NONE, nullptr);
  if (!take_subscriber_if_asked()) shim::complain("%s", arming().failure());
  atexit(on_exit);
  release_service();
  return true;
}

}  // namespace

int initialize() noexcept {
  static std::atomic<bool> called{false};
  if (called.exchange(true)) return 1;
  const CallbackScope scope;
  if (shim::own_process() != shim::Status::kOk) return 1;
  shim::load_knobs(environ);
  shim::open_log(shim::knobs().log);
  (void)start();
  shim::emit_process(shim::channel().fd());
  return 1;
}

}  // namespace gpuprof::cupti
