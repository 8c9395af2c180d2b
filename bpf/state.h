/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Maps, settings and counters: everything that outlives one probe hit. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "bpf/kernel_types.h"
#include "proto/ring_abi.h"

/* Set by the daemon before load; __u32 and not u32, for the skeleton is read by C++ too. */
const volatile __u32 daemon_pid_ns_inum;     /* inode number of the daemon's pid namespace */
const volatile __s64 daemon_boottime_offset; /* of the daemon's time namespace, ns */
const volatile __u32 sleepable;		     /* the probe programs are loaded as sleepable */
const volatile __u32 has_find_vma;
const volatile __u64 process_bytes_per_s;
const volatile __u64 user_bytes_per_s;
const volatile __u64 events_wake_bytes; /* wake the reader at this much unread data */
const volatile __u64 stacks_wake_bytes;

/* Set by the daemon at any time. */
volatile __u32 watch_all;
volatile __u32 cgroup_rules; /* entries of `cgroups` */

/*
 * The level of the daemon's pid namespace, learned from the first visible task. It is the same for
 * all, so that a wrong guess costs one search and concurrent writers agree.
 */
volatile __u32 daemon_pid_level;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24); /* resized before load */
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, u32);
	__type(value, struct gpuprof_watch);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUPROF_CGROUPS_MAX);
	__type(key, u64);
	__type(value, u32);
} cgroups SEC(".maps");

/* Processes in which a thread took the shim's name. A page: who floods it hides himself alone, for
 * a look at all processes finds the others. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12); /* at least a page; set before load */
} sightings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 12);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct gpuprof_python);
} pythons SEC(".maps");

/* LRU: anybody can make processes, and a full table must not lock out the ones that matter. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 13);
	__type(key, u32);
	__type(value, struct gpuprof_quota);
} process_quota SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 12);
	__type(key, u32);
	__type(value, struct gpuprof_quota);
} user_quota SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 13);
	__type(key, struct gpuprof_stream_key);
	__type(value, struct gpuprof_stream_losses);
} stream_losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GPUPROF_BPF_COUNTER_COUNT);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

/* Atomic, because a sleepable program can be preempted by another one on the same CPU. */
static __always_inline void count_n(u32 counter, u64 n)
{
	u64 *slot = bpf_map_lookup_elem(&counters, &counter);

	if (slot)
		__sync_fetch_and_add(slot, n);
}

static __always_inline void count(u32 counter)
{
	count_n(counter, 1);
}
