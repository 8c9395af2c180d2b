// SPDX-License-Identifier: Apache-2.0
//
// The bare listener: what any tracer of kernels pays for CUPTI, and nothing else. It is injected
// like the shim (CUDA_INJECTION64_PATH), enables the same kinds and the same driver callbacks,
// flushes at the same period, and only counts. Its counts are the truth that the profiler's are
// compared with, its speed is the floor that the profiler's cost is measured from. It shares no
// code with the shim.
//
//   LISTENER_MODE      trace (default) | pc: trace, and continuous PC sampling from the context's
//                      creation on, drained in launch exits every 100 ms, nothing kept | hash: an
//                      empty cubin-hash callback and no subscriber | load: libcupti loaded, nothing
//                      registered | none
//   LISTENER_OUT       file for the counts, one JSON object, written at exit
//   LISTENER_NAMES     1: count kernels by name too
//   LISTENER_CUPTI     libcupti to load where the process has none mapped
//   LISTENER_PERIOD    of mode pc: log2 of the cycles (default 20)
//   LISTENER_TURNS     of mode pc: ON,OFF milliseconds: sampling is started and stopped in launch
//                      exits; ON 0: enabled and never started (default: no start/stop control)
//   LISTENER_SWITCH    of LISTENER_TURNS: 1: enabled and disabled instead, enabled at first
//   LISTENER_SLEEP     of mode pc: milliseconds that CUPTI's decoder sleeps (default: CUPTI's, 100)
//   LISTENER_BUFFER    bytes of an activity buffer (default 262144)
#include <cuda.h>
#include <cupti.h>
#include <cupti_pcsampling.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

#define LISTENER_FUNCTIONS(X)       \
  X(cuptiGetVersion)                \
  X(cuptiSubscribe)                 \
  X(cuptiEnableCallback)            \
  X(cuptiGetCallbackName)           \
  X(cuptiActivityRegisterCallbacks) \
  X(cuptiActivityEnable)            \
  X(cuptiActivityFlushAll)          \
  X(cuptiActivityGetNextRecord)     \
  X(cuptiActivityGetNumDroppedRecords)

// Of CUPTI 12.9 and later, whose records have this size.
#define LISTENER_PC_FUNCTIONS(X)              \
  X(cuptiPCSamplingEnable)                    \
  X(cuptiPCSamplingDisable)                   \
  X(cuptiPCSamplingSetConfigurationAttribute) \
  X(cuptiPCSamplingStart)                     \
  X(cuptiPCSamplingStop)                      \
  X(cuptiPCSamplingGetData)

struct Cupti {
#define DECLARE(name) decltype(&::name) name = nullptr;
  LISTENER_FUNCTIONS(DECLARE)
  decltype(&::cuptiRegisterComputeCrcCallback) cuptiRegisterComputeCrcCallback = nullptr;
  LISTENER_PC_FUNCTIONS(DECLARE)
#undef DECLARE
};

// One of the two buffers of PC sampling: GetData fills one, CUPTI the other.
struct PcBuffer {
  static constexpr size_t kPcs = 2048, kReasons = 64;
  CUpti_PCSamplingData data{};
  std::vector<CUpti_PCSamplingPCData> records{kPcs};
  std::vector<CUpti_PCSamplingStallReason> reasons{kPcs * kReasons};
  PcBuffer() {
    data.size = sizeof data;
    data.collectNumPcs = kPcs;
    data.pPcData = records.data();
    for (size_t i = 0; i < kPcs; ++i) {
      records[i].size = sizeof records[i];
      records[i].stallReason = &reasons[i * kReasons];
    }
  }
};

// Kernel records of CUDA 11.0 to 13.x are alike up to here; the struct of the headers may be
// longer.
struct KernelPrefix {
  uint32_t kind;
  uint8_t unused0[12];
  uint64_t start;
  uint64_t end;
  uint8_t unused1[72];
  const char* name;
  uint8_t unused2[32];
  uint64_t graph_node;
  uint8_t unused3[4];
  uint32_t graph_id;
};
static_assert(offsetof(KernelPrefix, start) == 16);
static_assert(offsetof(KernelPrefix, name) == 104);
static_assert(offsetof(KernelPrefix, graph_node) == 144);
static_assert(offsetof(KernelPrefix, graph_id) == 156);

