// SPDX-License-Identifier: Apache-2.0
//
// Which process the shim's state belongs to. A forked child inherits every variable of the shim and
// shares its memfd, yet must neither emit nor write a byte of the parent's page.
//
// Two checks. `owned()` costs one load and may run per launch: it reads a page that the kernel
// wipes in every child that gets its own address space (MADV_WIPEONFORK, Linux 4.14), also after a
// raw clone() that runs no atfork handler; on older kernels only the atfork handler clears it.
// `owned_by_caller()` adds a getpid() system call and also catches a vfork or CLONE_VM child; every
// emission does it, launches that are not drawn do not.
#pragma once

#include <sys/types.h>

#include "shim/core/status_code.h"

namespace gpuprof::shim {

// Claims the state for the calling process; once, in InitializeInjection, before anything else.
Status own_process();
// False before own_process(), in a forked child, and after disown(). Any thread, any time.
bool owned();
// owned() and getpid() is the owner's.
bool owned_by_caller();
// Goes inert for good: in the atfork child handler, after a fatal CUPTI error, at the end of exit.
void disown();
// getpid() of the owner, 0 before own_process().
pid_t owner_pid();

}  // namespace gpuprof::shim
