// SPDX-License-Identifier: Apache-2.0
//
// What happens to correlation ids when callback ids are switched while threads are in the calls.
// It has a CUPTI subscriber of its own and nothing of the shim. A thread is stuck when a hundred
// driver launches in a row come out with one id. One line of JSON.
//
//   stuck_ids LIBCUPTI MODE SECONDS [--threads N]
//     MODE  runtime         activity on, driver launch ids on, runtime launch ids on and off
//           driver-no-activity  driver launch ids on and off, no activity ever
//           driver          the same with activity on
//           arm             driver ids on, activity on and off in a launch exit, driver ids off
#include <cuda.h>
#include <cuda_runtime.h>
#include <cupti.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

__global__ void tiny() {}

namespace {

#define CUPTI_FUNCTIONS(X)          \
  X(cuptiGetVersion)                \
  X(cuptiSubscribe)                 \
  X(cuptiEnableCallback)            \
  X(cuptiActivityRegisterCallbacks) \
  X(cuptiActivityEnable)            \
  X(cuptiActivityDisable)           \
  X(cuptiActivityFlushAll)

struct Cupti {
#define DECLARE(name) decltype(&::name) name = nullptr;
  CUPTI_FUNCTIONS(DECLARE)
#undef DECLARE
} cupti;

constexpr uint32_t kRuntime[] = {CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
                                 CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060};
constexpr uint32_t kDriver[] = {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
                                CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx};
constexpr uint64_t kStuckAfter = 100;

struct Launcher {
  uint32_t last = 0;
  uint64_t launches = 0;
  std::atomic<uint64_t> same{0};  // in a row
};

thread_local Launcher* mine = nullptr;
CUpti_SubscriberHandle subscriber;
std::atomic<bool> stop{false};
enum class Step { kNone, kEnable, kDisable };
std::atomic<Step> step{Step::kNone};

void toggle_activity() {
  Step wanted = step.load(std::memory_order_relaxed);
  if (wanted == Step::kNone || !step.compare_exchange_strong(wanted, Step::kNone)) return;
  (wanted == Step::kEnable ? cupti.cuptiActivityEnable
                           : cupti.cuptiActivityDisable)(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
}

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId, const void* data) {
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  if (mine == nullptr || domain != CUPTI_CB_DOMAIN_DRIVER_API ||
      call.callbackSite != CUPTI_API_EXIT)
    return;
  ++mine->launches;
  mine->same = call.correlationId == mine->last ? mine->same + 1 : 0;
  mine->last = call.correlationId;
  toggle_activity();
}

void CUPTIAPI request(uint8_t** buffer, size_t* size, size_t* records) {
  *size = 1 << 18;
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, *size));
  *records = 0;
}

void CUPTIAPI complete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t) { free(buffer); }

template <size_t kCount>
void switch_ids(CUpti_CallbackDomain domain, const uint32_t (&ids)[kCount], bool on) {
  for (const uint32_t id : ids) cupti.cuptiEnableCallback(on, subscriber, domain, id);
}
void switch_runtime(bool on) { switch_ids(CUPTI_CB_DOMAIN_RUNTIME_API, kRuntime, on); }
void switch_driver(bool on) { switch_ids(CUPTI_CB_DOMAIN_DRIVER_API, kDriver, on); }

void launch_for_ever(Launcher* launcher) {
  mine = launcher;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  for (uint64_t count = 1; !stop.load(std::memory_order_relaxed); ++count) {
    tiny<<<1, 32, 0, stream>>>();
    if (count % 4096 == 0) cudaStreamSynchronize(stream);
  }
  cudaStreamSynchronize(stream);
}

bool do_step(Step wanted) {
  step = wanted;
  for (int i = 0; i < 10'000 && step != Step::kNone; ++i) usleep(20);
  return step == Step::kNone;
}

void cycle(const std::string& mode) {
  if (mode == "runtime") {
    switch_runtime(true);
    usleep(500);
    switch_runtime(false);
  } else if (mode == "arm") {
    switch_driver(true);
    do_step(Step::kEnable);
    usleep(2000);
    do_step(Step::kDisable);
    cupti.cuptiActivityFlushAll(0);
    switch_driver(false);
    usleep(500);
    switch_driver(true);
  } else {
    switch_driver(false);
    usleep(500);
    switch_driver(true);
  }
  usleep(2000);
}

bool load(const char* path) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return false;
  bool complete = true;
#define RESOLVE(name)                                                     \
  cupti.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name)); \
  complete = complete && cupti.name != nullptr;
  CUPTI_FUNCTIONS(RESOLVE)
#undef RESOLVE
  return complete;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || !load(argv[1])) {
    fprintf(stderr, "stuck_ids: LIBCUPTI MODE SECONDS [--threads N]; dlerror: %s\n", dlerror());
    return 2;
  }
  const std::string mode = argv[2];
  const int threads = argc > 5 && strcmp(argv[4], "--threads") == 0 ? atoi(argv[5]) : 2;
  if (cudaFree(nullptr) != cudaSuccess) return 3;
  uint32_t version = 0;
  cupti.cuptiGetVersion(&version);
  if (cupti.cuptiSubscribe(&subscriber, on_callback, nullptr) != CUPTI_SUCCESS) return 4;
  cupti.cuptiActivityRegisterCallbacks(request, complete);
  if (mode == "runtime" || mode == "driver")
    cupti.cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  switch_driver(true);
  std::vector<Launcher> launchers(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  for (Launcher& launcher : launchers) running.emplace_back(launch_for_ever, &launcher);
  usleep(100'000);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(strtod(argv[3], nullptr));
  uint64_t cycles = 0;
  int stuck = 0;
  while (stuck == 0 && std::chrono::steady_clock::now() < end) {
    cycle(mode);
    ++cycles;
    for (const Launcher& launcher : launchers) stuck += launcher.same > kStuckAfter;
  }
  stop = true;
  for (std::thread& thread : running) thread.join();
  uint64_t launches = 0;
  for (const Launcher& launcher : launchers) launches += launcher.launches;
  printf(
      "{\"cupti\": %u, \"mode\": \"%s\", \"cycles\": %llu, \"threads\": %d, \"stuck\": %d, "
      "\"launches\": %llu}\n",
      version, mode.c_str(), static_cast<unsigned long long>(cycles), threads, stuck,
      static_cast<unsigned long long>(launches));
  fflush(stdout);
  _exit(0);
}