struct Counts {
  std::atomic<uint64_t> kernels{0}, graph_kernels{0}, memcpys{0}, peer_memcpys{0}, memsets{0},
      other{0};
  std::atomic<uint64_t> invalid_times{0}, dropped{0}, callbacks{0}, gpu_ns{0};
};

// Leaked on purpose: CUPTI's worker outlives static destructors.
struct Listener {
  Cupti cupti;
  Counts counts;
  std::string mode;
  bool names = false;
  size_t buffer_bytes = 256 * 1024;
  std::string out;
  uint32_t version = 0;
  std::mutex mutex;  // pool and by_name
  std::vector<uint8_t*> pool;
  std::map<std::string, uint64_t> by_name;
  uint32_t period = 20;
  CUcontext sampled = nullptr;
  PcBuffer drained, registered;
  std::mutex pc_mutex;  // one thread at a time in what samples or flushes
  std::atomic<uint64_t> drain_at_ns{UINT64_MAX}, pc_samples{0};
  bool has_turns = false, switches = false;
  uint32_t sleep_ms = 0;
  uint64_t on_ns = 0, off_ns = 0;
  std::atomic<uint64_t> turn_at_ns{UINT64_MAX};
  bool started = false;  // this and the next: pc_mutex
  uint64_t turns = 0, turns_ns = 0, slowest_turn_ns = 0;
};
Listener* g;

void CUPTIAPI request_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = g->buffer_bytes;
  *max_records = 0;
  {
    std::lock_guard lock(g->mutex);
    if (!g->pool.empty()) {
      *buffer = g->pool.back();
      g->pool.pop_back();
      return;
    }
  }
  *buffer = static_cast<uint8_t*>(aligned_alloc(64, g->buffer_bytes));
}

void count_times(uint64_t start, uint64_t end) {
  if (start == 0 || end < start) {
    g->counts.invalid_times.fetch_add(1, std::memory_order_relaxed);
  } else {
    g->counts.gpu_ns.fetch_add(end - start, std::memory_order_relaxed);
  }
}

void count_kernel(const CUpti_Activity* record) {
  const auto* kernel = reinterpret_cast<const KernelPrefix*>(record);
  g->counts.kernels.fetch_add(1, std::memory_order_relaxed);
  if (kernel->graph_id != 0) g->counts.graph_kernels.fetch_add(1, std::memory_order_relaxed);
  count_times(kernel->start, kernel->end);
  if (g->names && kernel->name != nullptr) {
    std::lock_guard lock(g->mutex);
    ++g->by_name[kernel->name];
  }
}

void count_record(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL:
      return count_kernel(record);
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      g->counts.memcpys.fetch_add(1, std::memory_order_relaxed);
      return count_times(copy->start, copy->end);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record);
      g->counts.peer_memcpys.fetch_add(1, std::memory_order_relaxed);
      return count_times(copy->start, copy->end);
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      g->counts.memsets.fetch_add(1, std::memory_order_relaxed);
      return count_times(set->start, set->end);
    }
    default:
      g->counts.other.fetch_add(1, std::memory_order_relaxed);
  }
}

