// SPDX-License-Identifier: Apache-2.0
//
// The oldest CUPTI that the shim is built with and works with, written down here alone: older
// libraries are declined, cmake/FindCuptiHeaders.cmake reads the first number and refuses older
// headers, and tests/edges/oldest_cupti.py compares what the scripts and README say.
#pragma once

#include <cstdint>

#define GPUPROF_OLDEST_CUPTI_API 18 /* CUPTI_API_VERSION, cuptiGetVersion() */
#define GPUPROF_OLDEST_CUPTI_MAJOR 11
#define GPUPROF_OLDEST_CUPTI_MINOR 8
#define GPUPROF_OLDEST_CUPTI_CUDA "11.8"
