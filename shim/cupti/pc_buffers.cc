// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_buffers.h"

#include <sys/mman.h>

#include <cstring>

namespace gpuprof::cupti {

shim::Status PcBuffers::create() noexcept {
  if (memory_ != nullptr) return shim::Status::kAlready;
  void* memory = mmap(nullptr, 2 * kBufferBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return shim::Status::kNoMemory;
  memory_ = static_cast<char*>(memory);
  return shim::Status::kOk;
}

void PcBuffers::lay_out(uint32_t version, uint32_t stalls) noexcept {
  record_bytes_ = pc_record_bytes(version);
  stalls_ = stalls;
  for (uint32_t which = 0; which < 2; ++which) {
    SamplingData& head = *data(which);
    char* records = memory_ + which * kBufferBytes + kHeadBytes;
    auto* counts = reinterpret_cast<StallCount*>(records + kRecords * sizeof(PcRecord));
    memset(&head, 0, sizeof head);
    head.size = sampling_data_bytes(version);
    head.capacity = kRecords;
    head.records = records;
    for (uint32_t i = 0; i < kRecords; ++i) {
      auto* record = reinterpret_cast<PcRecord*>(records + i * record_bytes_);
      memset(record, 0, record_bytes_);
      record->size = record_bytes_;
      record->stalls = counts + size_t{i} * stalls;
    }
  }
}

}  // namespace gpuprof::cupti
