/* SPDX-License-Identifier: Apache-2.0 */
/* What crt1.o does, without its needs of the build machine's glibc: __libc_start_main's first version. */
  .text
  .globl _start
  .type _start, %function
_start:
#if defined(__x86_64__)
  xorl %ebp, %ebp
  movq %rdx, %r9 /* rtld_fini */
  popq %rsi
  movq %rsp, %rdx
  andq $-16, %rsp
  pushq %rax
  pushq %rsp /* the stack's end */
  xorl %r8d, %r8d
  xorl %ecx, %ecx
  leaq gpuprof_asker_main(%rip), %rdi
  call __libc_start_main@PLT
  hlt
#elif defined(__aarch64__)
  mov x29, #0
  mov x30, #0
  mov x5, x0 /* rtld_fini */
  ldr x1, [sp]
  add x2, sp, #8
  mov x6, sp
  mov x3, #0
  mov x4, #0
  adrp x0, gpuprof_asker_main
  add x0, x0, :lo12:gpuprof_asker_main
  bl __libc_start_main
  brk #0
#else
#error "the asker's start is written for x86-64 and aarch64"
#endif
  .size _start, . - _start
  .section .note.GNU-stack, "", %progbits
