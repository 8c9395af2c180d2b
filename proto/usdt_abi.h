/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The USDT ABI between the shim (producer, inside the target) and gpu-profiled (consumer).
 *
 * Provider `gpu_profiled`. Every probe fires (const void *records, uint32_t count, uint64_t seq):
 *   x86-64   8@%rdi 4@%esi 8@%rdx        aarch64   8@x0 4@x1 8@x2
 * `records` points at `count` consecutive records of the probe's type. `seq` is the number of
 * records of this probe that this process emitted before this batch, so that a gap tells how many
 * records are missing. A changed record is a new probe (`_v2`); nothing here is ever edited.
 *
 * Usable from C11, C++20 and BPF C (clang -target bpf -ffreestanding).
 * All records are little-endian, naturally aligned and have no implicit padding.
 * All times are CLOCK_MONOTONIC nanoseconds of the target's time namespace.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define GPUPROF_ASSERT(cond, text) static_assert(cond, text)
#else
#define GPUPROF_ASSERT(cond, text) _Static_assert(cond, text)
#endif
#define GPUPROF_ASSERT_SIZE(type, bytes) \
  GPUPROF_ASSERT(sizeof(struct type) == (bytes), "size of " #type " is part of the ABI")
#define GPUPROF_ASSERT_OFFSET(type, member, bytes)                   \
  GPUPROF_ASSERT(__builtin_offsetof(struct type, member) == (bytes), \
                 "offset of " #type "." #member " is part of the ABI")

#define GPUPROF_USDT_PROVIDER "gpu_profiled"
#define GPUPROF_ABI_VERSION 1u

/* Index of a probe: the order of probe totals on the status page and of `detail` in drop records.
 */
enum gpuprof_probe {
  GPUPROF_PROBE_INVALID = 0,
  GPUPROF_PROBE_PROCESS = 1,   /* process_v1   gpuprof_process_v1 */
  GPUPROF_PROBE_LAUNCH = 2,    /* launch_v1    gpuprof_launch_v1, count is always 1 */
  GPUPROF_PROBE_EXEC = 3,      /* exec_v1      gpuprof_exec_v1 */
  GPUPROF_PROBE_PC_SAMPLE = 4, /* pc_sample_v1 gpuprof_pc_sample_v1 */
  GPUPROF_PROBE_NAME = 5,      /* name_v1      gpuprof_name_v1 */
  GPUPROF_PROBE_MODULE = 6,    /* module_v1    gpuprof_module_v1 */
  GPUPROF_PROBE_DEVICE = 7,    /* device_v1    gpuprof_device_v1 */
  GPUPROF_PROBE_WINDOW = 8,    /* window_v1    gpuprof_window_v1 */
  GPUPROF_PROBE_DROP = 9,      /* drop_v1      gpuprof_drop_v1 */
  GPUPROF_PROBE_AUTOARM = 10,  /* autoarm      never fires: its semaphore arms new processes */
  GPUPROF_PROBE_COUNT = 11,
};

/* Most records one firing may carry; the consumer refuses more. */
#define GPUPROF_MAX_BATCH_RECORDS 256u
/* Most bytes one firing may carry (records * size). */
#define GPUPROF_MAX_BATCH_BYTES 32768u

/* What a launch or an execution is. */
enum gpuprof_kind {
  GPUPROF_KIND_INVALID = 0,
  GPUPROF_KIND_KERNEL = 1,
  GPUPROF_KIND_MEMCPY = 2,
  GPUPROF_KIND_MEMSET = 3,
  GPUPROF_KIND_GRAPH = 4, /* launches only: its executions are the graph's nodes */
};

/* gpuprof_exec_v1.copy_kind: the values of CUpti_ActivityMemcpyKind (cupti_activity.h). */
enum gpuprof_copy_kind {
  GPUPROF_COPY_UNKNOWN = 0,
  GPUPROF_COPY_HTOD = 1,
  GPUPROF_COPY_DTOH = 2,
  GPUPROF_COPY_HTOA = 3,
  GPUPROF_COPY_ATOH = 4,
  GPUPROF_COPY_ATOA = 5,
  GPUPROF_COPY_ATOD = 6,
  GPUPROF_COPY_DTOA = 7,
  GPUPROF_COPY_DTOD = 8,
  GPUPROF_COPY_HTOH = 9,
  GPUPROF_COPY_PTOP = 10,
};

/* A process was injected; fired once, at the end of InitializeInjection. */
struct gpuprof_process_v1 {
  uint32_t abi_version;
  uint32_t pid;         /* getpid() in the target's own namespace */
  uint64_t start_ticks; /* field 22 of /proc/self/stat, clock ticks */
  int32_t memfd;        /* fd number of the memfd "gpu-profiled", -1 if there is none */
  uint32_t state;       /* enum gpuprof_state (memfd_layout.h) */
  uint64_t time_ns;
  uint8_t build_id[20]; /* the shim's own NT_GNU_BUILD_ID, zero-padded */
  uint32_t reserved;
};
GPUPROF_ASSERT_SIZE(gpuprof_process_v1, 56);
GPUPROF_ASSERT_OFFSET(gpuprof_process_v1, memfd, 16);
GPUPROF_ASSERT_OFFSET(gpuprof_process_v1, build_id, 32);

/*
 * One launch that the thread's sampler drew. Fired on the launching thread, before the launch
 * returns to the application, so that its user stack is the launch's call path.
 */
struct gpuprof_launch_v1 {
  uint64_t time_ns;
  uint32_t correlation; /* CUPTI's 32-bit id */
  uint32_t epoch;       /* widens it: grows at each arm and at each wrap of the id */
  uint64_t name_id;     /* 0: not known at the launch (graphs, copies) */
  uint64_t weight_q32;  /* 1/p at the draw, unsigned 32.32 fixed point; never below 1.0 */
  uint32_t kind;        /* enum gpuprof_kind */
  uint32_t context_id;  /* CUPTI's context id, 0 if unknown */
  uint32_t api_domain;  /* 1 driver, 2 runtime (CUpti_CallbackDomain) */
  uint32_t api_id;      /* the callback id in that domain */
  uint32_t tid;         /* gettid() in the target's namespace */
  uint32_t reserved;
};
GPUPROF_ASSERT_SIZE(gpuprof_launch_v1, 56);
GPUPROF_ASSERT_OFFSET(gpuprof_launch_v1, weight_q32, 24);
GPUPROF_ASSERT_OFFSET(gpuprof_launch_v1, tid, 48);

/* gpuprof_exec_v1.flags */
#define GPUPROF_EXEC_BEFORE_ARM 1u      /* launched before this arm's first observed launch */
#define GPUPROF_EXEC_DEVICE_LAUNCHED 2u /* launched from the device: has no host launch */

/* One execution on the GPU, from one activity record; times are valid (0 < start <= end). */
struct gpuprof_exec_v1 {
  uint64_t start_ns;
  uint64_t end_ns;
  uint32_t correlation;
  uint32_t epoch;
  uint64_t name_id;   /* kernels: id of the mangled name; 0: the name table was full */
  uint32_t kind;      /* GPUPROF_KIND_KERNEL, _MEMCPY or _MEMSET */
  uint32_t copy_kind; /* enum gpuprof_copy_kind, memcpy only */
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t graph_id;   /* 0: not part of a graph */
  uint64_t graph_node; /* CUPTI's node id */
  uint64_t bytes;      /* memcpy and memset */
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t registers_per_thread;
  uint32_t static_shared_bytes;
  uint32_t dynamic_shared_bytes;
  uint32_t flags;
};
GPUPROF_ASSERT_SIZE(gpuprof_exec_v1, 112);
GPUPROF_ASSERT_OFFSET(gpuprof_exec_v1, name_id, 24);
GPUPROF_ASSERT_OFFSET(gpuprof_exec_v1, graph_node, 56);
GPUPROF_ASSERT_OFFSET(gpuprof_exec_v1, flags, 108);

/* One (instruction, stall reason) count of one drain; see CUpti_PCSamplingPCData. */
struct gpuprof_pc_sample_v1 {
  uint64_t cubin_key; /* what our hash callback returned for the module */
  uint64_t function_name_id;
  uint64_t window_id;   /* of window_v1 */
  uint32_t pc_offset;   /* bytes from the start of the function */
  uint32_t stall_index; /* index into the device's stall reason names */
  uint32_t samples;
  uint32_t correlation; /* serialized mode only, else 0 */
  uint32_t epoch;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t flags;
};
GPUPROF_ASSERT_SIZE(gpuprof_pc_sample_v1, 56);
GPUPROF_ASSERT_OFFSET(gpuprof_pc_sample_v1, pc_offset, 24);

enum gpuprof_name_kind {
  GPUPROF_NAME_INVALID = 0,
  GPUPROF_NAME_FUNCTION = 1, /* mangled kernel or device function name; id = XXH3-64 of its bytes */
  GPUPROF_NAME_STALL = 2,    /* id = device id << 32 | stall index */
};

#define GPUPROF_NAME_CHUNK_BYTES 224u
/* Longer names are cut there by the shim (and counted). */
#define GPUPROF_NAME_MAX_BYTES 16384u

/* One chunk of an id's string; chunks of one id are emitted in order and may be emitted again. */
struct gpuprof_name_v1 {
  uint64_t id;
  uint32_t kind;        /* enum gpuprof_name_kind */
  uint32_t total_bytes; /* length of the whole string, no NUL */
  uint32_t offset;      /* of this chunk: a multiple of GPUPROF_NAME_CHUNK_BYTES */
  uint32_t chunk_bytes; /* bytes used in `bytes` */
  uint64_t reserved;
  char bytes[GPUPROF_NAME_CHUNK_BYTES];
};
GPUPROF_ASSERT_SIZE(gpuprof_name_v1, 256);
GPUPROF_ASSERT_OFFSET(gpuprof_name_v1, bytes, 32);

enum gpuprof_module_event {
  GPUPROF_MODULE_INVALID = 0,
  GPUPROF_MODULE_LOADED = 1,
  GPUPROF_MODULE_UNLOADING = 2,
};

/* A module-table entry was appended or is about to go. */
struct gpuprof_module_v1 {
  uint64_t hash; /* XXH3-64 of the image */
  uint64_t address;
  uint64_t size_bytes;
  uint64_t time_ns;
  uint32_t table_index;
  uint32_t event; /* enum gpuprof_module_event */
};
GPUPROF_ASSERT_SIZE(gpuprof_module_v1, 40);

struct gpuprof_device_v1 {
  uint32_t device_id; /* CUPTI's, i.e. the CUDA ordinal in this process */
  uint32_t sm_count;
  uint32_t compute_major;
  uint32_t compute_minor;
  uint64_t clock_khz;
  uint64_t memory_bytes;
  uint8_t uuid[16];
  uint32_t pci_domain;
  uint32_t pci_bus;
  uint32_t pci_device;
  uint32_t sampling_period; /* log2 cycles, 0: PC sampling is off */
  char name[96];            /* NUL-terminated */
};
GPUPROF_ASSERT_SIZE(gpuprof_device_v1, 160);
GPUPROF_ASSERT_OFFSET(gpuprof_device_v1, uuid, 32);
GPUPROF_ASSERT_OFFSET(gpuprof_device_v1, name, 64);

enum gpuprof_window_event {
  GPUPROF_WINDOW_INVALID = 0,
  GPUPROF_WINDOW_OPEN = 1,
  GPUPROF_WINDOW_CLOSE = 2,
};

/* A sampling window opened or closed, on one context. */
struct gpuprof_window_v1 {
  uint64_t window_id;
  uint64_t time_ns;
  uint32_t event; /* enum gpuprof_window_event */
  uint32_t mode;  /* 1 continuous, 2 serialized */
  uint32_t device_id;
  uint32_t context_id;
  uint32_t period; /* log2 cycles, as read back */
  uint32_t reserved;
};
GPUPROF_ASSERT_SIZE(gpuprof_window_v1, 40);

/* Producer-side losses by class. The order is part of the ABI; new classes are appended. */
enum gpuprof_drop_class {
  GPUPROF_DROP_INVALID = 0,
  GPUPROF_DROP_CUPTI = 1,           /* cuptiActivityGetNumDroppedRecords */
  GPUPROF_DROP_INVALID_TIME = 2,    /* start or end zero, or start > end */
  GPUPROF_DROP_NO_BUFFER = 3,       /* records that landed in the scratch buffer */
  GPUPROF_DROP_NAME_TABLE_FULL = 4, /* executions whose name has no id */
  GPUPROF_DROP_NAME_CUT = 5,        /* names longer than GPUPROF_NAME_MAX_BYTES */
  GPUPROF_DROP_MODULE_TABLE_FULL = 6,
  GPUPROF_DROP_MODULE_COPY_FULL = 7, /* module images that could not be copied */
  GPUPROF_DROP_STACK_BUDGET = 8,     /* drawn launches not emitted: process budget spent */
  GPUPROF_DROP_INCOMPLETE = 9,       /* activity records incomplete at disarm */
  GPUPROF_DROP_GUARD_BUSY = 10,      /* callbacks that skipped work: the guard was taken */
  GPUPROF_DROP_UNKNOWN_KIND = 11,    /* activity records of a kind we never enabled */
  GPUPROF_DROP_CLOCK_STEP = 12,      /* clock steps seen while converting times */
  GPUPROF_DROP_HW_BUFFER_FULL = 13,  /* PC sampling */
  GPUPROF_DROP_PC_DROPPED = 14,      /* PC sampling: droppedSamples */
  GPUPROF_DROP_NON_USER = 15,        /* PC sampling: nonUsrKernelsTotalSamples */
  GPUPROF_DROP_FINAL_TOTAL = 16,    /* not a loss: `total` records of probe `detail` were emitted */
  GPUPROF_DROP_LAUNCHES_SEEN = 17,  /* not a loss: launch callbacks counted */
  GPUPROF_DROP_LAUNCHES_DRAWN = 18, /* not a loss: launches that the samplers drew */
  GPUPROF_DROP_PC_LOST_DRAINS =
      19,                       /* PC sampling: drains whose samples are gone, unknown how many */
  GPUPROF_DROP_PC_NO_NAME = 20, /* PC samples whose function has no id */
  GPUPROF_DROP_CLASS_COUNT = 21,
};

/* Running total of one class since the process started; emitted when it changed, and at the end. */
struct gpuprof_drop_v1 {
  uint32_t drop_class; /* enum gpuprof_drop_class */
  uint32_t detail;     /* FINAL_TOTAL: enum gpuprof_probe, else 0 */
  uint64_t total;
  uint64_t time_ns;
};
GPUPROF_ASSERT_SIZE(gpuprof_drop_v1, 24);

#ifdef __cplusplus
/* Bytes of one record of `probe` (enum gpuprof_probe); 0 for autoarm and what is no probe. */
constexpr uint32_t gpuprof_record_bytes(uint32_t probe) {
  switch (probe) {
    case GPUPROF_PROBE_PROCESS:
      return sizeof(gpuprof_process_v1);
    case GPUPROF_PROBE_LAUNCH:
      return sizeof(gpuprof_launch_v1);
    case GPUPROF_PROBE_EXEC:
      return sizeof(gpuprof_exec_v1);
    case GPUPROF_PROBE_PC_SAMPLE:
      return sizeof(gpuprof_pc_sample_v1);
    case GPUPROF_PROBE_NAME:
      return sizeof(gpuprof_name_v1);
    case GPUPROF_PROBE_MODULE:
      return sizeof(gpuprof_module_v1);
    case GPUPROF_PROBE_DEVICE:
      return sizeof(gpuprof_device_v1);
    case GPUPROF_PROBE_WINDOW:
      return sizeof(gpuprof_window_v1);
    case GPUPROF_PROBE_DROP:
      return sizeof(gpuprof_drop_v1);
    default:
      return 0;
  }
}
#endif
