// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/unwind/capture.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

// Registers in DWARF order at the first instruction, where the CFA is rsp + 8, and then a call, so
// that nothing at or above the captured stack pointer is touched before it is copied.
asm(R"(
  .text
  .globl gpuprof_test_capture
  .type gpuprof_test_capture, @function
gpuprof_test_capture:
  .cfi_startproc
  subq $152, %rsp
  .cfi_adjust_cfa_offset 152
  movq %rax, 0(%rsp)
  movq %rdx, 8(%rsp)
  movq %rcx, 16(%rsp)
  movq %rbx, 24(%rsp)
  movq %rsi, 32(%rsp)
  movq %rdi, 40(%rsp)
  movq %rbp, 48(%rsp)
  leaq 152(%rsp), %rax
  movq %rax, 56(%rsp)
  movq %r8, 64(%rsp)
  movq %r9, 72(%rsp)
  movq %r10, 80(%rsp)
  movq %r11, 88(%rsp)
  movq %r12, 96(%rsp)
  movq %r13, 104(%rsp)
  movq %r14, 112(%rsp)
  movq %r15, 120(%rsp)
  leaq gpuprof_test_capture(%rip), %rax
  movq %rax, 128(%rsp)
  movq %rsp, %rdx
  call gpuprof_test_store
  addq $152, %rsp
  .cfi_adjust_cfa_offset -152
  ret
  .cfi_endproc
  .size gpuprof_test_capture, . - gpuprof_test_capture
)");

namespace gpuprof::unwind::test {
namespace {

thread_local uint64_t top_of_thread = 0;

uint64_t find_top() {
  pthread_attr_t attr;
  void* low = nullptr;
  size_t size = 0;
  pthread_getattr_np(pthread_self(), &attr);
  pthread_attr_getstack(&attr, &low, &size);
  pthread_attr_destroy(&attr);
  return reinterpret_cast<uint64_t>(low) + size;
}

}  // namespace

void prepare_capture(Sample* sample, uint64_t limit) {
  top_of_thread = find_top();
  sample->bytes.reserve(limit);
}

extern "C" __attribute__((used, no_sanitize_address)) void gpuprof_test_store(
    Sample* sample, uint64_t limit, const uint64_t* regs) {
  std::copy(regs, regs + 17, sample->regs.begin());
  sample->stack_address = regs[7];
  if (top_of_thread == 0) top_of_thread = find_top();
  sample->stack_top = top_of_thread;
  if (sample->stack_top <= sample->stack_address) sample->stack_top = 0;  // an alternate stack
  const uint64_t all = sample->stack_top == 0 ? limit : sample->stack_top - sample->stack_address;
  const uint64_t bytes = std::min(limit, all);
  if (bytes < all) sample->flags |= GPUPROF_STACK_CUT;
  const auto* from = reinterpret_cast<const uint8_t*>(sample->stack_address);
  sample->bytes.resize(bytes);
  for (uint64_t i = 0; i < bytes; ++i) sample->bytes[i] = from[i];
}

}  // namespace gpuprof::unwind::test
