/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The memfd "gpu-profiled" that the shim creates at init: status, control, module table, copies.
 *
 *   offset 0                        struct gpuprof_status_page   shim writes, daemon reads
 *   offset GPUPROF_CONTROL_OFFSET   struct gpuprof_control_page  daemon writes, shim reads
 *   offset GPUPROF_MODULES_OFFSET   struct gpuprof_module_entry[capacity]
 *   offset status.copies_offset     copied images, each at module_entry.copy_offset
 *
 * Sealed F_SEAL_SHRINK: a reader may rely on a size once seen. Either side treats the other's page
 * as hostile: bounded, validated, unknown values mean "off". Offsets are in bytes and do not depend
 * on the page size.
 */
#pragma once

#include "proto/usdt_abi.h"

#define GPUPROF_MEMFD_NAME "gpu-profiled"
#define GPUPROF_STATUS_MAGIC 0x31464f5250555047ull  /* "GPUPROF1" */
#define GPUPROF_CONTROL_MAGIC 0x314c525443555047ull /* "GPUCTRL1" */
#define GPUPROF_CONTROL_OFFSET 4096u
#define GPUPROF_MODULES_OFFSET 8192u
#define GPUPROF_MODULE_CAPACITY 8192u

enum gpuprof_state {
  GPUPROF_STATE_INVALID = 0,
  GPUPROF_STATE_DECLINED = 1,
  GPUPROF_STATE_IDLE = 2,
  GPUPROF_STATE_ARMING = 3, /* subscribed, waits for a launch to enable activity in */
  GPUPROF_STATE_TRACING = 4,
  GPUPROF_STATE_TRACING_PC = 5,
  GPUPROF_STATE_DISARMING = 6, /* waits for a launch to disable activity in */
  GPUPROF_STATE_BUSY = 7,      /* another CUPTI client holds the subscriber */
  GPUPROF_STATE_INERT = 8,     /* fatal CUPTI error, forked child, exit */
  GPUPROF_STATE_COUNT = 9,
};

/* Why a state was entered. NONE is valid everywhere; the text on the page says more. */
enum gpuprof_reason {
  GPUPROF_REASON_NONE = 0,
  GPUPROF_REASON_NO_CUPTI = 1,
  GPUPROF_REASON_CUPTI_TOO_OLD = 2,
  GPUPROF_REASON_CUPTI_NEWER_THAN_DRIVER = 3,
  GPUPROF_REASON_MISSING_SYMBOL = 4,
  GPUPROF_REASON_SUBSCRIBE_FAILED = 5,
  GPUPROF_REASON_NO_THREAD = 6,
  GPUPROF_REASON_NO_MEMORY = 7,
  GPUPROF_REASON_DISABLED = 8,     /* GPU_PROFILED_DISABLE */
  GPUPROF_REASON_OTHER_CLIENT = 9, /* subscribe answered MULTIPLE_SUBSCRIBERS */
  GPUPROF_REASON_FATAL_ERROR = 10,
  GPUPROF_REASON_FORKED = 11,
  GPUPROF_REASON_EXITING = 12,
  GPUPROF_REASON_LEASE_EXPIRED = 13,
  GPUPROF_REASON_RELEASED = 14, /* the controller asked for tier off */
  GPUPROF_REASON_WAITING_FOR_LAUNCH = 15,
  GPUPROF_REASON_BUFFERS_OUTSTANDING = 16,
  GPUPROF_REASON_ENABLE_FAILED = 17,
  GPUPROF_REASON_QUIRK = 18,        /* this CUPTI version is on the quirk table */
  GPUPROF_REASON_CUPTI_FAILED = 19, /* its first call failed */
  GPUPROF_REASON_COUNT = 20,
};

/*
 * Whose copy of libcupti it is. One that the shim has loaded satisfies every later need of the same
 * soname in the process.
 */
enum gpuprof_cupti_origin {
  GPUPROF_CUPTI_UNKNOWN = 0, /* none, or a shim older than this field */
  GPUPROF_CUPTI_MAPPED = 1,  /* the application's: mapped before the shim looked */
  GPUPROF_CUPTI_LOADED = 2,  /* the shim's */
  GPUPROF_CUPTI_ORIGIN_COUNT = 3,
};

