// SPDX-License-Identifier: Apache-2.0
// Settings and faults: a file beside the library, FAKE_CUDA_<KEY> in the environment,
// fake_cuda_set() at run time.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {
namespace {

struct Entry {
  Key key;
  const char* name;
  uint64_t value;
};

// The order does not matter; README.md documents each.
constexpr Entry kEntries[] = {
    {Key::kApi, "api", 0},  // 0: what the library's SONAME stands for
    {Key::kDriver, "driver", 13000},
    {Key::kDevices, "devices", 1},
    {Key::kInstant, "instant", 0},
    {Key::kRequestOnWorker, "request_on_worker", 0},
    {Key::kCompleteOnFlusher, "complete_on_flusher", 1},
    {Key::kSubscribeBusy, "subscribe_busy", 0},
    {Key::kSubscribeFail, "subscribe_fail", 0},
    {Key::kSubscribeMs, "subscribe_ms", 0},
    {Key::kDropEvery, "drop_every", 0},
    {Key::kZeroTimesEvery, "zero_times_every", 0},
    {Key::kReverseTimesEvery, "reverse_times_every", 0},
    {Key::kLateMs, "late_ms", 0},
    {Key::kReorder, "reorder", 0},
    {Key::kCorrelation, "correlation", 0},
    {Key::kOtherClient, "other_client", 0},
    {Key::kFlushHang, "flush_hang", 0},
    {Key::kFlushWaits, "flush_waits", 0},
    {Key::kCancelAt, "cancel_at", 0},
    {Key::kClockStepNs, "clock_step_ns", 0},
    {Key::kLaunchFailEvery, "launch_fail_every", 0},
    {Key::kQueueNs, "queue_ns", 20'000'000},
    {Key::kTemporaryModules, "temporary_modules", 0},
    {Key::kEnableFail, "enable_fail", 0},
    {Key::kCallbackFail, "callback_fail", 0},
    {Key::kRegisterFail, "register_fail", 0},
    {Key::kDefaultDurationNs, "duration_ns", 5000},
    {Key::kNoDriverLaunch, "no_driver_launch", 0},
    {Key::kWorkerMs, "worker_ms", 5},
    {Key::kFatalError, "fatal_error", 0},
    {Key::kSms, "sms", 132},
    {Key::kClockKhz, "clock_khz", 1'980'000},
    {Key::kComputeCapability, "cc", 90},
    {Key::kPcFail, "pc_fail", 0},
    {Key::kPcAttributeFail, "pc_attribute_fail", 0},
    {Key::kPcDefaultPeriod, "pc_default_period", 17},
    {Key::kPcEnableMs, "pc_enable_ms", 0},
    {Key::kPcDropEvery, "pc_drop_every", 0},
    {Key::kPcOomAt, "pc_oom_at", 0},
    {Key::kPcOom, "pc_oom", 0},
    {Key::kUnsubscribeFail, "unsubscribe_fail", 0},
    {Key::kGraphPcData, "graph_pc_data", 0},
    {Key::kHashReplaced, "hash_replaced", 0},
    {Key::kDropOnDevice, "drop_on_device", 0},
    {Key::kPcStopMs, "pc_stop_ms", 0},
    {Key::kPcNoPerfworks, "pc_no_perfworks", 0},
    {Key::kFirstGpu, "first_gpu", 0},
    {Key::kInitFail, "init_fail", 0},
    {Key::kInitFailLate, "init_fail_late", 0},
};
static_assert(sizeof(kEntries) / sizeof(kEntries[0]) == static_cast<size_t>(Key::kCount));

/// `enable_fail=KIND:CODE`, `callback_fail=DOMAIN:CBID:CODE`, several with commas.
constexpr bool is_list(Key key) {
  return key == Key::kEnableFail || key == Key::kCallbackFail || key == Key::kPcFail ||
         key == Key::kPcAttributeFail;
}

struct Failures {
  static constexpr size_t kSlots = 32;
  std::atomic<uint64_t> slot[kSlots];  // key << 56 | domain << 48 | id << 16 | code
};

struct Store {
  std::atomic<uint64_t> value[static_cast<size_t>(Key::kCount)];
  Failures failures;
};

void set_failures(Store& store, Key key, const char* text) {
  size_t next = 0;
  for (auto& slot : store.failures.slot) {  // a new list replaces the old one of this key
    if (slot.load() >> 56 == static_cast<uint64_t>(key) + 1) slot.store(0);
  }
  while (*text) {
    char* end = nullptr;
    uint64_t parts[3] = {0, 0, 0};
    size_t n = 0;
    while (n < 3) {
      parts[n++] = strtoull(text, &end, 0);
      if (*end != ':') break;
      text = end + 1;
    }
    const bool three = n == 3;
    const uint64_t packed = (static_cast<uint64_t>(key) + 1) << 56 | (three ? parts[0] : 0) << 48 |
                            (three ? parts[1] : parts[0]) << 16 | (three ? parts[2] : parts[1]);
    while (next < Failures::kSlots && store.failures.slot[next].load() != 0) ++next;
    if (next < Failures::kSlots) store.failures.slot[next].store(packed);
    if (*end != ',') break;
    text = end + 1;
  }
}

bool assign(Store& store, const char* name, const char* text) {
  for (const Entry& entry : kEntries) {
    if (strcmp(entry.name, name) != 0) continue;
    if (is_list(entry.key)) {
      set_failures(store, entry.key, text);
    } else {
      store.value[static_cast<size_t>(entry.key)].store(strtoull(text, nullptr, 0));
    }
    return true;
  }
  return false;
}

/// Lines KEY=VALUE of the file beside this library's own, LIBRARY.settings: two libcudas in one
/// root differ by them.
void read_own_file(Store& fresh) {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&read_own_file), &self) == 0) return;
  char* real = realpath(self.dli_fname, nullptr);
  if (real == nullptr) return;
  const std::string name = std::string(real) + ".settings";
  free(real);
  FILE* file = fopen(name.c_str(), "re");
  if (file == nullptr) return;
  char line[256];
  while (fgets(line, sizeof line, file) != nullptr) {
    line[strcspn(line, "\n")] = '\0';
    char* value = strchr(line, '=');
    if (value == nullptr) continue;
    *value = '\0';
    assign(fresh, line, value + 1);
  }
  fclose(file);
}