void CUPTIAPI complete_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                              size_t valid) {
  CUpti_Activity* record = nullptr;
  while (g->cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS)
    count_record(record);
  size_t dropped = 0;
  if (g->cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
    g->counts.dropped.fetch_add(dropped, std::memory_order_relaxed);
  std::lock_guard lock(g->mutex);
  g->pool.push_back(buffer);
}

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

constexpr uint64_t kDrainNs = 100'000'000;

void drain_all() {
  if (g->switches && !g->started) return;
  CUpti_PCSamplingGetDataParams params{CUpti_PCSamplingGetDataParamsSize, nullptr, g->sampled,
                                       &g->drained.data};
  do {
    if (g->cupti.cuptiPCSamplingGetData(&params) != CUPTI_SUCCESS) break;
    g->pc_samples += g->drained.data.totalSamples;
  } while (g->drained.data.remainingNumPcs != 0 && g->drained.data.totalNumPcs != 0);
  g->drain_at_ns = now_ns() + kDrainNs;
}

void drain() {
  const std::unique_lock lock(g->pc_mutex, std::try_to_lock);
  if (lock.owns_lock()) drain_all();
}

void enable() {
  CUpti_PCSamplingEnableParams enable{CUpti_PCSamplingEnableParamsSize, nullptr, g->sampled};
  CUpti_PCSamplingConfigurationInfo infos[5] = {};
  infos[0].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER;
  infos[0].attributeData.samplingDataBufferData.samplingDataBuffer = &g->registered.data;
  infos[1].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
  infos[1].attributeData.samplingPeriodData.samplingPeriod = g->period;
  infos[2].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE;
  infos[2].attributeData.hardwareBufferSizeData.hardwareBufferSize = 128u << 20;
  infos[3].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL;
  infos[3].attributeData.enableStartStopControlData.enableStartStopControl = g->has_turns;
  infos[4].attributeType =
      CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_WORKER_THREAD_PERIODIC_SLEEP_SPAN;
  infos[4].attributeData.workerThreadPeriodicSleepSpanData.workerThreadPeriodicSleepSpan =
      g->sleep_ms;
  CUpti_PCSamplingConfigurationInfoParams set{CUpti_PCSamplingConfigurationInfoParamsSize, nullptr,
                                              g->sampled, g->sleep_ms != 0 ? 5u : 4u, infos};
  if (g->cupti.cuptiPCSamplingEnable(&enable) != CUPTI_SUCCESS ||
      g->cupti.cuptiPCSamplingSetConfigurationAttribute(&set) != CUPTI_SUCCESS) {
    fprintf(stderr, "listener: no PC sampling\n");
    _exit(97);
  }
}

CUptiResult start_sampling() {
  CUpti_PCSamplingStartParams start{CUpti_PCSamplingStartParamsSize, nullptr, g->sampled};
  return g->cupti.cuptiPCSamplingStart(&start);
}

// Disabled only when stopped: docs/adr/0021.
CUptiResult switch_sampling() {
  if (!g->started) {
    if (g->switches) enable();
    return start_sampling();
  }
  CUpti_PCSamplingStopParams stop{CUpti_PCSamplingStopParamsSize, nullptr, g->sampled};
  const CUptiResult stopped = g->cupti.cuptiPCSamplingStop(&stop);
  if (stopped != CUPTI_SUCCESS || !g->switches) return stopped;
  CUpti_PCSamplingDisableParams disable{CUpti_PCSamplingDisableParamsSize, nullptr, g->sampled};
  return g->cupti.cuptiPCSamplingDisable(&disable);
}

// Begins or ends a turn. In a launch's exit: elsewhere all of these hang.
void turn() {
  const std::unique_lock lock(g->pc_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const uint64_t begin = now_ns();
  const CUptiResult result = switch_sampling();
  if (result != CUPTI_SUCCESS) {
    fprintf(stderr, "listener: turn %s: %d\n", g->started ? "off" : "on", result);
    _exit(97);
  }
  const uint64_t end = now_ns();
  g->slowest_turn_ns = std::max(g->slowest_turn_ns, end - begin);
  g->turns_ns += end - begin;
  ++g->turns;
  g->started = !g->started;
  g->turn_at_ns = end + (g->started ? g->on_ns : g->off_ns);
}

void sample(CUcontext context) {
  const std::lock_guard lock(g->pc_mutex);
  g->sampled = context;
  enable();
  g->started = g->switches && start_sampling() == CUPTI_SUCCESS;
  g->drain_at_ns = now_ns() + kDrainNs;
  // Soon, but w2 has captured its graph by then: not in a launch of a capture.
  constexpr uint64_t kFirstTurnNs = 100'000'000;
  if (g->has_turns && g->on_ns != 0)
    g->turn_at_ns = now_ns() + (g->started ? g->on_ns : kFirstTurnNs);
}

bool launches(const char* name) {
  return strncmp(name, "cuLaunchKernel", 14) == 0 || strncmp(name, "cuGraphLaunch", 13) == 0;
}

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId, const void* data) {
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    if (g->sampled == nullptr) sample(static_cast<const CUpti_ResourceData*>(data)->context);
    return;
  }
  const auto* call = static_cast<const CUpti_CallbackData*>(data);
  if (call->callbackSite == CUPTI_API_ENTER) {
    g->counts.callbacks.fetch_add(1, std::memory_order_relaxed);
  } else if (g->sampled != nullptr) {
    const uint64_t now = now_ns();
    if (now >= g->turn_at_ns.load(std::memory_order_relaxed) && launches(call->functionName))
      turn();
    if (now >= g->drain_at_ns.load(std::memory_order_relaxed)) drain();
  }
}