enum gpuprof_libcuda_kind {
  GPUPROF_LIBCUDA_UNKNOWN = 0,
  GPUPROF_LIBCUDA_SYSTEM = 1,
  GPUPROF_LIBCUDA_COMPAT = 2, /* forward-compatibility package */
  GPUPROF_LIBCUDA_TEGRA = 3,
  GPUPROF_LIBCUDA_WSL = 4,
  GPUPROF_LIBCUDA_NIX = 5, /* of the store or /run/opengl-driver */
  GPUPROF_LIBCUDA_KIND_COUNT = 6,
};

/* What became of the PC sampling that was asked for. */
enum gpuprof_pc_state {
  GPUPROF_PC_OFF = 0,     /* not asked for */
  GPUPROF_PC_WAITING = 1, /* waits for a launch or a context to be enabled in */
  GPUPROF_PC_ON = 2,      /* at least one context is sampled (serialized: in turns) */
  GPUPROF_PC_REFUSED = 3, /* not possible: pc_reason; tried again where that can heal */
  GPUPROF_PC_STATE_COUNT = 4,
};

/* Why PC sampling is refused. pc_reason_text says more, and what to change. */
enum gpuprof_pc_reason {
  GPUPROF_PC_REASON_NONE = 0,
  GPUPROF_PC_REASON_CUPTI_TOO_OLD = 1, /* below API 27 it excludes kernel activity */
  GPUPROF_PC_REASON_MISSING_SYMBOL = 2,
  GPUPROF_PC_REASON_GPU_TOO_OLD = 3,
  GPUPROF_PC_REASON_PRIVILEGE = 4, /* RmProfilingAdminOnly and no CAP_SYS_ADMIN */
  GPUPROF_PC_REASON_MPS = 5,
  GPUPROF_PC_REASON_MIG = 6,
  GPUPROF_PC_REASON_VGPU = 7,
  GPUPROF_PC_REASON_CONFIDENTIAL = 8,
  GPUPROF_PC_REASON_WSL = 9,
  GPUPROF_PC_REASON_COUNTERS_BUSY = 10, /* DCGM, a debugger or another profiler holds them */
  GPUPROF_PC_REASON_OUT_OF_MEMORY = 11, /* again, after it was healed twice */
  GPUPROF_PC_REASON_GRAPH = 12,         /* serialized: a graph execution was seen */
  GPUPROF_PC_REASON_COOPERATIVE = 13,   /* serialized: a cooperative launch was seen */
  GPUPROF_PC_REASON_COLLECTIVE = 14,    /* serialized: an NCCL or NVSHMEM kernel was seen */
  GPUPROF_PC_REASON_FAILED = 15,        /* any other answer of CUPTI */
  GPUPROF_PC_REASON_GPU_TAKEN = 16,     /* not granted: sampled in another process */
  GPUPROF_PC_REASON_COUNT = 17,
};

/* Indices of gpuprof_status_page.pc_counters. Appended to, never reordered. */
enum gpuprof_pc_counter {
  GPUPROF_PC_COUNT_SAMPLES = 0,  /* sum of the stalled_<reason> counts emitted, not_issued apart */
  GPUPROF_PC_COUNT_WINDOWS = 1,  /* windows opened */
  GPUPROF_PC_COUNT_DRAINS = 2,   /* GetData calls that answered */
  GPUPROF_PC_COUNT_ENABLES = 3,  /* contexts enabled */
  GPUPROF_PC_COUNT_DISABLES = 4, /* contexts disabled */
  GPUPROF_PC_COUNT_HEALED = 5,   /* OUT_OF_MEMORY answers followed by disable and enable */
  GPUPROF_PC_COUNT_CONTEXTS_REFUSED = 6, /* a second context of a GPU */
  GPUPROF_PC_COUNT_GRAPH_REFUSED = 7,    /* serialized starts and windows refused, by cause */
  GPUPROF_PC_COUNT_COOPERATIVE_REFUSED = 8,
  GPUPROF_PC_COUNT_COLLECTIVE_REFUSED = 9,
  GPUPROF_PC_COUNT_SKIPPED_CAPTURE = 10, /* steps put off since a stream was being captured */
  GPUPROF_PC_COUNT_SKIPPED_GUARD = 11,   /* steps put off since another thread was in CUPTI */
};

