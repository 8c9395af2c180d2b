/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* A launch with the thread's registers and the top of its stack into the stacks ring. */
#pragma once

#include "bpf/batch.h"

struct stack_event {
	struct gpuprof_ring_header head;
	struct gpuprof_launch_v1 launch;
	struct gpuprof_stack_head stack;
};

/* Where the stack that `sp` is on ends. */
struct extent {
	u64 start;
	u64 end;
};

static long note_vma(struct task_struct *task, struct vm_area_struct *vma, void *data)
{
	struct extent *extent = data;

	extent->start = BPF_CORE_READ(vma, vm_start);
	extent->end = BPF_CORE_READ(vma, vm_end);
	return 0;
}

/* Farther apart than this, sp is on another stack: mmap_base stays 128 MiB below the main stack. */
#define MAIN_STACK_SPAN (64ull << 20)

/*
 * The thread's descriptor if it may end the stack that `sp` is on, else 0. The C libraries put it
 * at the outer end of a thread's stack, and on x86-64 the thread pointer, in task->thread.fsbase
 * since the thread's clone, is its address: all frames lie below.
 */
static __always_inline u64 descriptor_above(u64 sp)
{
#if defined(__TARGET_ARCH_x86)
	struct task_struct *task = (void *)bpf_get_current_task();
	u64 descriptor = 0;

	if (bpf_core_field_exists(task->thread.fsbase))
		descriptor = BPF_CORE_READ(task, thread.fsbase);
	if (descriptor > sp && descriptor - sp < MAIN_STACK_SPAN)
		return descriptor;
#endif
	return 0;
}

/*
 * The stack's top, and how it was found in *flags. exec leaves untouched pages between the main
 * thread's first frame and the end of its mapping, and reading into them keeps nothing (trap 2), so
 * there the top is what exec noted in mm->start_stack. Of other threads the descriptor comes before
 * the end of the mapping: with glibc 2.42 threads' stacks, and what lies between them, are one
 * mapping, since their guard pages are none of their own. bpf_find_vma fails when another thread
 * holds the mmap lock for writing.
 */
static __always_inline u64 stack_top(u64 sp, u32 *flags)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	u64 start_stack = BPF_CORE_READ(task, mm, start_stack);

	if (has_find_vma) {
		struct extent extent = {};

		if (!bpf_find_vma((void *)bpf_get_current_task_btf(), sp, note_vma, &extent, 0) &&
		    extent.end > sp) {
			u64 descriptor = descriptor_above(sp);

			if (sp < start_stack && extent.start <= start_stack &&
			    start_stack < extent.end) {
				*flags = GPUPROF_STACK_MAIN_THREAD;
				return start_stack;
			}
			return descriptor && descriptor < extent.end ? descriptor : extent.end;
		}
	}
	if (sp < start_stack && start_stack - sp < MAIN_STACK_SPAN) {
		*flags = GPUPROF_STACK_MAIN_THREAD;
		return start_stack;
	}
	*flags = GPUPROF_STACK_NO_BOUND;
	return 0;
}

/* Copied at most where nothing tells the stack's end: it may be all blind. */
#define BLIND_BYTES 65536

/* Bytes to try where the stack's top is unknown: blind on stacks of somebody's own making. */
static __always_inline u64 unbounded_bytes(u64 sp)
{
	u64 descriptor = descriptor_above(sp);

	return descriptor ? descriptor - sp : BLIND_BYTES;
}

/* DWARF numbering: System V x86-64 psABI figure 3.36; AADWARF64 section 4.1. */
static __always_inline void put_regs(uint64_t *out, const struct user_regs *in)
{
#if defined(__TARGET_ARCH_x86)
	out[0] = in->ax;
	out[1] = in->dx;
	out[2] = in->cx;
	out[3] = in->bx;
	out[4] = in->si;
	out[5] = in->di;
	out[6] = in->bp;
	out[7] = in->sp;
	out[8] = in->r8;
	out[9] = in->r9;
	out[10] = in->r10;
	out[11] = in->r11;
	out[12] = in->r12;
	out[13] = in->r13;
	out[14] = in->r14;
	out[15] = in->r15;
	out[16] = in->ip;
#pragma unroll
	for (int i = 17; i < GPUPROF_REGS_MAX; i++)
		out[i] = 0;
#else
#pragma unroll
	for (int i = 0; i < 31; i++)
		out[i] = in->regs[i];
	out[31] = in->sp;
	out[32] = in->pc;
	out[33] = 0;
#endif
}

struct copy {
	u64 address;
	u64 bytes;
	u64 top;
	u32 flags;
};

