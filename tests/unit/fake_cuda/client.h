// SPDX-License-Identifier: Apache-2.0
// A minimal CUPTI client for tests of the fake: what a well-behaved shim does, in a few lines.
#pragma once

#include <cuda.h>
#include <cupti.h>
#include <cupti_pcsampling.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {

#define REQUIRE(condition)                                                             \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "REQUIRE failed: %s (%s:%d)\n", #condition, __FILE__, __LINE__); \
      _exit(7);                                                                        \
    }                                                                                  \
  } while (0)

struct Seen {
  uint32_t domain, cbid, correlation;
  CUpti_ApiCallbackSite site;
  std::string symbol;
};

struct Record {
  uint32_t kind, correlation;
  uint64_t start, end, graph_node;
  uint32_t graph_id;
  std::string name;
  size_t offset;
};

/// Globals of the client; a process runs one scenario.
struct Client {
  std::mutex mutex;
  CUpti_SubscriberHandle subscriber = nullptr;
  std::vector<Seen> callbacks;
  std::vector<Record> records;
  std::function<void(CUpti_CallbackDomain, CUpti_CallbackId, const CUpti_CallbackData&)>
      on_callback;
  std::function<void(CUpti_CallbackId)> on_resource;
  bool give_null = false;
  std::vector<int> completed_order;
};

inline Client& client() {
  static auto* instance = new Client;
  return *instance;
}

inline void on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId cbid,
                        const void* data) {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API && domain != CUPTI_CB_DOMAIN_RUNTIME_API) {
    {
      std::lock_guard lock(client().mutex);
      client().callbacks.push_back({domain, cbid, 0, CUPTI_API_ENTER, ""});
    }
    if (client().on_resource && domain == CUPTI_CB_DOMAIN_RESOURCE) client().on_resource(cbid);
    return;
  }
  const auto& call = *static_cast<const CUpti_CallbackData*>(data);
  {
    std::lock_guard lock(client().mutex);
    client().callbacks.push_back({domain, cbid, call.correlationId, call.callbackSite,
                                  call.symbolName ? call.symbolName : ""});
  }
  if (client().on_callback) client().on_callback(domain, cbid, call);
}

inline void on_request(uint8_t** buffer, size_t* size, size_t* most) {
  constexpr size_t kBytes = 4096;
  *buffer = client().give_null ? nullptr : static_cast<uint8_t*>(aligned_alloc(8, kBytes));
  *size = kBytes;
  *most = 0;
}

inline void on_complete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  std::lock_guard lock(client().mutex);
  CUpti_Activity* next = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) {
    Record r{};
    r.kind = next->kind;
    r.offset = static_cast<size_t>(reinterpret_cast<uint8_t*>(next) - buffer);
    if (next->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel5*>(next);
      r.correlation = k->correlationId;
      r.start = k->start;
      r.end = k->end;
      r.graph_id = k->graphId;
      r.graph_node = k->graphNodeId;
      r.name = k->name;
    } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy4*>(next);
      r.correlation = m->correlationId;
      r.start = m->start;
      r.end = m->end;
    }
    client().records.push_back(r);
  }
  free(buffer);
}

constexpr CUpti_CallbackId kLaunch = CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel;

/// Initialises the driver, subscribes, switches the given driver callback id on.
inline void start(bool subscribe = true, CUpti_CallbackId id = kLaunch) {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  if (!subscribe) return;
  REQUIRE(cuptiSubscribe(&client().subscriber, on_callback, nullptr) == CUPTI_SUCCESS);
  REQUIRE(cuptiActivityRegisterCallbacks(on_request, on_complete) == CUPTI_SUCCESS);
  REQUIRE(cuptiEnableCallback(1, client().subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id) ==
          CUPTI_SUCCESS);
}

inline CUfunction function(const char* name) {
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, "ptx") == CUDA_SUCCESS);
  CUfunction result = nullptr;
  REQUIRE(cuModuleGetFunction(&result, module, name) == CUDA_SUCCESS);
  return result;
}

inline void launch(CUfunction f, uint64_t ns = 1000, CUstream stream = nullptr) {
  void* params[] = {&ns};
  REQUIRE(cuLaunchKernel(f, 1, 2, 3, 32, 1, 1, 64, stream, params, nullptr) == CUDA_SUCCESS);
}

/// Ends a scenario through exit(), so that the fake decides about the status.
[[noreturn]] inline void finish() { exit(0); }

}  // namespace fakecuda
