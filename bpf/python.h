/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The Python frames of the launching thread into the stacks ring, before its stack. They are heap
 * memory that the thread itself changes, so they can only be read now. What is read is windows: the
 * daemon knows what lies where in them. Nothing is faulted in: frames in use are present.
 */
#pragma once

#include "bpf/batch.h"

struct python_event {
	struct gpuprof_ring_header head;
	struct gpuprof_python_chunk chunk;
};

/* Threads and interpreters looked at for the launching one. */
#define PYTHON_MAX_THREADS 512

static __always_inline u64 user_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* What the interpreter noted of the present thread when it made the thread's state. */
static __always_inline u64 own_python_id(const struct gpuprof_python *python)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	if (python->by_native_id) {
		struct pid *pid = BPF_CORE_READ(task, thread_pid);
		u32 level = BPF_CORE_READ(pid, level);
		void *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);
		struct upid *entry = numbers + level * bpf_core_type_size(struct upid);

		return (u32)BPF_CORE_READ(entry, nr);
	}
#if defined(__TARGET_ARCH_x86)
	/* The C libraries' pthread_self() is the thread pointer. */
	if (bpf_core_field_exists(task->thread.fsbase))
		return BPF_CORE_READ(task, thread.fsbase);
#endif
	return 0;
}

/* The state of the present thread, 0 if there is none. */
static __noinline u64 python_thread(const struct gpuprof_python *python)
{
	u64 interpreter, thread, own;

	if (!python)
		return 0;
	own = own_python_id(python);
	if (!own)
		return 0;
	interpreter = user_word(python->interpreters);
	thread = interpreter ? user_word(interpreter + python->interpreter_threads) : 0;
	for (u32 i = 0; i < PYTHON_MAX_THREADS; i++) {
		if (!interpreter)
			return 0;
		if (!thread) {
			interpreter = user_word(interpreter + python->interpreter_next);
			thread =
			    interpreter ? user_word(interpreter + python->interpreter_threads) : 0;
			continue;
		}
		if (user_word(thread + (python->by_native_id ? python->thread_native_id
							     : python->thread_id)) == own)
			return thread;
		thread = user_word(thread + python->thread_next);
	}
	return 0;
}

static __always_inline u64 first_python_frame(const struct gpuprof_python *python, u64 thread)
{
	u64 frame = user_word(thread + python->thread_frame);

	if (frame && python->frame_indirect)
		frame = user_word(frame + python->frame_indirect - 1);
	return frame;
}

/* A pointer in a frame's window. `at` came from the daemon; the bound is for the verifier. */
static __always_inline u64 window_word(const u8 *window, u32 at)
{
	u64 offset = at_most(at, GPUPROF_PYTHON_FRAME_BYTES - 8);

	return *(const u64 *)(window + offset);
}

/* Fills the chunk from `frame` on; the next frame, 0 after the last, as out->chunk.end says. */
static __always_inline u64 fill_python_chunk(struct python_event *out,
					     const struct gpuprof_python *python, u64 frame)
{
	out->chunk.count = 0;
	out->chunk.end = GPUPROF_PYTHON_MORE;
	for (u32 i = 0; i < GPUPROF_PYTHON_CHUNK_FRAMES; i++) {
		struct gpuprof_python_frame *slot = &out->chunk.frames[i];

		if (!frame)
			break;
		slot->address = frame;
		if (bpf_probe_read_user(slot->frame_window, sizeof(slot->frame_window),
					(void *)(frame + python->frame_window))) {
			out->chunk.end = GPUPROF_PYTHON_FAULT;
			return 0;
		}
		slot->code = window_word(slot->frame_window, python->window_code) & ~7ull;
		if (bpf_probe_read_user(slot->code_window, sizeof(slot->code_window),
					(void *)(slot->code + python->code_window)))
			slot->code = 0;
		frame = window_word(slot->frame_window, python->window_previous);
		out->chunk.count = i + 1;
	}
	if (!frame)
		out->chunk.end = GPUPROF_PYTHON_WHOLE;
	return frame;
}

/* One chunk, whole in the ring although it may be filled in part: a reservation has a fixed size.
 * ~0 if there was no room. */
static __noinline u64 put_python_chunk(const struct hit *hit, const struct gpuprof_python *python,
				       u64 frame, u32 first)
{
	struct python_event *out;

	if (!python || !hit)
		return 0;
	if (!within_quota(&hit->who, hit->head.uid, RING_STACKS, sizeof(*out)))
		return ~0ull;
	out = bpf_ringbuf_reserve(&stacks, sizeof(*out), 0);
	if (!out)
		return ~0ull;
	__builtin_memcpy(&out->head, &hit->head, sizeof(out->head));
	out->head.flags |= GPUPROF_RING_PYTHON;
	out->head.payload_bytes = sizeof(out->chunk);
	out->chunk.first = first;
	out->chunk.zero = 0;
	frame = fill_python_chunk(out, python, frame);
	bpf_ringbuf_submit(out, wake_flag(&stacks, stacks_wake_bytes));
	return frame;
}

/* Before the launch's own record, which takes them along; what comes twice replaces the first. */
static __noinline int put_python(const struct hit *hit)
{
	const struct gpuprof_python *python;
	u64 frame, thread;

	if (!hit)
		return 0;
	python = bpf_map_lookup_elem(&pythons, &hit->who.pid);
	if (!python ||
	    (python->start_ticks &&
	     python->start_ticks != (hit->who.start_boottime + daemon_boottime_offset) / 10000000))
		return 0;
	thread = python_thread(python);
	frame = thread ? first_python_frame(python, thread) : 0;
	/* A thread without frames is a matter of course: most launch from C++ alone. */
	if (!frame)
		return 0;
	for (u32 i = 0; i < GPUPROF_PYTHON_MAX_CHUNKS && frame; i++) {
		frame = put_python_chunk(hit, python, frame, i * GPUPROF_PYTHON_CHUNK_FRAMES);
		if (frame == ~0ull) {
			count(GPUPROF_BPF_PYTHON_LOST);
			return 0;
		}
	}
	return 0;
}
