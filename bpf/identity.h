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

/* The process's own entry, not its predecessor's of the same number. */
static __always_inline struct gpuprof_watch *watch_of(const struct identity *who)
{
	struct gpuprof_watch *watch = bpf_map_lookup_elem(&watched, &who->pid);

	if (!watch || !watch->start_ticks ||
	    watch->start_ticks == (who->start_boottime + daemon_boottime_offset) / 10000000)
		return watch;
	return NULL;
}

static __always_inline int is_watched(const struct identity *who)
{
	struct gpuprof_watch *watch = watch_of(who);

	return watch && !watch->excluded;
}

#define CGROUP_LEVELS 64 /* deeper ones are not looked through to the root */

/* What the rules say of the task's cgroup and those around it: 0 nothing. */
static __noinline u32 cgroup_rule(struct task_struct *task)
{
	struct cgroup_subsys_state *parent;
	struct cgroup *cgroup;
	u32 *rule, found = 0;
	u64 id;

	if (!task || !bpf_core_field_exists(task->cgroups))
		return 0;
	cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp);
	for (u32 level = 0; cgroup && level < CGROUP_LEVELS; level++) {
		id = BPF_CORE_READ(cgroup, kn, id);
		rule = bpf_map_lookup_elem(&cgroups, &id);
		if (rule && *rule == GPUPROF_CGROUP_EXCLUDE)
			return GPUPROF_CGROUP_EXCLUDE;
		if (rule)
			found = *rule;
		parent = BPF_CORE_READ(cgroup, self.parent);
		if (!parent)
			break;
		cgroup = BPF_CORE_READ(parent, cgroup);
	}
	return found;
}

enum standing { STRANGER, MINE, EXCLUDED };

/* Whether the records of the task's process are wanted. */
static __always_inline enum standing standing_of(struct task_struct *task,
						 const struct identity *who)
{
	struct gpuprof_watch *watch = watch_of(who);
	u32 rule;

	if (watch && !watch->excluded)
		return MINE;
	if (watch && watch->exec_id == (u32)BPF_CORE_READ(task, self_exec_id))
		return EXCLUDED;
	rule = cgroup_rules ? cgroup_rule(task) : 0;
	if (rule == GPUPROF_CGROUP_EXCLUDE)
		return EXCLUDED;
	return rule || watch_all ? MINE : STRANGER;
}
