/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sites, semaphores and notes of the USDT probes, one function a probe:
 *
 *   void gpuprof_fire_<name>(const void *records, uint32_t count, uint64_t seq);
 *
 * In assembly because everything about them is an ABI: the arguments lie where the calling
 * convention puts the function's own, no compiler can clone, inline or merge a site, and the
 * function uses no stack, so it has no red zone for the optimised uprobe of Linux 6.18 to corrupt
 * (the property that -mno-red-zone gives a compiled function). To the caller it is an opaque call,
 * the strongest "memory" clobber there is.
 *
 * x86-64: the note names the 1-byte nop; a 5-byte nop follows. Kernels from 6.18 on turn a uprobe on
 * the latter into a call unless it crosses a page, hence the alignment.
 * Note layout: systemtap's sdt version 3 (name "stapsdt", pc, base, semaphore, three strings).
 */
#if defined(__x86_64__)
#define SITE_NOPS nop; .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
#define SITE_ARGS "8@%rdi 4@%esi 8@%rdx"
#define NO_RELOCATION R_X86_64_NONE
#elif defined(__aarch64__)
#define SITE_NOPS nop
#define SITE_ARGS "8@x0 4@x1 8@x2"
#define NO_RELOCATION R_AARCH64_NONE
#else
#error "gpu-profiled supports x86-64 and aarch64"
#endif

/* Semaphores, indexed by enum gpuprof_probe. */
	.section .probes, "aw", %progbits
	.balign 2
	.hidden gpuprof_semaphores
	.globl gpuprof_semaphores
	.type gpuprof_semaphores, %object
gpuprof_semaphores:
	.zero 2 * 11
	.size gpuprof_semaphores, . - gpuprof_semaphores

	.section .stapsdt.base, "aG", %progbits, .stapsdt.base, comdat
	.weak _.stapsdt.base
	.hidden _.stapsdt.base
_.stapsdt.base:
	.space 1
	.size _.stapsdt.base, 1

	.text
.macro gpuprof_site name, index
	.balign 16
	.hidden gpuprof_fire_\name
	.globl gpuprof_fire_\name
	.type gpuprof_fire_\name, %function
gpuprof_fire_\name:
	.cfi_startproc
.Lsite_\name:
	SITE_NOPS
	ret
	.cfi_endproc
	.size gpuprof_fire_\name, . - gpuprof_fire_\name

	.pushsection .note.stapsdt, "", %note
	.balign 4
	.long 2f - 1f
	.long 4f - 3f
	.long 3
1:	.asciz "stapsdt"
2:	.balign 4
3:	.quad .Lsite_\name
	.quad _.stapsdt.base
	.quad gpuprof_semaphores + 2 * \index
	.asciz "gpu_profiled"
	.asciz "\name"
	.asciz SITE_ARGS
4:	.balign 4
	.popsection
.endm

	/* All sites in one section, so that a linker that collects sections keeps all or none; the
	   empty relocation keeps the base, which only the notes name. */
	.reloc ., NO_RELOCATION, _.stapsdt.base
	gpuprof_site process_v1, 1
	gpuprof_site launch_v1, 2
	gpuprof_site exec_v1, 3
	gpuprof_site pc_sample_v1, 4
	gpuprof_site name_v1, 5
	gpuprof_site module_v1, 6
	gpuprof_site device_v1, 7
	gpuprof_site window_v1, 8
	gpuprof_site drop_v1, 9
	gpuprof_site autoarm, 10

	.section .note.GNU-stack, "", %progbits
