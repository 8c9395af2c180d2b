// SPDX-License-Identifier: Apache-2.0
// A CUDA process that is a client of CUPTI itself, as PyTorch with its profiler is one.
//   workload_client [microseconds between launches]
// One thread launches until "end" or the end of its input. The other words on its standard input,
// one a line, each answered by a line of JSON:
//   open   subscribes; if that succeeds its activity begins. {"subscribe": CUptiResult}
//   close  ends both. {"launched": N, "received": N, "gpu_ns": N} since the open
//   stop   launches nothing more until "open", "close" or "go"
//   go     launches again
#include <cupti.h>
#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/e2e/workload/kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr useconds_t kQuiet = 80'000;  // activity is switched while nothing is launched

std::atomic<uint64_t> received{0}, gpu_ns{0};

template <class F>
F* entry(const char* name) {
  static void* library = dlopen("libcupti.so.13", RTLD_NOW);
  void* found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) {
    fprintf(stderr, "client: %s: %s\n", name, dlerror());
    _exit(3);
  }
  return reinterpret_cast<F*>(found);
}

void requested(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *most = 0;
}

void completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  static auto* next = entry<decltype(cuptiActivityGetNextRecord)>("cuptiActivityGetNextRecord");
  CUpti_Activity* record = nullptr;
  while (next(buffer, valid, &record) == CUPTI_SUCCESS) {
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    received.fetch_add(1);
    gpu_ns.fetch_add(kernel->end - kernel->start);
  }
  free(buffer);  // ours, or nothing of CUPTI's memory is safe
}

void no_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

class Client {
 public:
  void open() {
    usleep(kQuiet);
    const CUptiResult result =
        entry<decltype(cuptiSubscribe)>("cuptiSubscribe")(&subscriber_, no_callback, nullptr);
    if (result == CUPTI_SUCCESS) {
      entry<decltype(cuptiActivityRegisterCallbacks)>("cuptiActivityRegisterCallbacks")(requested,
                                                                                        completed);
      entry<decltype(cuptiActivityEnable)>("cuptiActivityEnable")(
          CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
      launched = received = gpu_ns = 0;
    }
    printf("{\"subscribe\": %d}\n", result);
  }

  void close() {
    usleep(kQuiet);
    fake_cuda_drain();
    entry<decltype(cuptiActivityDisable)>("cuptiActivityDisable")(
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    entry<decltype(cuptiActivityFlushAll)>("cuptiActivityFlushAll")(
        CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    entry<decltype(cuptiUnsubscribe)>("cuptiUnsubscribe")(subscriber_);
    printf("{\"launched\": %" PRIu64 ", \"received\": %" PRIu64 ", \"gpu_ns\": %" PRIu64 "}\n",
           launched, received.load(), gpu_ns.load());
  }

  uint64_t launched = 0;

 private:
  CUpti_SubscriberHandle subscriber_ = nullptr;
};

// Whether a word waits on standard input, for at most `ms`.
bool word_waits(int ms) {
  pollfd in = {STDIN_FILENO, POLLIN, 0};
  return poll(&in, 1, ms) == 1;
}

}  // namespace

int main(int argc, char** argv) {
  const long pause_us = argc > 1 ? atol(argv[1]) : 1000;
  setvbuf(stdin, nullptr, _IONBF, 0);  // poll() sees every word
  if (cuInit(0) != CUDA_SUCCESS) return 1;
  CUfunction kernel = workload::load_kernels()[0].function;
  fake_cuda_label("main");
  Client client;
  bool launching = true;
  for (;;) {
    if (launching) {
      uint64_t duration_ns = 1000;
      void* parameters[] = {&duration_ns};
      if (cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr) !=
          CUDA_SUCCESS)
        return 1;
      ++client.launched;
      usleep(static_cast<useconds_t>(pause_us));
    }
    if (!word_waits(launching ? 0 : 100)) continue;
    char word[32] = {};
    if (fgets(word, sizeof word, stdin) == nullptr || strcmp(word, "end\n") == 0) break;
    launching = strcmp(word, "stop\n") != 0;
    if (strcmp(word, "open\n") == 0)
      client.open();
    else if (strcmp(word, "close\n") == 0)
      client.close();
    else
      puts("{}");
    fflush(stdout);
  }
  fake_cuda_drain();
  return 0;
}
