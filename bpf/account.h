/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Quotas, taken before anything is reserved, and per-stream losses. */
#pragma once

#include "bpf/identity.h"

#define RING_EVENTS 0
#define RING_STACKS 1

static __always_inline void lose(const struct identity *who, u32 probe, u32 loss, u64 records)
{
	struct gpuprof_stream_key key = {
	    .start_boottime = who->start_boottime,
	    .pid = who->pid,
	    .probe = probe,
	};
	struct gpuprof_stream_losses *losses = bpf_map_lookup_elem(&stream_losses, &key);

	if (!losses) {
		struct gpuprof_stream_losses none = {};

		bpf_map_update_elem(&stream_losses, &key, &none, BPF_NOEXIST);
		losses = bpf_map_lookup_elem(&stream_losses, &key);
		if (!losses)
			return;
	}
	__sync_fetch_and_add(&losses->records[loss & 3], records);
}

/*
 * Fixed windows of a second. Two CPUs that meet at a window's edge may both reset it: some bytes go
 * uncounted then, which a bound of this kind can bear.
 */
static __always_inline int take(void *map, u32 key, u32 ring, u64 second, u64 bytes, u64 limit)
{
	struct gpuprof_quota *quota = bpf_map_lookup_elem(map, &key);

	if (!quota) {
		struct gpuprof_quota fresh = {};

		bpf_map_update_elem(map, &key, &fresh, BPF_NOEXIST);
		quota = bpf_map_lookup_elem(map, &key);
		if (!quota)
			return 0;
	}
	if (quota->second[ring] != second) {
		quota->second[ring] = second;
		quota->bytes[ring] = 0;
	}
	if (quota->bytes[ring] + bytes > limit)
		return 0;
	__sync_fetch_and_add(&quota->bytes[ring], bytes);
	return 1;
}

static __always_inline int within_quota(const struct identity *who, u32 uid, u32 ring, u64 bytes)
{
	u64 second = bpf_ktime_get_ns() / 1000000000;

	return take(&process_quota, who->pid, ring, second, bytes, process_bytes_per_s) &&
	       take(&user_quota, uid, ring, second, bytes, user_bytes_per_s);
}
