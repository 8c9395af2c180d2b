/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The Python frames of the launching thread into the stacks ring, before its stack. They are heap
 * memory that the thread itself changes, so they can only be read now. What is read is windows: the
 * daemon knows what lies where in them. Nothing is faulted in: frames in use are present.
 *
 * Two functions are not static: the verifier then looks at each once, by itself, and not again for
 * every way to every call (241,000 instructions, beyond its million otherwise).
 */
#pragma once

#include "bpf/batch.h"

struct python_event {
	struct gpuprof_ring_header head;
	struct gpuprof_python_chunk chunk;
};

/* Threads and interpreters looked at for the launching one. */
#define PYTHON_MAX_THREADS 512
/* Interpreters whose code the thread may be running, one called from another. */
#define PYTHON_MAX_INTERPRETERS 3

/* In place of a next frame: a chunk found no room; a frame could not be read. */
#define PYTHON_LOST    (~0ull)
#define PYTHON_FAULTED 1ull

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

static __always_inline u64 first_python_frame(const struct gpuprof_python *python, u64 thread)
{
	u64 frame = user_word(thread + python->thread_frame);

	if (frame && python->frame_indirect)
		frame = user_word(frame + python->frame_indirect - 1);
	return frame;
}

/* Where the search for the present thread goes on. */
struct python_search {
	u64 own;
	u64 interpreter;
	u64 thread;
};

static __always_inline void enter_interpreter(struct python_search *search,
					      const struct gpuprof_python *python, u64 at)
{
	search->interpreter = user_word(at);
	search->thread =
	    search->interpreter ? user_word(search->interpreter + python->interpreter_threads) : 0;
}

/* The innermost frame of the present thread in the next interpreter where it has one, else 0. It
 * has a state in others, too, when it has run their code. */
__noinline u64 next_python_frame(const struct gpuprof_python *python, struct python_search *search)
{
	u32 id_at;

	if (!python || !search)
		return 0;
	id_at = python->by_native_id ? python->thread_native_id : python->thread_id;
	for (u32 i = 0; i < PYTHON_MAX_THREADS; i++) {
		u64 thread = search->thread, frame;

		if (!search->interpreter)
			return 0;
		if (!thread) {
			enter_interpreter(search, python,
					  search->interpreter + python->interpreter_next);
			continue;
		}
		search->thread = user_word(thread + python->thread_next);
		if (user_word(thread + id_at) != search->own)
			continue;
		frame = first_python_frame(python, thread);
		if (frame) {
			search->thread = 0;
			return frame;
		}
	}
	return 0;
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
			return PYTHON_FAULTED;
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
 */
__noinline u64 put_python_chunk(const struct hit *hit, const struct gpuprof_python *python,
				u64 frame, u32 number)
{
	struct python_event *out;

	if (!python || !hit)
		return 0;
	if (!within_quota(&hit->who, hit->head.uid, RING_STACKS, sizeof(*out)))
		return PYTHON_LOST;
	out = bpf_ringbuf_reserve(&stacks, sizeof(*out), 0);
	if (!out)
		return PYTHON_LOST;
	__builtin_memcpy(&out->head, &hit->head, sizeof(out->head));
	out->head.flags |= GPUPROF_RING_PYTHON;
	out->head.payload_bytes = sizeof(out->chunk);
	out->chunk.number = number;
	out->chunk.zero = 0;
	frame = fill_python_chunk(out, python, frame);
	bpf_ringbuf_submit(out, wake_flag(&stacks, stacks_wake_bytes));
	return frame;
}

/* The chunks of one interpreter's frames, from chunk `number` on; the number after them, 0 if the
 * walk is at its end. */
static __noinline u32 put_python_chunks(const struct hit *hit, const struct gpuprof_python *python,
					u64 frame, u32 number)
{
	for (u32 i = 0; i < GPUPROF_PYTHON_MAX_CHUNKS; i++) {
		if (number >= GPUPROF_PYTHON_MAX_CHUNKS)
			return 0;
		frame = put_python_chunk(hit, python, frame, number);
		if (frame == PYTHON_LOST)
			count(GPUPROF_BPF_PYTHON_LOST);
		if (frame == PYTHON_LOST || frame == PYTHON_FAULTED)
			return 0;
		number++;
		if (!frame)
			return number;
	}
	return 0;
}

/* Before the launch's own record, which takes them along; what comes twice replaces the first. */
static __noinline int put_python(const struct hit *hit)
{
	const struct gpuprof_python *python;
	struct python_search search = {};
	u32 number = 0;

	if (!hit)
		return 0;
	python = bpf_map_lookup_elem(&pythons, &hit->who.pid);
	if (!python ||
	    (python->start_ticks &&
	     python->start_ticks != (hit->who.start_boottime + daemon_boottime_offset) / 10000000))
		return 0;
	search.own = own_python_id(python);
	if (!search.own)
		return 0;
	enter_interpreter(&search, python, python->interpreters);
	/* A thread without frames is a matter of course: most launch from C++ alone. */
	for (u32 i = 0; i < PYTHON_MAX_INTERPRETERS; i++) {
		u64 frame = next_python_frame(python, &search);

		number = frame ? put_python_chunks(hit, python, frame, number) : 0;
		if (!number || !python->every_interpreter)
			return 0;
	}
	return 0;
}
