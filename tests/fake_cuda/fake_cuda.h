/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fake libcuda.so.1 offers to test programs beyond the CUDA driver API. The shim must
 * never use any of it. A program that also has to run on a real driver looks these up with dlsym.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Names the calling thread's call path for the ground truth: function names from root to leaf,
 * separated by ';'. The string is kept by address and must stay unchanged for ever. NULL clears it.
 */
void fake_cuda_label(const char* path);

/* Sets a setting or fault (README.md lists the keys) while the program runs. 0, or -1: unknown key.
 */
int fake_cuda_set(const char* key, const char* value);

/* Writes the ground truth so far as JSON. Also done at exit to $FAKE_CUDA_TRUTH. 0 or -1. */
int fake_cuda_write_truth(const char* path);

/*
 * 0, or while kernels of some context run one at a time (a window of serialized PC sampling) how
 * many such windows have begun.
 */
uint32_t fake_cuda_serialized(void);

/* Blocks until every execution issued so far is over on the fake GPU. */
void fake_cuda_drain(void);

/*
 * Where the samples of a CUfunction fall: "OFFSET:STALL[*WEIGHT[/NOT_ISSUED]]" separated by spaces
 * (README.md, `pcs`). To be called before the function is launched. 0, or -1: a mistake, which one
 * is on stderr.
 */
int fake_cuda_pcs(void* function, const char* pcs);

/* Rules broken so far in this process. */
uint64_t fake_cuda_violations(void);

#ifdef __cplusplus
}
#endif
