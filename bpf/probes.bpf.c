// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The programs on the shim's probes, and those that keep the watch map. They copy, they do not
 * think: every judgement is the daemon's. The daemon sets attach type and sleepability before load.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "bpf/python.h"
#include "bpf/stack.h"
#include "proto/memfd_layout.h"

char
    LICENSE[] SEC("license") = "GPL v2"; /* of the two in the SPDX line, the one the kernel knows */

static __noinline int do_batch(struct user_regs *ctx, u32 again)
{
	struct hit hit = {};

	return begin_hit(ctx, &hit, again) ? put_batch(&hit, again) : OK;
}

/* All probes but launch_v1; which one is in the attach cookie. */
SEC("uprobe")
int batch_probe(struct user_regs *ctx)
{
	int result;

	begin_atomic();
	result = do_batch(ctx, 0);
	end_atomic();
	if (result != UNREADABLE || !sleepable)
		return 0;
	/* More than the batch may be, so as to ask nobody for its size. */
	fault_in(ARG1(ctx), ARG1(ctx) + (u32)ARG2(ctx) * sizeof(struct gpuprof_name_v1));
	begin_atomic();
	do_batch(ctx, 1);
	end_atomic();
	return 0;
}

static __noinline int do_launch(struct user_regs *ctx, u32 again)
{
	struct gpuprof_launch_v1 launch;
	struct hit hit = {};
	int result;

	if (!begin_hit(ctx, &hit, again))
		return OK;
	if (bpf_probe_read_user(&launch, sizeof(launch), hit.records)) {
		if (sleepable && !again)
			return UNREADABLE;
		count(GPUPROF_BPF_FAULT);
		lose(&hit.who, GPUPROF_PROBE_LAUNCH, GPUPROF_LOSS_FAULT, 1);
		return OK;
	}
	put_python(&hit);
	result = put_stack(ctx, &hit, &launch, again);
	if (result != RING_FULL)
		return result;
	hit.head.flags |= GPUPROF_RING_STACK_LOST;
	return put_batch(&hit, again);
}

SEC("uprobe")
int launch_probe(struct user_regs *ctx)
{
	int result;

	begin_atomic();
	result = do_launch(ctx, 0);
	end_atomic();
	if (result != UNREADABLE || !sleepable)
		return 0;
	fault_in(ARG1(ctx), ARG1(ctx) + sizeof(struct gpuprof_launch_v1));
	fault_in(USER_SP(ctx), stack_copy_end(USER_SP(ctx)));
	begin_atomic();
	do_launch(ctx, 1);
	end_atomic();
	return 0;
}

/* fork() keeps the interpreter where it is. */
static __noinline int inherit_python(struct task_struct *parent, const struct identity *child,
				     u64 start_ticks)
{
	struct identity from = {};
	struct gpuprof_python *python, copy;

	identify(parent, &from);
	python = bpf_map_lookup_elem(&pythons, &from.pid);
	if (!python || !child)
		return 0;
	copy = *python;
	copy.start_ticks = start_ticks;
	bpf_map_update_elem(&pythons, &child->pid, &copy, BPF_ANY);
	return 0;
}

/* A child of a watched process is watched from its first instruction on. */
SEC("raw_tp/sched_process_fork")
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *parent = (void *)ctx->args[0];
	struct task_struct *child = (void *)ctx->args[1];
	struct gpuprof_watch watch = {};
	struct identity who = {};

	if (BPF_CORE_READ(child, tgid) == BPF_CORE_READ(parent, tgid))
		return 0; /* a thread */
	identify(parent, &who);
	if (!who.pid || !is_watched(&who))
		return 0;
	identify(child, &who);
	if (!who.pid)
		return 0;
	watch.start_ticks = (who.start_boottime + daemon_boottime_offset) / 10000000;
	if (bpf_map_update_elem(&watched, &who.pid, &watch, BPF_ANY))
		count(GPUPROF_BPF_WATCH_FULL);
	inherit_python(parent, &who, watch.start_ticks);
	return 0;
}

SEC("raw_tp/sched_process_exit")
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[0];
	struct identity who = {};

	if (BPF_CORE_READ(task, signal, live.counter))
		return 0; /* other threads live on */
	identify(task, &who);
	if (who.pid && watch_of(&who)) {
		bpf_map_delete_elem(&watched, &who.pid);
		bpf_map_delete_elem(&pythons, &who.pid);
	}
	return 0;
}

/*
 * A shim's service thread takes its name, which is the memfd's too, when the memfd is mapped and
 * before CUDA's start has ended. Tells at once of a shim whose file has no probes yet, where the
 * daemon's look at all processes takes half a second. A tracepoint that hardly ever fires, and
 * needs no kprobes.
 */
SEC("raw_tp/task_rename")
int on_rename(struct bpf_raw_tracepoint_args *ctx)
{
	static const char wanted[] = GPUPROF_MEMFD_NAME;
	struct identity who = {};
	char name[16] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), (const void *)ctx->args[1]);
	for (u32 i = 0; i < sizeof(wanted); i++) {
		if (name[i] != wanted[i])
			return 0;
	}
	identify((void *)ctx->args[0], &who);
	if (who.pid)
		bpf_ringbuf_output(&sightings, &who.pid, sizeof(who.pid), BPF_RB_FORCE_WAKEUP);
	return 0;
}
