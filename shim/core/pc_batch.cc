// SPDX-License-Identifier: Apache-2.0
#include "shim/core/pc_batch.h"

#include "shim/core/probes.h"
#include "shim/core/status.h"

namespace gpuprof::shim {
namespace {

constexpr uint32_t kRecords = GPUPROF_MAX_BATCH_RECORDS;
static_assert(kRecords * sizeof(gpuprof_pc_sample_v1) <= GPUPROF_MAX_BATCH_BYTES);

// Of the one PcBatch that exists at a time.
constinit gpuprof_pc_sample_v1 records[kRecords]{};

}  // namespace

PcBatch::PcBatch() : wanted_(enabled(GPUPROF_PROBE_PC_SAMPLE)) {}

PcBatch::~PcBatch() { flush(); }

void PcBatch::add(const gpuprof_pc_sample_v1& sample, bool counted) {
  if (!wanted_) return;
  if (count_ == kRecords) flush();
  records[count_++] = sample;
  if (counted) samples_ += sample.samples;
}

void PcBatch::flush() {
  if (count_ == 0) return;
  // As the probe totals: counted before the hit, so that a process killed in between shows too many
  // produced, never one that nobody produced.
  if (enabled(GPUPROF_PROBE_PC_SAMPLE)) count_pc(GPUPROF_PC_COUNT_SAMPLES, samples_);
  emit(GPUPROF_PROBE_PC_SAMPLE, records, count_);
  count_ = 0;
  samples_ = 0;
}

}  // namespace gpuprof::shim
