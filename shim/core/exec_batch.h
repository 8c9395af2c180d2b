// SPDX-License-Identifier: Apache-2.0
//
// ExecBatch: collects executions inside one bufferCompleted call and emits them 256 at a time.
//
// Storage comes from a fixed set of buffers, claimed without waiting: a full batch is 28 KiB, too
// much for the stack of an application's thread inside cuptiActivityFlushAll. If all are taken,
// eight records inside the object serve, so nobody ever waits and nothing is lost. It holds no
// lock.
//
// One thread, one call: make it on the stack, fill, let it go out of scope.
#pragma once

#include <cstdint>

#include "proto/usdt_abi.h"

namespace gpuprof::shim {

class ExecBatch {
 public:
  ExecBatch();
  ~ExecBatch();  // emits the rest
  ExecBatch(const ExecBatch&) = delete;
  ExecBatch& operator=(const ExecBatch&) = delete;

  // A zeroed record to fill in place; it goes out with the batch. Emits first if the batch is full.
  gpuprof_exec_v1& next();
  // Takes back the last next(): the record turned out to be invalid.
  void cancel();
  // Emits what is there.
  void flush();

 private:
  static constexpr uint32_t kInlineRecords = 8;
  gpuprof_exec_v1* records_;
  uint32_t capacity_;
  uint32_t count_ = 0;
  int slot_;  // -1: inline
  gpuprof_exec_v1 inline_[kInlineRecords];
};

}  // namespace gpuprof::shim
