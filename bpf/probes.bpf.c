// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * The programs on the shim's probes, and those that keep the watch map. They copy, they do not
 * think: every judgement is the daemon's. The daemon sets attach type and sleepability before load.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "bpf/stack.h"

char
    LICENSE[] SEC("license") = "GPL v2"; /* of the two in the SPDX line, the one the kernel knows */

/* All probes but launch_v1; which one is in the attach cookie. */
SEC("uprobe")
int batch_probe(struct user_regs *ctx)
{
	struct hit hit = {};

	if (begin_hit(ctx, &hit))
		put_batch(&hit);
	return 0;
}

SEC("uprobe")
int launch_probe(struct user_regs *ctx)
{
	struct gpuprof_launch_v1 launch;
	struct hit hit = {};
	long err;

	if (!begin_hit(ctx, &hit))
		return 0;
	err = bpf_probe_read_user(&launch, sizeof(launch), hit.records);
	if (err && sleepable)
		err = bpf_copy_from_user(&launch, sizeof(launch), hit.records);
	if (err) {
		count(GPUPROF_BPF_FAULT);
		lose(&hit.who, GPUPROF_PROBE_LAUNCH, GPUPROF_LOSS_FAULT, 1);
		return 0;
	}
	if (put_stack(ctx, &hit, &launch))
		return 0;
	hit.head.flags = GPUPROF_RING_STACK_LOST;
	put_batch(&hit);
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
	if (who.pid && is_watched(&who))
		bpf_map_delete_elem(&watched, &who.pid);
	return 0;
}
