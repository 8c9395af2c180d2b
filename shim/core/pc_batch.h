// SPDX-License-Identifier: Apache-2.0
//
// PcBatch: collects the PC samples of one drain and emits them 256 at a time.
//
// There is one buffer: drains happen one at a time (under the Guard). Nothing is collected while
// nobody listens. Make it on the stack, add, let it go out of scope.
#pragma once

#include <cstdint>

#include "proto/usdt_abi.h"

namespace gpuprof::shim {

class PcBatch {
 public:
  PcBatch();
  ~PcBatch();  // emits the rest
  PcBatch(const PcBatch&) = delete;
  PcBatch& operator=(const PcBatch&) = delete;

  // Whether somebody listens: without, add() does nothing and may be left out.
  bool wanted() const { return wanted_; }
  // `counted`: the record's samples are part of GPUPROF_PC_COUNT_SAMPLES.
  void add(const gpuprof_pc_sample_v1& sample, bool counted);
  void flush();

 private:
  bool wanted_;
  uint32_t count_ = 0;
  uint64_t samples_ = 0;  // of the records that are waiting
};

}  // namespace gpuprof::shim
