// SPDX-License-Identifier: Apache-2.0
//
// SiteRecorder: sees what fires at the USDT sites of this test binary, without root or eBPF. It
// overwrites a site's 16-byte slot with a jump to a handler of the same signature, so a record is
// seen only if the arguments lie where the notes say, and raises the semaphore as a tracer would.
#pragma once

#include <cstring>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/usdt_abi.h"

extern "C" {
extern uint16_t gpuprof_semaphores[GPUPROF_PROBE_COUNT];
void gpuprof_fire_process_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_launch_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_exec_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_name_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_device_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_window_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_drop_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_autoarm(const void*, uint32_t, uint64_t);
}

namespace gpuprof::shim::testing {

using Site = void (*)(const void*, uint32_t, uint64_t);
constexpr size_t kSlotBytes = 16;

struct Firing {
  uint64_t seq;
  uint32_t count;
};

inline void set_semaphore(gpuprof_probe probe, uint16_t value) {
  __atomic_store_n(&gpuprof_semaphores[probe], value, __ATOMIC_SEQ_CST);
}

// One at a time per probe and record type; restores site and semaphore when it goes.
template <gpuprof_probe kProbe, typename Record>
class SiteRecorder {
 public:
  explicit SiteRecorder(Site site) : site_(site) {
    memcpy(original_, reinterpret_cast<void*>(site_), kSlotBytes);
    unsigned char jump[kSlotBytes];
    memset(jump, 0xcc, sizeof jump);
    auto target = reinterpret_cast<uint64_t>(&SiteRecorder::on_fire);
#if defined(__x86_64__)
    const unsigned char code[] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *(%rip)
#else
    const unsigned char code[] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6};  // ldr x16, #8; br x16
#endif
    memcpy(jump, code, sizeof code);
    memcpy(jump + sizeof code, &target, sizeof target);
    patch(jump);
    clear();
    set_semaphore(kProbe, 1);
  }
  ~SiteRecorder() {
    set_semaphore(kProbe, 0);
    patch(original_);
    clear();
  }

  std::vector<Record> records() const {
    std::lock_guard lock(mutex());
    return all_records();
  }
  std::vector<Firing> firings() const {
    std::lock_guard lock(mutex());
    return all_firings();
  }
  void clear() {
    std::lock_guard lock(mutex());
    all_records().clear();
    all_firings().clear();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<Record>& all_records() {
    static std::vector<Record> v;
    return v;
  }
  static std::vector<Firing>& all_firings() {
    static std::vector<Firing> v;
    return v;
  }
  static void on_fire(const void* records, uint32_t count, uint64_t seq) {
    std::lock_guard lock(mutex());
    const auto* first = static_cast<const Record*>(records);
    all_records().insert(all_records().end(), first, first + count);
    all_firings().push_back(Firing{seq, count});
  }
  void patch(const unsigned char* code) {
    const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<uintptr_t>(site_);
    auto* page = reinterpret_cast<void*>(at & ~(page_bytes - 1));
    ASSERT_EQ(mprotect(page, 2 * page_bytes, PROT_READ | PROT_WRITE | PROT_EXEC), 0);
    memcpy(reinterpret_cast<void*>(at), code, kSlotBytes);
    __builtin___clear_cache(reinterpret_cast<char*>(at), reinterpret_cast<char*>(at) + kSlotBytes);
    ASSERT_EQ(mprotect(page, 2 * page_bytes, PROT_READ | PROT_EXEC), 0);
  }

  Site site_;
  unsigned char original_[kSlotBytes];
};

}  // namespace gpuprof::shim::testing
