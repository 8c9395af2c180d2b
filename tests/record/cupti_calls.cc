// SPDX-License-Identifier: Apache-2.0
#include "tests/record/cupti_calls.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace gpuprof::record {
namespace {

void* open_cupti() {
  if (const char* path = getenv("GPU_PROFILED_CUPTI_PATH")) return dlopen(path, RTLD_NOW);
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
    if (void* library = dlopen(name, RTLD_NOW)) return library;
  }
  return nullptr;
}

template <typename Function>
bool bind(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) fprintf(stderr, "record: this CUPTI has no %s\n", name);
  return function != nullptr;
}

}  // namespace

const CuptiCalls* load_cupti() {
  void* library = open_cupti();
  if (library == nullptr) {
    fprintf(stderr, "record: no libcupti: %s\n", dlerror());
    return nullptr;
  }
  static CuptiCalls calls;
  const bool all = bind(library, "cuptiGetVersion", calls.get_version) &&
                   bind(library, "cuptiSubscribe", calls.subscribe) &&
                   bind(library, "cuptiEnableCallback", calls.enable_callback) &&
                   bind(library, "cuptiEnableDomain", calls.enable_domain) &&
                   bind(library, "cuptiActivityRegisterCallbacks", calls.register_callbacks) &&
                   bind(library, "cuptiActivityEnable", calls.activity_enable) &&
                   bind(library, "cuptiActivityFlushAll", calls.flush_all) &&
                   bind(library, "cuptiActivityGetNextRecord", calls.get_next_record) &&
                   bind(library, "cuptiRegisterComputeCrcCallback", calls.register_hash) &&
                   bind(library, "cuptiPCSamplingEnable", calls.pc_enable) &&
                   bind(library, "cuptiPCSamplingGetData", calls.pc_get_data) &&
                   bind(library, "cuptiPCSamplingSetConfigurationAttribute", calls.pc_set) &&
                   bind(library, "cuptiPCSamplingGetConfigurationAttribute", calls.pc_get) &&
                   bind(library, "cuptiPCSamplingGetNumStallReasons", calls.pc_num_reasons) &&
                   bind(library, "cuptiPCSamplingGetStallReasons", calls.pc_reasons);
  return all ? &calls : nullptr;
}

}  // namespace gpuprof::record