void CUPTIAPI empty_hash(const void*, size_t, uint64_t* hash) { *hash = 0; }

// The driver calls that put work on the GPU, by name, so that the list fits any CUPTI up to 13.0.
bool launches_work(const char* name) {
  for (const char* prefix : {"cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"})
    if (strncmp(name, prefix, strlen(prefix)) == 0) return strcmp(name, "cuLaunchHostFunc") != 0;
  return false;
}

void* flush_loop(void*) {
  const timespec period{0, 100'000'000};
  for (;;) {
    nanosleep(&period, nullptr);
    const std::lock_guard lock(g->pc_mutex);
    g->cupti.cuptiActivityFlushAll(0);
  }
}

bool start_tracing() {
  CUpti_SubscriberHandle subscriber;
  if (g->cupti.cuptiSubscribe(&subscriber, on_callback, nullptr) != CUPTI_SUCCESS) return false;
  for (uint32_t id = 1; id < 2000; ++id) {
    const char* name = nullptr;
    if (g->cupti.cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) != CUPTI_SUCCESS ||
        !name)
      continue;
    if (launches_work(name))
      g->cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  }
  if (g->mode == "pc")
    g->cupti.cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                                 CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
  if (g->cupti.cuptiActivityRegisterCallbacks(request_buffer, complete_buffer) != CUPTI_SUCCESS)
    return false;
  for (CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                  CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET})
    if (g->cupti.cuptiActivityEnable(kind) != CUPTI_SUCCESS) return false;
  pthread_t thread;
  return pthread_create(&thread, nullptr, flush_loop, nullptr) == 0;
}

void write_string(FILE* file, const std::string& text) {
  fputc('"', file);
  for (char c : text) {
    if (c == '"' || c == '\\') fputc('\\', file);
    fputc(c, file);
  }
  fputc('"', file);
}

void report() {
  if (g->sampled != nullptr) {
    const timespec decoder{0, 400'000'000};  // it wakes every 100 ms
    nanosleep(&decoder, nullptr);
  }
  const std::lock_guard alone(g->pc_mutex);
  if (g->sampled != nullptr) drain_all();
  if (g->mode == "trace" || g->mode == "pc") g->cupti.cuptiActivityFlushAll(1);
  FILE* file = g->out.empty() ? nullptr : fopen(g->out.c_str(), "w");
  if (file == nullptr) return;
  const Counts& c = g->counts;
  auto number = [](const std::atomic<uint64_t>& n) {
    return static_cast<unsigned long long>(n.load());
  };
  fprintf(file,
          "{\"cupti\": %u, \"kernels\": %llu, \"graph_kernels\": %llu, \"memcpys\": %llu, "
          "\"peer_memcpys\": %llu,"
          " \"memsets\": %llu, \"other\": %llu, \"invalid_times\": %llu, \"dropped\": %llu, "
          "\"callbacks\": %llu, \"pc_samples\": %llu, \"pc_turns\": %llu, "
          "\"pc_turn_ns\": %llu, \"pc_slowest_turn_ns\": %llu,"
          " \"gpu_ns\": %llu, \"names\": {",
          g->version, number(c.kernels), number(c.graph_kernels), number(c.memcpys),
          number(c.peer_memcpys), number(c.memsets), number(c.other), number(c.invalid_times),
          number(c.dropped), number(c.callbacks), number(g->pc_samples),
          static_cast<unsigned long long>(g->turns),
          static_cast<unsigned long long>(g->turns != 0 ? g->turns_ns / g->turns : 0),
          static_cast<unsigned long long>(g->slowest_turn_ns), number(c.gpu_ns));
  std::lock_guard lock(g->mutex);
  const char* separator = "";
  for (const auto& [name, count] : g->by_name) {
    fputs(separator, file);
    write_string(file, name);
    fprintf(file, ": %llu", static_cast<unsigned long long>(count));
    separator = ", ";
  }
  fputs("}}\n", file);
  fclose(file);
}

