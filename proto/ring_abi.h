/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the BPF programs write into the two rings, and what the daemon reads from them.
 *
 *   events ring: header + `count` USDT records (batches; launches only where their stack was lost)
 *   stacks ring: header + gpuprof_launch_v1 + gpuprof_stack_head + `stack_bytes` of user stack;
 *                before it, where the thread runs Python, header + gpuprof_python_chunk, as often
 *                as its frames need
 *
 * Kernel-internal: both sides are built together, so nothing here is stable across versions.
 */
#pragma once

#include "proto/usdt_abi.h"

/* gpuprof_ring_header.flags */
#define GPUPROF_RING_STACK_LOST \
  1u                            /* a launch whose stack was lost: ring full, quota or unreadable */
#define GPUPROF_RING_WATCHED 2u /* the process is watched (others send process_v1 only) */
#define GPUPROF_RING_PYTHON 4u  /* stacks ring: a gpuprof_python_chunk of the launch `seq` */

struct gpuprof_ring_header {
  uint64_t time_ns;        /* bpf_ktime_get_ns() */
  uint64_t seq;            /* the probe's third argument */
  uint64_t cookie;         /* of the attach: which shim file (without the probe bits) */
  uint64_t start_boottime; /* of the thread group leader, ns; identifies the process with pid */
  uint32_t probe;          /* enum gpuprof_probe */
  uint32_t count;          /* the probe's second argument */
  uint32_t pid;            /* thread group, at the daemon's pid namespace level */
  uint32_t tid;            /* thread, likewise */
  uint32_t uid;            /* in the initial user namespace */
  uint32_t flags;
  uint32_t payload_bytes; /* bytes that follow the header */
  uint32_t exec_id;       /* task->self_exec_id: sequence numbers start anew in a new image */
  char comm[16];          /* of the thread */
};
GPUPROF_ASSERT_SIZE(gpuprof_ring_header, 80);

/* User registers in DWARF numbering. x86-64: 0..15 general, 16 rip. aarch64: 0..30, 31 sp, 32 pc.
 */
#define GPUPROF_REGS_MAX 34

/* gpuprof_stack_head.flags */
#define GPUPROF_STACK_CUT 1u         /* deeper than the copy: the outer end is missing */
#define GPUPROF_STACK_PARTIAL 2u     /* a page could not be read: the copy ends there */
#define GPUPROF_STACK_MAIN_THREAD 4u /* bounded by mm->start_stack */
#define GPUPROF_STACK_NO_BOUND 8u    /* the stack's top was unknown (no bpf_find_vma) */

/*
 * Most bytes copied of one stack. A fifth of a PyTorch training loop's stacks are deeper than 64
 * KiB.
 */
#define GPUPROF_STACK_MAX_BYTES 262144u

struct gpuprof_stack_head {
  uint64_t regs[GPUPROF_REGS_MAX];
  uint64_t stack_address; /* address of the first copied byte: the stack pointer */
  uint64_t stack_top;     /* end of the thread's stack, 0 if unknown */
  uint32_t stack_bytes;   /* bytes that follow */
  uint32_t flags;
};
GPUPROF_ASSERT_SIZE(gpuprof_stack_head, 296);

/*
 * Python frames of the launching thread, innermost first, as they lie in its memory: which version
 * has what where is the daemon's business. A window is the part of a structure that tells all.
 */
#define GPUPROF_PYTHON_FRAME_BYTES 88u
#define GPUPROF_PYTHON_CODE_BYTES 80u
#define GPUPROF_PYTHON_CHUNK_FRAMES 16u
#define GPUPROF_PYTHON_MAX_CHUNKS 32u

struct gpuprof_python_frame {
  uint64_t address; /* of the frame */
  uint64_t code;    /* of its code object, 0 if its window could not be read */
  uint8_t frame_window[GPUPROF_PYTHON_FRAME_BYTES];
  uint8_t code_window[GPUPROF_PYTHON_CODE_BYTES];
};
GPUPROF_ASSERT_SIZE(gpuprof_python_frame, 184);

/* How a chunk ended. MORE of the last one: the rest was lost, or there are more than the chunks
 * hold. Behind a WHOLE one may be the thread's frames in another interpreter. */
enum gpuprof_python_end {
  GPUPROF_PYTHON_MORE = 0,
  GPUPROF_PYTHON_WHOLE = 1, /* with the thread's outermost frame */
  GPUPROF_PYTHON_FAULT = 2, /* the next frame could not be read */
};

struct gpuprof_python_chunk {
  uint32_t number; /* among the launch's */
  uint32_t count;
  uint32_t end; /* enum gpuprof_python_end */
  uint32_t zero;
  struct gpuprof_python_frame frames[GPUPROF_PYTHON_CHUNK_FRAMES];
};
GPUPROF_ASSERT_SIZE(gpuprof_python_chunk, 16 + 16 * 184);