/* CUuuid's bytes. All zero where libcuda does not tell them. */
struct gpuprof_gpu_uuid {
  uint8_t bytes[16];
};
GPUPROF_ASSERT_SIZE(gpuprof_gpu_uuid, 16);

#define GPUPROF_PC_GPUS_MAX 16u /* GPUs that one process samples at most */

struct gpuprof_status_page {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t seq;       /* odd while the fields below change; readers retry */
  uint32_t owner_pid; /* getpid() of the process that created the memfd */
  uint32_t state;     /* enum gpuprof_state */
  uint64_t owner_start_ticks;
  uint32_t reason;         /* enum gpuprof_reason */
  uint32_t epoch;          /* correlation epoch, 0 before the first arm */
  uint64_t heartbeat_ns;   /* CLOCK_MONOTONIC at the service thread's last round */
  uint32_t cupti_version;  /* cuptiGetVersion(); 19 for 12.0 and 12.1, which answer 11.8's 18 */
  uint32_t driver_version; /* cuDriverGetVersion() */
  uint32_t libcuda_kind;   /* enum gpuprof_libcuda_kind */
  uint32_t tier;           /* what is active now: enum gpuprof_tier */
  uint32_t arms;
  uint32_t disarms;
  uint32_t module_capacity;
  uint32_t module_count; /* entries claimed, may exceed the capacity */
  uint64_t copies_offset;
  uint64_t copies_bytes;   /* bytes of the copy area that exist */
  uint32_t subscribe_mode; /* 0 on-demand, 1 eager */
  uint32_t buffers_outstanding;
  uint64_t off_since_ns; /* CLOCK_MONOTONIC, recording stopped then; 0: it goes on or never began */
  uint64_t off_ns;       /* time without recording, from the first arm to the latest one */
  uint64_t reserved0[2];
  uint64_t probe_totals[16]; /* records emitted, by enum gpuprof_probe */
  uint64_t drop_totals[32];  /* by enum gpuprof_drop_class */
  uint8_t build_id[20];
  uint8_t reserved1[12];
  char kernel_driver_version[32];
  char cupti_path[512];
  char libcuda_path[512];
  char reason_text[1024];
  char unknown_knobs[256];
  uint32_t pc_state;        /* enum gpuprof_pc_state */
  uint32_t pc_reason;       /* enum gpuprof_pc_reason */
  uint32_t pc_period;       /* log2 cycles as read back from CUPTI, 0: never enabled */
  uint32_t pc_contexts;     /* sampled now */
  uint64_t pc_counters[16]; /* by enum gpuprof_pc_counter */
  char pc_reason_text[512];
  /* The grant that is in force: no GPU outside it is enabled any more. 0: nothing is granted. */
  uint64_t pc_grant_serial;
  uint32_t pc_grant_modes; /* modes this shim knows; 0: it is older than grants and heeds none */
  uint32_t cupti_origin;   /* enum gpuprof_cupti_origin */
  uint32_t pc_wanted;      /* GPUs (bits: indices of pc_gpus) that a launch wanted to sample */
  uint32_t pc_held;        /* GPUs that are sampled, or may be: set before, cleared after */
  struct gpuprof_gpu_uuid pc_gpus[16]; /* by device id */
  uint8_t reserved3[272];
};
GPUPROF_ASSERT_SIZE(gpuprof_status_page, 4096);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, state, 20);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, heartbeat_ns, 40);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, copies_offset, 80);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, off_since_ns, 104);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, probe_totals, 136);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, drop_totals, 264);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, build_id, 520);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, cupti_path, 584);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, reason_text, 1608);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, pc_state, 2888);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, pc_reason_text, 3032);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, pc_grant_serial, 3544);
GPUPROF_ASSERT_OFFSET(gpuprof_status_page, pc_gpus, 3568);

