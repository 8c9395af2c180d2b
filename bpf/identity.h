/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Who fired: numbers at the level of the daemon's pid namespace, and whether anybody watches them.
 */
#pragma once

#include <bpf/bpf_core_read.h>

#include "bpf/state.h"

#define PID_LEVELS 33 /* MAX_PID_NS_LEVEL + 1, include/linux/pid_namespace.h */

struct identity {
	u64 start_boottime;
	u32 pid; /* 0: not visible from the daemon's namespace */
	u32 tid;
};

/* The number of `pid` at `level` if that level is the daemon's namespace, else 0. */
static __always_inline u32 number_at(struct pid *pid, u32 level)
{
	/* numbers[] grew from [1] to a flexible array, so the index is not a relocation. */
	void *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);
	struct upid *entry = numbers + level * bpf_core_type_size(struct upid);

	if (BPF_CORE_READ(entry, ns, ns.inum) != daemon_pid_ns_inum)
		return 0;
	return BPF_CORE_READ(entry, nr);
}

static __noinline u32 daemon_number(struct pid *pid)
{
	u32 own_level = BPF_CORE_READ(pid, level);
	u32 guess = daemon_pid_level;
	u32 number = 0;

	if (guess < PID_LEVELS && guess <= own_level)
		number = number_at(pid, guess);
	for (u32 level = 0; !number && level < PID_LEVELS; level++) {
		if (level > own_level)
			break;
		number = number_at(pid, level);
		if (number)
			daemon_pid_level = level;
	}
	return number;
}

static __always_inline void identify(struct task_struct *task, struct identity *who)
{
	struct task_struct *leader = BPF_CORE_READ(task, group_leader);

	who->start_boottime = BPF_CORE_READ(leader, start_boottime);
	who->pid = daemon_number(BPF_CORE_READ(leader, thread_pid));
	who->tid = daemon_number(BPF_CORE_READ(task, thread_pid));
}

static __always_inline int is_watched(const struct identity *who)
{
	struct gpuprof_watch *watch = bpf_map_lookup_elem(&watched, &who->pid);

	if (!watch)
		return 0;
	return !watch->start_ticks ||
	       watch->start_ticks == (who->start_boottime + daemon_boottime_offset) / 10000000;
}
