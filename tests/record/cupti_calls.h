// SPDX-License-Identifier: Apache-2.0
// The CUPTI functions that the recorder calls, from the copy named by GPU_PROFILED_CUPTI_PATH or
// the loader's.
#pragma once

#include <cuda.h>
#include <cupti.h>
#include <cupti_pcsampling.h>

namespace gpuprof::record {

struct CuptiCalls {
  decltype(&::cuptiGetVersion) get_version;
  decltype(&::cuptiSubscribe) subscribe;
  decltype(&::cuptiEnableCallback) enable_callback;
  decltype(&::cuptiEnableDomain) enable_domain;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&::cuptiActivityEnable) activity_enable;
  decltype(&::cuptiActivityFlushAll) flush_all;
  decltype(&::cuptiActivityGetNextRecord) get_next_record;
  decltype(&::cuptiRegisterComputeCrcCallback) register_hash;
  decltype(&::cuptiPCSamplingEnable) pc_enable;
  decltype(&::cuptiPCSamplingGetData) pc_get_data;
  decltype(&::cuptiPCSamplingSetConfigurationAttribute) pc_set;
  decltype(&::cuptiPCSamplingGetConfigurationAttribute) pc_get;
  decltype(&::cuptiPCSamplingGetNumStallReasons) pc_num_reasons;
  decltype(&::cuptiPCSamplingGetStallReasons) pc_reasons;
};

/// Null where there is no CUPTI or one of the functions is missing; says so on stderr.
const CuptiCalls* load_cupti();

}  // namespace gpuprof::record
