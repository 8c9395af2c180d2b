// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/probe_site.h"

#include <cstdlib>

#include "proto/usdt_abi.h"

extern "C" {

extern uint16_t gpuprof_semaphores[GPUPROF_PROBE_COUNT];

#define GPUPROF_SITES(X) \
  X(process_v1)          \
  X(launch_v1)           \
  X(exec_v1) X(pc_sample_v1) X(name_v1) X(module_v1) X(device_v1) X(window_v1) X(drop_v1) X(autoarm)
#define DECLARE(name) void gpuprof_fire_##name(const void*, uint32_t, uint64_t);
GPUPROF_SITES(DECLARE)

using Site = void (*)(const void*, uint32_t, uint64_t);

static const Site kSites[] = {nullptr,
#define ADDRESS(name) gpuprof_fire_##name,
                              GPUPROF_SITES(ADDRESS)};
static_assert(sizeof(kSites) / sizeof(kSites[0]) == GPUPROF_PROBE_COUNT);

void probe_site_fire(uint32_t probe, const void* records, uint32_t count, uint64_t seq) {
  kSites[probe](records, count, seq);
}

const uint8_t* probe_site_address(uint32_t probe) {
  return reinterpret_cast<const uint8_t*>(kSites[probe]);
}

uint16_t probe_site_semaphore(uint32_t probe) {
  return __atomic_load_n(&gpuprof_semaphores[probe], __ATOMIC_ACQUIRE);
}

// Preloaded into some program, the library fires executions by itself.
[[gnu::constructor]] static void fire_from_environment() {
  const char* count = std::getenv("PROBE_SITE_FIRE_EXECS");
  if (!count) return;
  gpuprof_exec_v1 exec{};
  exec.start_ns = exec.end_ns = 1;
  exec.kind = GPUPROF_KIND_KERNEL;
  for (uint64_t seq = 0; seq < std::strtoull(count, nullptr, 10); seq++) {
    probe_site_fire(GPUPROF_PROBE_EXEC, &exec, 1, seq);
  }
}

#if defined(__x86_64__)
// SAVE puts the registers into [out + offset]; `out` lies at 8(%rsp) inside, 0(%rsp) of the caller.
asm(R"(
  .text
  .globl probe_site_fire_registers
  .type probe_site_fire_registers, @function
  .macro SAVE offset
  pushfq
  pushq %rax
  movq 16(%rsp), %rax
  popq \offset+0(%rax)
  popq \offset+128(%rax)
  movq %rbx, \offset+8(%rax)
  movq %rcx, \offset+16(%rax)
  movq %rdx, \offset+24(%rax)
  movq %rsi, \offset+32(%rax)
  movq %rdi, \offset+40(%rax)
  movq %rbp, \offset+48(%rax)
  movq %rsp, \offset+56(%rax)
  movq %r8, \offset+64(%rax)
  movq %r9, \offset+72(%rax)
  movq %r10, \offset+80(%rax)
  movq %r11, \offset+88(%rax)
  movq %r12, \offset+96(%rax)
  movq %r13, \offset+104(%rax)
  movq %r14, \offset+112(%rax)
  movq %r15, \offset+120(%rax)
  movq \offset+0(%rax), %rax
  .endm
probe_site_fire_registers:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  pushq %rdx
  movq %rsi, %rdx
  movl $1, %esi
  movabsq $0x1111111111111101, %rax
  movabsq $0x2222222222222202, %rbx
  movabsq $0x3333333333333303, %rcx
  movabsq $0x4444444444444404, %rbp
  movabsq $0x8888888888888808, %r8
  movabsq $0x9999999999999909, %r9
  movabsq $0xaaaaaaaaaaaaaa0a, %r10
  movabsq $0xbbbbbbbbbbbbbb0b, %r11
  movabsq $0xcccccccccccccc0c, %r12
  movabsq $0xdddddddddddddd0d, %r13
  movabsq $0xeeeeeeeeeeeeee0e, %r14
  movabsq $0xffffffffffffff0f, %r15
  stc
  SAVE 0
  call gpuprof_fire_launch_v1
  SAVE 136
  popq %rdx
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
  .size probe_site_fire_registers, .-probe_site_fire_registers
)");
#endif
}
