// SPDX-License-Identifier: Apache-2.0
#include "shim/core/status.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <initializer_list>

#include "shim/core/clock.h"
#include "shim/core/knobs.h"
#include "shim/core/log.h"
#include "shim/core/memfd.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/self.h"
#include "shim/core/spin_lock.h"
#include "shim/core/status_mirror.h"

namespace gpuprof::shim {
namespace {

// What the page should say; totals and heartbeat live elsewhere. Guarded by `lock`.
constinit gpuprof_status_page shadow{};
constinit SpinLock lock;
// For readers that must not wait.
constinit std::atomic<uint32_t> state_now{GPUPROF_STATE_INVALID};
constinit std::atomic<uint32_t> reason_now{GPUPROF_REASON_NONE};
// Single words that any change carries to the page.
constinit std::atomic<uint32_t> buffers_now{0};
constinit std::atomic<uint32_t> tier_now{0};
constinit std::atomic<uint32_t> epoch_now{0};
constinit std::atomic<uint32_t> arms_now{0};
constinit std::atomic<uint32_t> disarms_now{0};
constinit std::atomic<uint64_t> off_since_now{0};
constinit std::atomic<uint64_t> off_now{0};
constexpr uint32_t kPcCounters = sizeof(gpuprof_status_page::pc_counters) / sizeof(uint64_t);
constinit std::atomic<uint64_t> pc_counters_now[kPcCounters]{};
// held << 32 | wanted, stored before the serial and read after it: who reads the serial of a grant
// reads what was held when it came into force, or later.
constinit std::atomic<uint64_t> pc_claims_now{0};
constinit std::atomic<uint64_t> pc_serial_now{0};
constinit std::atomic<uint64_t> pc_gpus_now[GPUPROF_PC_GPUS_MAX][2]{};

// Holders copy a KiB: only one that will never go on keeps it so long, bar a descheduled one.
constexpr uint64_t kLockWaitNs = 20'000'000;
// A state that could not wait for the lock: bit 63, reason << 32, state. 0: none.
constinit std::atomic<uint64_t> missed_state{0};

constexpr const char* kStateNames[GPUPROF_STATE_COUNT] = {
    "invalid", "declined", "idle", "arming", "tracing", "tracing+pc", "disarming", "busy", "inert"};

// Fields that one change may touch together lie in these two ranges, 8-byte aligned both.
constexpr size_t kFirstBegin = offsetof(gpuprof_status_page, owner_pid);
constexpr size_t kFirstEnd = offsetof(gpuprof_status_page, reserved0);
constexpr size_t kSecondBegin = offsetof(gpuprof_status_page, build_id);
constexpr size_t kSecondEnd = offsetof(gpuprof_status_page, reserved3);
static_assert(kFirstBegin % 8 == 0 && kFirstEnd % 8 == 0);
static_assert(kSecondBegin % 8 == 0 && kSecondEnd % 8 == 0);

void mirror_range(gpuprof_status_page& page, size_t begin, size_t end) {
  auto* to = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&page) + begin);
  const char* from = reinterpret_cast<const char*>(&shadow) + begin;
  for (size_t i = 0; i < (end - begin) / 8; ++i) {
    uint64_t word;
    memcpy(&word, from + 8 * i, sizeof word);
    std::atomic_ref<uint64_t>(to[i]).store(word, std::memory_order_relaxed);
  }
}

// Writer's side of the seqlock. `shadow.seq` is the truth, so that a scribbled page cannot stick on
// an odd number.
void mirror(gpuprof_status_page& page) {
  std::atomic_ref<uint32_t> seq(page.seq);
  seq.store(++shadow.seq, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  mirror_range(page, kFirstBegin, kFirstEnd);
  mirror_range(page, kSecondBegin, kSecondEnd);
  seq.store(++shadow.seq, std::memory_order_release);
}

// Takes over a missed state, whose text is lost. With `lock` held.
void repair_state() {
  const uint64_t missed = missed_state.exchange(0, std::memory_order_acq_rel);
  if (missed == 0) return;
  shadow.state = static_cast<uint32_t>(missed);
  shadow.reason = static_cast<uint32_t>(missed >> 32) & 0x7fffffffu;
  memset(shadow.reason_text, 0, sizeof shadow.reason_text);
  state_now.store(shadow.state, std::memory_order_relaxed);
  reason_now.store(shadow.reason, std::memory_order_relaxed);
}

void take_words() {
  shadow.buffers_outstanding = buffers_now.load(std::memory_order_relaxed);
  shadow.tier = tier_now.load(std::memory_order_relaxed);
  shadow.epoch = epoch_now.load(std::memory_order_relaxed);
  shadow.arms = arms_now.load(std::memory_order_relaxed);
  shadow.disarms = disarms_now.load(std::memory_order_relaxed);
  shadow.off_since_ns = off_since_now.load(std::memory_order_relaxed);
  shadow.off_ns = off_now.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < kPcCounters; ++i) {
    shadow.pc_counters[i] = pc_counters_now[i].load(std::memory_order_relaxed);
  }
  shadow.pc_grant_serial = pc_serial_now.load(std::memory_order_acquire);
  const uint64_t claims = pc_claims_now.load(std::memory_order_relaxed);
  shadow.pc_held = static_cast<uint32_t>(claims >> 32);
  shadow.pc_wanted = static_cast<uint32_t>(claims);
  for (uint32_t i = 0; i < GPUPROF_PC_GPUS_MAX; ++i) {
    const uint64_t words[2] = {pc_gpus_now[i][0].load(std::memory_order_relaxed),
                               pc_gpus_now[i][1].load(std::memory_order_relaxed)};
    memcpy(shadow.pc_gpus[i].bytes, words, sizeof words);
  }
}

