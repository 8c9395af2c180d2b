/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The few kernel types that the programs read, by name: libbpf relocates every access to the
 * running kernel's own layout (CO-RE), so only names matter here, not order or what is left out.
 */
#pragma once

#include <linux/types.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct kernfs_node {
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct mm_struct {
	unsigned long start_stack;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
};

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#endif

struct task_struct {
	int pid;
	int tgid;
	struct mm_struct *mm;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	u64 start_boottime;
	u64 self_exec_id;
	struct signal_struct *signal;
	struct css_set *cgroups;
#if defined(__TARGET_ARCH_x86)
	struct thread_struct thread;
#endif
};

#pragma clang attribute pop

/* The context of a uprobe: user-visible ABI (asm/ptrace.h), so not relocated. */
#if defined(__TARGET_ARCH_x86)
struct user_regs {
	u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	u64 orig_ax, ip, cs, flags, sp, ss;
};
#define ARG1(r)	   ((r)->di)
#define ARG2(r)	   ((r)->si)
#define ARG3(r)	   ((r)->dx)
#define USER_SP(r) ((r)->sp)
#elif defined(__TARGET_ARCH_arm64)
struct user_regs {
	u64 regs[31];
	u64 sp;
	u64 pc;
	u64 pstate;
};
#define ARG1(r)	   ((r)->regs[0])
#define ARG2(r)	   ((r)->regs[1])
#define ARG3(r)	   ((r)->regs[2])
#define USER_SP(r) ((r)->sp)
#else
#error "the programs know x86-64 and aarch64"
#endif
