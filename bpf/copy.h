/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reading user memory. Two rules:
 *
 * Nothing sleeps while a ring record is reserved: a reserved record blocks all behind it, and a
 * page that its owner serves from user space (FUSE, userfaultfd) may take for ever to come.
 *
 * Nothing sleeps, or is preempted, with anything on the BPF stack: since 6.13 the frames of a
 * uprobe program lie on a stack per CPU, and another task that runs the program meanwhile
 * overwrites them (seen on 6.18.44: a thread that waited for a page delivered another thread's
 * record). Frames below 64 bytes stay on the kernel stack.
 *
 * So a hit is done without faulting and without preemption; if pages are missing it is undone, they
 * are faulted in by functions with next to no frame, and the hit is done once more.
 */
#pragma once

#include "bpf/state.h"

/* Assumed: a larger page makes the loops below touch it several times, a smaller does not exist. */
#define PAGE_BYTES 4096ull

/* An opaque copy of `n` that is at most `max`, in a form that the verifier follows (trap 5). */
static __always_inline u64 at_most(u64 n, u64 max)
{
	asm volatile("" : "+r"(n));
	if (n > max)
		n = max;
	return n;
}

/* Bytes from `address`, at most `bytes`, that can be read without a fault. */
static __always_inline u64 readable(u64 address, u64 bytes, u32 max_pages)
{
	u64 end = address + bytes;
	u64 at = address;
	u8 byte;

	for (u32 i = 0; i < max_pages && at < end; i++) {
		if (bpf_probe_read_user(&byte, 1, (void *)at))
			return at - address;
		at = (at + PAGE_BYTES) & ~(PAGE_BYTES - 1);
	}
	return bytes;
}

/* Pages that the largest copy can touch: it starts anywhere in a page. */
#define STACK_PAGES (GPUPROF_STACK_MAX_BYTES / PAGE_BYTES + 1)

/* Faults in the pages of [address, end), STACK_PAGES at most, up to the first that has none. */
static __noinline int fault_in(u64 address, u64 end)
{
	u8 byte;

	for (u32 i = 0; i < STACK_PAGES && address < end; i++) {
		if (bpf_copy_from_user(&byte, 1, (void *)address))
			break;
		address = (address + PAGE_BYTES) & ~(PAGE_BYTES - 1);
	}
	return 0;
}

/* Since 6.11, so wherever there is a stack per CPU. */
extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

static __always_inline void begin_atomic(void)
{
	if (bpf_ksym_exists(bpf_preempt_disable))
		bpf_preempt_disable();
}

static __always_inline void end_atomic(void)
{
	if (bpf_ksym_exists(bpf_preempt_enable))
		bpf_preempt_enable();
}