Store& store() {
  static Store* instance = [] {
    auto* fresh = new Store{};
    for (const Entry& entry : kEntries) {
      fresh->value[static_cast<size_t>(entry.key)].store(entry.value);
    }
    read_own_file(*fresh);
    for (const Entry& entry : kEntries) {
      std::string name = "FAKE_CUDA_";
      for (const char* c = entry.name; *c; ++c) name += static_cast<char>(toupper(*c));
      if (const char* text = getenv(name.c_str())) assign(*fresh, entry.name, text);
    }
    return fresh;
  }();
  return *instance;
}

uint64_t read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint64_t setting(Key key) {
  return store().value[static_cast<size_t>(key)].load(std::memory_order_relaxed);
}

bool consume(Key key) {
  auto& left = store().value[static_cast<size_t>(key)];
  uint64_t now = left.load();
  while (now != 0) {
    if (left.compare_exchange_weak(now, now - 1)) return true;
  }
  return false;
}

uint32_t failure(Key key, uint32_t domain, uint32_t id) {
  const uint64_t want = (static_cast<uint64_t>(key) + 1) << 56 |
                        static_cast<uint64_t>(domain) << 48 | static_cast<uint64_t>(id) << 16;
  for (auto& slot : store().failures.slot) {
    const uint64_t packed = slot.load(std::memory_order_relaxed);
    if (packed != 0 && (packed & ~0xffffull) == want) return packed & 0xffff;
  }
  return 0;
}

bool set_setting(const char* key, const char* value) { return assign(store(), key, value); }

uint64_t fake_now() { return read_clock(CLOCK_REALTIME) + setting(Key::kClockStepNs); }
uint64_t monotonic_now() { return read_clock(CLOCK_MONOTONIC); }

}  // namespace fakecuda

FAKE_EXPORT int fake_cuda_set(const char* key, const char* value) {
  return fakecuda::set_setting(key, value) ? 0 : -1;
}