/* Where a process's interpreter keeps its threads' frames; offsets in bytes. By process number. */
struct gpuprof_python {
  uint64_t start_ticks;         /* of ProcessId; 0: any */
  uint64_t interpreters;        /* address of the pointer to the first interpreter */
  uint32_t interpreter_next;    /* in an interpreter */
  uint32_t interpreter_threads; /* the newest of its threads */
  uint32_t thread_next;         /* in a thread state */
  uint32_t thread_id;           /* what pthread_self() says there */
  uint32_t thread_native_id;    /* the kernel's number in the thread's own namespace */
  uint32_t by_native_id;        /* which of the two tells threads apart */
  uint32_t thread_frame;        /* pointer to the innermost frame, or to what holds it */
  uint32_t frame_indirect;      /* offset + 1 of the frame in what holds it, 0: directly */
  uint32_t frame_window;        /* where in a frame the window begins */
  uint32_t code_window;         /* likewise in a code object */
  uint32_t window_code;         /* in a frame's window: its code object, low bits are tags */
  uint32_t window_previous;     /* likewise its caller */
  uint32_t every_interpreter;   /* whether the thread's frames in others are wanted, too */
  uint32_t zero;
};
GPUPROF_ASSERT_SIZE(gpuprof_python, 72);

/* Per-CPU counters of the BPF side, one array slot each; the daemon sums them. */
enum gpuprof_bpf_counter {
  GPUPROF_BPF_FIRED = 0,           /* probe hits of watched processes */
  GPUPROF_BPF_IGNORED_PROCESS = 1, /* hits of processes that are not watched */
  GPUPROF_BPF_INVISIBLE_TASK = 2,  /* task has no number in the daemon's pid namespace */
  GPUPROF_BPF_EVENTS_FULL = 3,     /* batches lost: events ring full */
  GPUPROF_BPF_EVENTS_FULL_RECORDS = 4,
  GPUPROF_BPF_STACKS_FULL = 5, /* stacks lost: stacks ring full */
  GPUPROF_BPF_QUOTA = 6,       /* batches refused by a quota */
  GPUPROF_BPF_QUOTA_RECORDS = 7,
  GPUPROF_BPF_FAULT = 8,         /* batches whose records were unreadable */
  GPUPROF_BPF_BAD_COUNT = 9,     /* batches whose count is out of bounds, unknown probes */
  GPUPROF_BPF_STACK_FAULT = 10,  /* stacks lost: no byte readable */
  GPUPROF_BPF_STACKS_QUOTA = 11, /* stacks lost: refused by a quota */
  GPUPROF_BPF_WATCH_FULL = 12,   /* forked children that found no room in the watch map */
  GPUPROF_BPF_FAULTED_IN = 13,   /* copies that needed pages faulted in (sleepable only) */
  GPUPROF_BPF_PYTHON_LOST = 14,  /* Python frames of a launch lost: ring full or quota */
  GPUPROF_BPF_EXCLUDED = 15,     /* hits of processes that are excluded, by number or cgroup */
  GPUPROF_BPF_COUNTER_COUNT = 16,
};

/*
 * Why records of one stream are missing, counted in BPF where it happened. The sequence numbers say
 * how many are missing; this says why, also for those after which nothing more arrives.
 */
enum gpuprof_bpf_loss {
  GPUPROF_LOSS_FULL = 0,
  GPUPROF_LOSS_QUOTA = 1,
  GPUPROF_LOSS_FAULT = 2,
  GPUPROF_LOSS_BAD = 3,
  GPUPROF_LOSS_COUNT = 4,
};

struct gpuprof_stream_key {
  uint64_t start_boottime; /* as in the ring header */
  uint32_t pid;
  uint32_t probe;
};
GPUPROF_ASSERT_SIZE(gpuprof_stream_key, 16);

struct gpuprof_stream_losses {
  uint64_t records[4]; /* by enum gpuprof_bpf_loss */
};

/* Entry of the watch map, by process number at the daemon's level. */
struct gpuprof_watch {
  uint64_t start_ticks; /* of ProcessId; 0: any */
  uint32_t excluded; /* not watched, nor followed at fork: its hits are dropped, whoever watches */
  uint32_t exec_id;  /* of the program that is excluded; the next one may be none */
};
GPUPROF_ASSERT_SIZE(gpuprof_watch, 16);

/* Entry of the cgroup map, by the number of a directory of the unified hierarchy. */
enum gpuprof_cgroup_rule {
  GPUPROF_CGROUP_WATCH = 1,
  GPUPROF_CGROUP_EXCLUDE = 2, /* decides, whatever is above or below it */
};
#define GPUPROF_CGROUPS_MAX 256u

/* What one process or one user put into the rings in the current second. */
struct gpuprof_quota {
  uint64_t second[2]; /* [0] events ring, [1] stacks ring */
  uint64_t bytes[2];
};

/* The attach cookie: the file's number above, the probe's index in the low byte. */
#define GPUPROF_COOKIE_PROBE_BITS 8u