static __always_inline int put_stack_class(struct user_regs *ctx, const struct hit *hit,
					   const struct gpuprof_launch_v1 *launch,
					   const struct copy *copy, const u64 max_bytes)
{
	struct stack_event *out = bpf_ringbuf_reserve(&stacks, sizeof(*out) + max_bytes, 0);
	u64 bytes = at_most(copy->bytes, max_bytes);

	if (!out)
		return RING_FULL;
	__builtin_memcpy(&out->head, &hit->head, sizeof(out->head));
	__builtin_memcpy(&out->launch, launch, sizeof(out->launch));
	out->head.payload_bytes = sizeof(*out) - sizeof(out->head) + bytes;
	put_regs(out->stack.regs, ctx);
	out->stack.stack_address = copy->address;
	out->stack.stack_top = copy->top;
	out->stack.stack_bytes = bytes;
	out->stack.flags = copy->flags;
	if (bpf_probe_read_user(out + 1, bytes, (void *)copy->address)) {
		bpf_ringbuf_discard(out, BPF_RB_NO_WAKEUP);
		return UNREADABLE;
	}
	bpf_ringbuf_submit(out, wake_flag(&stacks, stacks_wake_bytes));
	return OK;
}

static __noinline int put_stack_once(struct user_regs *ctx, const struct hit *hit,
				     const struct gpuprof_launch_v1 *launch,
				     const struct copy *copy)
{
	u64 bytes = copy->bytes;

	if (bytes <= 2048)
		return put_stack_class(ctx, hit, launch, copy, 2048);
	if (bytes <= 4096)
		return put_stack_class(ctx, hit, launch, copy, 4096);
	if (bytes <= 8192)
		return put_stack_class(ctx, hit, launch, copy, 8192);
	if (bytes <= 12288)
		return put_stack_class(ctx, hit, launch, copy, 12288);
	if (bytes <= 16384)
		return put_stack_class(ctx, hit, launch, copy, 16384);
	if (bytes <= 24576)
		return put_stack_class(ctx, hit, launch, copy, 24576);
	if (bytes <= 32768)
		return put_stack_class(ctx, hit, launch, copy, 32768);
	if (bytes <= 49152)
		return put_stack_class(ctx, hit, launch, copy, 49152);
	if (bytes <= 65536)
		return put_stack_class(ctx, hit, launch, copy, 65536);
	if (bytes <= 98304)
		return put_stack_class(ctx, hit, launch, copy, 98304);
	if (bytes <= 131072)
		return put_stack_class(ctx, hit, launch, copy, 131072);
	if (bytes <= 196608)
		return put_stack_class(ctx, hit, launch, copy, 196608);
	return put_stack_class(ctx, hit, launch, copy, GPUPROF_STACK_MAX_BYTES);
}

/* Cuts the copy at its first unreadable page. */
static __always_inline void shrink_to_readable(struct copy *copy)
{
	u64 bytes = readable(copy->address, copy->bytes, STACK_PAGES);

	if (bytes < copy->bytes) {
		copy->flags &= ~GPUPROF_STACK_CUT;
		if (!(copy->flags & GPUPROF_STACK_NO_BOUND))
			copy->flags |= GPUPROF_STACK_PARTIAL;
	}
	copy->bytes = bytes;
}

/*
 * OK: the launch went into the stacks ring. RING_FULL: its stack is lost, and was counted.
 * UNREADABLE: try `again` with the pages faulted in.
 */
static __always_inline int put_stack(struct user_regs *ctx, const struct hit *hit,
				     const struct gpuprof_launch_v1 *launch, u32 again)
{
	struct copy copy = {.address = USER_SP(ctx)};
	int result = UNREADABLE;

	copy.top = stack_top(copy.address, &copy.flags);
	copy.bytes = copy.top ? copy.top - copy.address : unbounded_bytes(copy.address);
	if (copy.bytes > GPUPROF_STACK_MAX_BYTES) {
		copy.bytes = GPUPROF_STACK_MAX_BYTES;
		copy.flags |= GPUPROF_STACK_CUT;
	}
	if (copy.flags & GPUPROF_STACK_NO_BOUND)
		shrink_to_readable(&copy); /* ends at a fault as a rule: do not pay for a second */
	if (!again && !within_quota(&hit->who, hit->head.uid, RING_STACKS,
				    sizeof(struct stack_event) + copy.bytes)) {
		count(GPUPROF_BPF_STACKS_QUOTA);
		return RING_FULL;
	}
	if (copy.bytes)
		result = put_stack_once(ctx, hit, launch, &copy);
	if (result == UNREADABLE && copy.bytes) {
		if (sleepable && !again && !(copy.flags & GPUPROF_STACK_NO_BOUND))
			return UNREADABLE;
		shrink_to_readable(&copy);
		if (copy.bytes)
			result = put_stack_once(ctx, hit, launch, &copy);
	}
	if (result == RING_FULL) {
		count(GPUPROF_BPF_STACKS_FULL);
	} else if (result == UNREADABLE) {
		count(GPUPROF_BPF_STACK_FAULT);
		result = RING_FULL;
	}
	return result;
}

/* End of what the copy of a stack from `sp` would read; without a known top, nothing: what lies
 * above the stack is not ours to read from disk. */
static __noinline u64 stack_copy_end(u64 sp)
{
	u32 flags = 0;
	u64 top = stack_top(sp, &flags);

	if (top > sp + GPUPROF_STACK_MAX_BYTES)
		top = sp + GPUPROF_STACK_MAX_BYTES;
	return top;
}
