// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cubin/heap_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uint64_t> live_bytes{0};
std::atomic<uint64_t> peak_live_bytes{0};

void* allocate(size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) return nullptr;
  const uint64_t live = live_bytes += ::malloc_usable_size(block);
  if (live > peak_live_bytes) peak_live_bytes = live;
  return block;
}

void release(void* block) {
  if (block == nullptr) return;
  live_bytes -= ::malloc_usable_size(block);
  std::free(block);
}

}  // namespace

void* operator new(size_t size) {
  void* const block = allocate(size);
  if (block == nullptr) std::abort();
  return block;
}
// std::stable_sort's buffer.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* block) noexcept { release(block); }
void operator delete(void* block, size_t) noexcept { release(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { release(block); }

namespace gpuprof::cubin::test {

HeapMeter::HeapMeter() : before_(live_bytes), start_(now()) { peak_live_bytes = live_bytes.load(); }

uint64_t HeapMeter::peak_bytes() const {
  return peak_live_bytes - std::min(before_, peak_live_bytes.load());
}

double HeapMeter::seconds() const { return now() - start_; }

double HeapMeter::now() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace gpuprof::cubin::test