int find_mapped(dl_phdr_info* info, size_t, void* data) {
  const char* slash = strrchr(info->dlpi_name, '/');
  if (slash == nullptr || strncmp(slash + 1, "libcupti.so", 11) != 0) return 0;
  *static_cast<std::string*>(data) = info->dlpi_name;
  return 1;
}

// A mapped libcupti first, as the shim does: two copies in one process would measure something
// else.
void* open_cupti() {
  std::string mapped;
  dl_iterate_phdr(find_mapped, &mapped);
  const char* named = getenv("LISTENER_CUPTI");
  for (const char* path :
       {mapped.c_str(), named ? named : "", "libcupti.so.13", "libcupti.so.12",
        "/usr/local/cuda/lib64/libcupti.so", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}) {
    if (*path == 0) continue;
    if (void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return handle;
  }
  return nullptr;
}

bool start() {
  if (g->mode == "none") return true;
  void* handle = open_cupti();
  if (handle == nullptr) return false;
  bool complete = true;
#define RESOLVE(name)                                                        \
  g->cupti.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name)); \
  complete = complete && g->cupti.name != nullptr;
  LISTENER_FUNCTIONS(RESOLVE)
  if (g->mode == "pc") {
    LISTENER_PC_FUNCTIONS(RESOLVE)
  }
#undef RESOLVE
  if (!complete) return false;
  g->cupti.cuptiGetVersion(&g->version);
  if (g->mode == "load") return true;
  if (g->mode == "hash") {
    const char* name = "cuptiRegisterComputeCrcCallback";
    g->cupti.cuptiRegisterComputeCrcCallback =
        reinterpret_cast<decltype(&::cuptiRegisterComputeCrcCallback)>(dlsym(handle, name));
    return g->cupti.cuptiRegisterComputeCrcCallback != nullptr &&
           g->cupti.cuptiRegisterComputeCrcCallback(empty_hash) == CUPTI_SUCCESS;
  }
  return start_tracing();
}

}  // namespace

// Called by the driver inside cuInit. A listener that cannot listen must not look like one.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  g = new Listener;
  const char* mode = getenv("LISTENER_MODE");
  g->mode = mode != nullptr ? mode : "trace";
  if (const char* out = getenv("LISTENER_OUT")) g->out = out;
  if (const char* period = getenv("LISTENER_PERIOD"))
    g->period = static_cast<uint32_t>(strtoul(period, nullptr, 10));
  if (const char* turns = getenv("LISTENER_TURNS")) {
    unsigned long long on = 0, off = 0;
    g->has_turns = sscanf(turns, "%llu,%llu", &on, &off) == 2;
    g->on_ns = on * 1'000'000;
    g->off_ns = off * 1'000'000;
    const char* switches = getenv("LISTENER_SWITCH");
    g->switches = switches != nullptr && strcmp(switches, "1") == 0;
  }
  if (const char* sleep = getenv("LISTENER_SLEEP"))
    g->sleep_ms = static_cast<uint32_t>(strtoul(sleep, nullptr, 10));
  if (const char* bytes = getenv("LISTENER_BUFFER")) g->buffer_bytes = strtoull(bytes, nullptr, 10);
  const char* names = getenv("LISTENER_NAMES");
  g->names = names != nullptr && strcmp(names, "1") == 0;
  if (!start()) {
    fprintf(stderr, "listener: mode %s could not be set up\n", g->mode.c_str());
    _exit(97);
  }
  atexit(report);
  return 1;
}