enum gpuprof_tier {
  GPUPROF_TIER_OFF = 0,
  GPUPROF_TIER_TRACE = 1,
  GPUPROF_TIER_CONTINUOUS = 2,
  GPUPROF_TIER_SERIALIZED = 3,
};

#define GPUPROF_LEASE_MS_MAX 60000u
#define GPUPROF_PC_DUTY_MAX 100u /* per mille */

/*
 * Which GPUs the process may PC-sample. A second process that samples a GPU loses its tracing, so
 * the daemon lets one at a time (docs/adr/0020). A shim whose control page was never written has
 * no grant.
 */
enum gpuprof_pc_grant {
  GPUPROF_PC_GRANT_ALL = 0,    /* every one */
  GPUPROF_PC_GRANT_LISTED = 1, /* those of pc_gpus */
  GPUPROF_PC_GRANT_COUNT = 2,
};

/*
 * Seqlocked: the daemon makes `seq` odd, writes, makes it even. The controlling daemon holds an OFD
 * write lock on bytes [GPUPROF_CONTROL_OFFSET, +4096). The lease has no clock in it: the shim
 * starts a timer of `lease_ms` when it first sees a value of `lease_serial`, and disarms when it
 * runs out.
 */
struct gpuprof_control_page {
  uint64_t magic;
  uint32_t abi_version;
  uint32_t seq;
  uint32_t tier;          /* enum gpuprof_tier; anything else is off */
  uint32_t pc_period;     /* log2 cycles 5..31, 0 default */
  uint32_t stack_rate;    /* stacks a second and thread; 0 default, UINT32_MAX: every launch */
  uint32_t process_rate;  /* stacks a second and process; 0 default, UINT32_MAX: no limit */
  uint64_t process_bytes; /* stack bytes a second and process; 0 default */
  uint64_t lease_serial;
  uint32_t lease_ms;       /* 1..GPUPROF_LEASE_MS_MAX */
  uint32_t controller_pid; /* in the daemon's namespace, for the refusal message */
  uint64_t sampler_seed;   /* 0: random; tests fix it */
  char controller_name[64];
  uint32_t pc_grant;        /* enum gpuprof_pc_grant; anything else is off */
  uint32_t pc_grant_count;  /* LISTED: of pc_gpus, 0..GPUPROF_PC_GPUS_MAX */
  uint64_t pc_grant_serial; /* another one with each other grant; told back on the status page */
  struct gpuprof_gpu_uuid pc_gpus[16];
  uint32_t pc_duty; /* SERIALIZED: share of the time in windows, 1..GPUPROF_PC_DUTY_MAX per mille; 0
                       default */
  uint32_t reserved_word;
  uint8_t reserved[3688];
};
GPUPROF_ASSERT_SIZE(gpuprof_control_page, 4096);
GPUPROF_ASSERT_OFFSET(gpuprof_control_page, pc_duty, 400);
GPUPROF_ASSERT_OFFSET(gpuprof_control_page, lease_serial, 40);
GPUPROF_ASSERT_OFFSET(gpuprof_control_page, controller_name, 64);
GPUPROF_ASSERT_OFFSET(gpuprof_control_page, pc_grant, 128);
GPUPROF_ASSERT_OFFSET(gpuprof_control_page, pc_gpus, 144);

enum gpuprof_module_state {
  GPUPROF_MODULE_EMPTY = 0,
  GPUPROF_MODULE_PRESENT = 1, /* hash, address, size and time are published */
  GPUPROF_MODULE_COPIED = 2,  /* copy_offset is valid too */
  GPUPROF_MODULE_GONE = 3,    /* unloading started, no copy */
};

struct gpuprof_module_entry {
  uint64_t hash; /* XXH3-64, seed 0, of the image; what PC records carry as cubinCrc */
  uint64_t address;
  uint64_t size_bytes;
  uint64_t load_time_ns;
  uint64_t copy_offset; /* from the start of the memfd, 0: no copy */
  uint32_t state;       /* enum gpuprof_module_state, stored last with release order */
  uint32_t reserved;
};
GPUPROF_ASSERT_SIZE(gpuprof_module_entry, 48);
GPUPROF_ASSERT_OFFSET(gpuprof_module_entry, state, 40);
