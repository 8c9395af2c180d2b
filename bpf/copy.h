/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reading user memory. Nothing here sleeps while a ring record is reserved: a reserved record
 * blocks all behind it, and a page that its owner serves from user space (FUSE) may take for ever
 * to come. So a copy into a ring is tried without faulting; if that fails the record is discarded,
 * a sleepable program faults the pages in with nothing in hand, and the copy is tried once more.
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

/*
 * The number of bytes from `address`, at most `bytes`, that can be read without a fault; with
 * `fault_in`, after faulting in what can be. `max_pages` is a constant bound of the loop.
 */
static __always_inline u64 readable(u64 address, u64 bytes, int fault_in, u32 max_pages)
{
	u64 end = address + bytes;
	u64 at = address;
	u8 byte;

	for (u32 i = 0; i < max_pages && at < end; i++) {
		long err = bpf_probe_read_user(&byte, 1, (void *)at);

		if (err && fault_in)
			err = bpf_copy_from_user(&byte, 1, (void *)at);
		if (err)
			return at - address;
		at = (at + PAGE_BYTES) & ~(PAGE_BYTES - 1);
	}
	return bytes;
}
