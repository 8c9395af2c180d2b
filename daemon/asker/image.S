/* SPDX-License-Identifier: Apache-2.0 */
/* The asker's file, as bytes. */
  .section .rodata
  .globl gpuprof_asker_begin
  .globl gpuprof_asker_end
  .hidden gpuprof_asker_begin
  .hidden gpuprof_asker_end
  .balign 16
gpuprof_asker_begin:
  .incbin GPUPROF_ASKER_FILE
gpuprof_asker_end:
  .byte 0
  .section .note.GNU-stack, "", %progbits