// False if the lock's holder does not go on: the next heartbeat brings what lies in single words.
template <typename Change>
bool change(Change&& apply) {
  if (!owned()) return true;
  if (!lock.lock_within(kLockWaitNs)) return false;
  repair_state();  // older than this change
  apply(shadow);
  repair_state();  // came while this change held the lock
  take_words();
  if (gpuprof_status_page* page = channel().status_page()) mirror(*page);
  lock.unlock();
  return true;
}

// For readers who look now; not under the page's seq, which the lock's holder may have left odd.
void miss_state(gpuprof_state state, gpuprof_reason reason) {
  state_now.store(state, std::memory_order_relaxed);
  reason_now.store(reason, std::memory_order_relaxed);
  missed_state.store(uint64_t{1} << 63 | uint64_t{static_cast<uint32_t>(reason)} << 32 |
                         static_cast<uint32_t>(state),
                     std::memory_order_release);
  gpuprof_status_page* page = channel().status_page();
  if (page == nullptr) return;
  std::atomic_ref<uint32_t>(page->reason).store(reason, std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(page->state).store(state, std::memory_order_relaxed);
}

template <size_t N>
void copy_text(char (&out)[N], const char* text) {
  const size_t length = text == nullptr ? 0 : strnlen(text, N - 1);
  if (length != 0) memcpy(out, text, length);
  memset(out + length, 0, N - length);
}

}  // namespace

void begin_status_mirror(gpuprof_status_page& page, uint64_t copies_offset, uint64_t copies_bytes) {
  SpinGuard guard(lock);
  shadow.owner_pid = static_cast<uint32_t>(owner_pid());
  shadow.owner_start_ticks = process_start_ticks();
  shadow.module_capacity = GPUPROF_MODULE_CAPACITY;
  shadow.copies_offset = copies_offset;
  shadow.copies_bytes = copies_bytes;
  shadow.heartbeat_ns = monotonic_ns();
  shadow.subscribe_mode = static_cast<uint32_t>(knobs().subscribe);
  (void)shim_build_id(shadow.build_id);
  take_words();
  copy_text(shadow.unknown_knobs, knobs().unknown);
  shadow.pc_grant_modes = GPUPROF_PC_GRANT_COUNT;
  mirror(page);
  for (uint32_t i = 1; i < GPUPROF_DROP_CLASS_COUNT; ++i) {
    std::atomic_ref<uint64_t>(page.drop_totals[i])
        .store(drop_total(static_cast<gpuprof_drop_class>(i)), std::memory_order_relaxed);
  }
  std::atomic_ref<uint32_t>(page.abi_version).store(GPUPROF_ABI_VERSION, std::memory_order_relaxed);
  std::atomic_ref<uint64_t>(page.magic).store(GPUPROF_STATUS_MAGIC, std::memory_order_release);
}

void set_state(gpuprof_state state, gpuprof_reason reason, const char* text) {
  if (state <= GPUPROF_STATE_INVALID || state >= GPUPROF_STATE_COUNT) return;
  const bool changed = change([&](gpuprof_status_page& page) {
    page.state = state;
    page.reason = reason;
    copy_text(page.reason_text, text);
    state_now.store(state, std::memory_order_relaxed);
    reason_now.store(reason, std::memory_order_relaxed);
  });
  if (!changed) miss_state(state, reason);
  if (log_enabled()) {
    log_line("%s (reason %u)%s%s", kStateNames[state], static_cast<unsigned>(reason),
             text == nullptr ? "" : ": ", text == nullptr ? "" : text);
  }
}

gpuprof_state current_state() {
  if (owner_pid() != 0 && !owned()) return GPUPROF_STATE_INERT;
  return static_cast<gpuprof_state>(state_now.load(std::memory_order_relaxed));
}

gpuprof_reason current_reason() {
  return static_cast<gpuprof_reason>(reason_now.load(std::memory_order_relaxed));
}

