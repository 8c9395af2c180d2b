/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* One firing's records into the events ring. */
#pragma once

#include "bpf/account.h"
#include "bpf/copy.h"

/* Everything about one hit but the records themselves. */
struct hit {
	struct gpuprof_ring_header head;
	struct identity who;
	const void *records;
};

static const u32 record_bytes[16] = {
    [GPUPROF_PROBE_PROCESS] = sizeof(struct gpuprof_process_v1),
    [GPUPROF_PROBE_LAUNCH] = sizeof(struct gpuprof_launch_v1),
    [GPUPROF_PROBE_EXEC] = sizeof(struct gpuprof_exec_v1),
    [GPUPROF_PROBE_PC_SAMPLE] = sizeof(struct gpuprof_pc_sample_v1),
    [GPUPROF_PROBE_NAME] = sizeof(struct gpuprof_name_v1),
    [GPUPROF_PROBE_MODULE] = sizeof(struct gpuprof_module_v1),
    [GPUPROF_PROBE_DEVICE] = sizeof(struct gpuprof_device_v1),
    [GPUPROF_PROBE_WINDOW] = sizeof(struct gpuprof_window_v1),
    [GPUPROF_PROBE_DROP] = sizeof(struct gpuprof_drop_v1),
};

#define OK	   0
#define RING_FULL  1
#define UNREADABLE 2 /* also: do it again after faulting in */

static __always_inline u64 wake_flag(void *ring, u64 wake_bytes)
{
	/* A wake-up a record costs 6 us: the reader polls on a timer, and is woken only when late.
	 */
	return bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= wake_bytes ? BPF_RB_FORCE_WAKEUP
									: BPF_RB_NO_WAKEUP;
}

/* The verifier wants a constant size per reservation, hence the classes. */
static __always_inline int put_batch_class(const struct hit *hit, u64 bytes, const u64 max_bytes)
{
	struct gpuprof_ring_header *out = bpf_ringbuf_reserve(&events, sizeof(*out) + max_bytes, 0);

	if (!out)
		return RING_FULL;
	__builtin_memcpy(out, &hit->head, sizeof(*out));
	if (bpf_probe_read_user(out + 1, at_most(bytes, max_bytes), hit->records)) {
		bpf_ringbuf_discard(out, BPF_RB_NO_WAKEUP);
		return UNREADABLE;
	}
	/* The daemon must read a new process's maps while it lives, and some live for milliseconds.
	 */
	bpf_ringbuf_submit(out, hit->head.probe == GPUPROF_PROBE_PROCESS
				    ? BPF_RB_FORCE_WAKEUP
				    : wake_flag(&events, events_wake_bytes));
	return OK;
}

/* 28672 is a full batch of 256 executions. */
static __noinline int put_batch_once(const struct hit *hit)
{
	u64 bytes = hit->head.payload_bytes;

	if (bytes <= 256)
		return put_batch_class(hit, bytes, 256);
	if (bytes <= 1024)
		return put_batch_class(hit, bytes, 1024);
	if (bytes <= 4096)
		return put_batch_class(hit, bytes, 4096);
	if (bytes <= 8192)
		return put_batch_class(hit, bytes, 8192);
	if (bytes <= 14336)
		return put_batch_class(hit, bytes, 14336);
	if (bytes <= 20480)
		return put_batch_class(hit, bytes, 20480);
	if (bytes <= 28672)
		return put_batch_class(hit, bytes, 28672);
	return put_batch_class(hit, bytes, GPUPROF_MAX_BATCH_BYTES);
}

/*
 * Puts the batch into the events ring, or counts it as lost, by reason. UNREADABLE: not counted,
 * the caller is to try `again` with the pages faulted in.
 */
static __always_inline int put_batch(const struct hit *hit, u32 again)
{
	u32 records = hit->head.count;
	u64 bytes = hit->head.payload_bytes;
	int result;

	if (!again &&
	    !within_quota(&hit->who, hit->head.uid, RING_EVENTS, sizeof(hit->head) + bytes)) {
		count(GPUPROF_BPF_QUOTA);
		count_n(GPUPROF_BPF_QUOTA_RECORDS, records);
		lose(&hit->who, hit->head.probe, GPUPROF_LOSS_QUOTA, records);
		return OK;
	}
	result = put_batch_once(hit);
	if (result == RING_FULL) {
		count(GPUPROF_BPF_EVENTS_FULL);
		count_n(GPUPROF_BPF_EVENTS_FULL_RECORDS, records);
		lose(&hit->who, hit->head.probe, GPUPROF_LOSS_FULL, records);
	} else if (result == UNREADABLE) {
		if (sleepable && !again)
			return UNREADABLE;
		count(GPUPROF_BPF_FAULT);
		lose(&hit->who, hit->head.probe, GPUPROF_LOSS_FAULT, records);
	}
	return OK;
}

/* Fills `hit` from the probe's arguments; 0 if the hit is to be ignored (and was counted). */
static __always_inline int begin_hit(struct user_regs *ctx, struct hit *hit, u32 again)
{
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 probe = cookie & ((1u << GPUPROF_COOKIE_PROBE_BITS) - 1);
	u32 records = (u32)ARG2(ctx);
	struct task_struct *task = (void *)bpf_get_current_task();
	enum standing standing;
	u32 size;

	identify(task, &hit->who);
	if (!hit->who.pid) {
		count(GPUPROF_BPF_INVISIBLE_TASK);
		return 0;
	}
	/* A new process is always told: the daemon decides what it is. */
	standing = standing_of(task, &hit->who);
	if (standing != MINE && probe != GPUPROF_PROBE_PROCESS) {
		count(standing == EXCLUDED ? GPUPROF_BPF_EXCLUDED : GPUPROF_BPF_IGNORED_PROCESS);
		return 0;
	}
	count(again ? GPUPROF_BPF_FAULTED_IN : GPUPROF_BPF_FIRED);
	size = record_bytes[probe & 15];
	if (!size || !records || records > GPUPROF_MAX_BATCH_RECORDS ||
	    records * size > GPUPROF_MAX_BATCH_BYTES) {
		count(GPUPROF_BPF_BAD_COUNT);
		lose(&hit->who, probe, GPUPROF_LOSS_BAD,
		     at_most(records, GPUPROF_MAX_BATCH_RECORDS));
		return 0;
	}
	hit->records = (const void *)ARG1(ctx);
	hit->head.time_ns = bpf_ktime_get_ns();
	hit->head.seq = ARG3(ctx);
	hit->head.cookie = cookie >> GPUPROF_COOKIE_PROBE_BITS;
	hit->head.start_boottime = hit->who.start_boottime;
	hit->head.probe = probe;
	hit->head.count = records;
	hit->head.pid = hit->who.pid;
	hit->head.tid = hit->who.tid;
	hit->head.uid = (u32)bpf_get_current_uid_gid();
	hit->head.flags = standing == MINE ? GPUPROF_RING_WATCHED : 0;
	hit->head.payload_bytes = records * size;
	hit->head.exec_id = (u32)BPF_CORE_READ(task, self_exec_id);
	bpf_get_current_comm(hit->head.comm, sizeof(hit->head.comm));
	return 1;
}