void set_tier(gpuprof_tier tier) {
  tier_now.store(tier, std::memory_order_relaxed);
  change([](gpuprof_status_page&) {});
}
void set_epoch(uint32_t epoch) {
  epoch_now.store(epoch, std::memory_order_relaxed);
  change([](gpuprof_status_page&) {});
}
void set_subscribe_mode(SubscribeMode mode) {
  change([&](gpuprof_status_page& page) { page.subscribe_mode = static_cast<uint32_t>(mode); });
}
void count_arm() {
  arms_now.fetch_add(1, std::memory_order_relaxed);
  change([](gpuprof_status_page&) {});
}
void count_disarm() {
  disarms_now.fetch_add(1, std::memory_order_relaxed);
  change([](gpuprof_status_page&) {});
}

void set_recording(bool on, uint64_t now_ns) {
  const uint64_t since_ns = off_since_now.load(std::memory_order_relaxed);
  if (on && since_ns != 0 && now_ns > since_ns) {
    off_now.fetch_add(now_ns - since_ns, std::memory_order_relaxed);
  }
  off_since_now.store(on ? 0 : now_ns, std::memory_order_relaxed);
  change([](gpuprof_status_page&) {});
}

void set_buffers_outstanding(uint32_t buffers) {
  // By itself: it changes with every buffer, from callbacks. A change() at the same moment may put
  // the old number back; the next heartbeat corrects it.
  buffers_now.store(buffers, std::memory_order_relaxed);
  if (gpuprof_status_page* page = channel().status_page()) {
    std::atomic_ref<uint32_t>(page->buffers_outstanding).store(buffers, std::memory_order_relaxed);
  }
}

void set_cupti(uint32_t version, const char* path, gpuprof_cupti_origin origin) {
  change([&](gpuprof_status_page& page) {
    page.cupti_version = version;
    page.cupti_origin = origin;
    copy_text(page.cupti_path, path);
  });
}

void set_driver(uint32_t driver_version, gpuprof_libcuda_kind kind, const char* libcuda_path,
                const char* kernel_driver_version) {
  change([&](gpuprof_status_page& page) {
    page.driver_version = driver_version;
    page.libcuda_kind = kind;
    copy_text(page.libcuda_path, libcuda_path);
    copy_text(page.kernel_driver_version, kernel_driver_version);
  });
}

void set_pc_status(const PcStatus& status, const char* text) {
  change([&](gpuprof_status_page& page) {
    page.pc_state = status.state;
    page.pc_reason = status.reason;
    page.pc_period = status.period;
    page.pc_contexts = status.contexts;
    copy_text(page.pc_reason_text, text);
  });
}

void set_pc_claims(const PcClaims& claims) {
  pc_claims_now.store(uint64_t{claims.held} << 32 | claims.wanted, std::memory_order_relaxed);
  pc_serial_now.store(claims.grant_serial, std::memory_order_release);
  change([](gpuprof_status_page&) {});
}

void set_pc_gpu(uint32_t device_id, const uint8_t (&uuid)[16]) {
  if (device_id >= GPUPROF_PC_GPUS_MAX) return;
  uint64_t words[2];
  memcpy(words, uuid, sizeof words);
  pc_gpus_now[device_id][0].store(words[0], std::memory_order_relaxed);
  pc_gpus_now[device_id][1].store(words[1], std::memory_order_relaxed);
  change([](gpuprof_status_page&) {});
}

void count_pc(gpuprof_pc_counter counter, uint64_t count) {
  if (static_cast<uint32_t>(counter) >= kPcCounters) return;
  const uint64_t total =
      pc_counters_now[counter].fetch_add(count, std::memory_order_relaxed) + count;
  // A change() at the same moment may put an older number back; the next heartbeat corrects it.
  if (gpuprof_status_page* page = channel().status_page()) {
    std::atomic_ref<uint64_t>(page->pc_counters[counter]).store(total, std::memory_order_relaxed);
  }
}

void publish_heartbeat(uint64_t now_ns) {
  change([&](gpuprof_status_page& page) {
    page.heartbeat_ns = now_ns;
    page.module_count = channel().modules().count();
    page.copies_bytes = channel().modules().room();
  });
  if (gpuprof_status_page* page = channel().status_page()) {
    for (const auto drop_class : {GPUPROF_DROP_LAUNCHES_SEEN, GPUPROF_DROP_LAUNCHES_DRAWN}) {
      std::atomic_ref<uint64_t>(page->drop_totals[drop_class])
          .store(drop_total(drop_class), std::memory_order_relaxed);
    }
  }
}

uint64_t emit_process(int memfd) {
  gpuprof_process_v1 record{};
  record.abi_version = GPUPROF_ABI_VERSION;
  record.pid = static_cast<uint32_t>(owner_pid());
  record.start_ticks = process_start_ticks();
  record.memfd = memfd;
  record.state = current_state();
  record.time_ns = monotonic_ns();
  (void)shim_build_id(record.build_id);
  return emit(GPUPROF_PROBE_PROCESS, &record, 1);
}

}  // namespace gpuprof::shim
