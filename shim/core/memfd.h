// SPDX-License-Identifier: Apache-2.0
//
// Channel: the memfd "gpu-profiled" and its mapping (proto/memfd_layout.h).
//
// Lifetime: created once in InitializeInjection, never unmapped or closed except in a forked child,
// where abandon_in_child() does only that. Threads: create() and abandon_in_child() run alone; the
// accessors from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/core/control.h"
#include "shim/core/held_fd.h"
#include "shim/core/module_table.h"
#include "shim/core/status_code.h"

namespace gpuprof::shim {

inline constexpr int kMemfdMinFd = 100;  // clear of programs that close or dup2 the low numbers

class Channel {
 public:
  constexpr Channel() = default;

  // Makes, seals (F_SEAL_SHRINK), sizes, allocates and maps the memfd and writes the head of the
  // status page (magic last). `module_bytes` bounds the copies; 0 for none. Needs own_process().
  // On failure nothing is left open and the shim works without a page.
  Status create(uint64_t module_bytes);

  // -1 if there is none, or the application took its number.
  int fd() const { return fd_.number(); }
  // Null if there is none, in a child, and after disown().
  gpuprof_status_page* status_page() const;
  ControlRead read(ControlRequest* out) const;
  ModuleTable& modules() { return modules_; }

  // atfork child handler: unmaps, closes (unless the application took the number), and never writes
  // a byte of the parent's page.
  void abandon_in_child();

 private:
  HeldFd fd_;
  std::atomic<char*> base_{nullptr};
  uint64_t mapped_bytes_ = 0;
  ModuleTable modules_;
};

// The one channel of the process. All of the shim's globals are constant-initialised and never
// destroyed: CUPTI's own threads outlive static destructors.
Channel& channel();

// Registers the atfork child handler: disown(), then abandon_in_child(). Once, after create().
Status install_fork_handler();

// Grows a file to `size_bytes` with its pages allocated, unless RLIMIT_FSIZE forbids it (growing
// past it would kill the process with SIGXFSZ).
Status grow_file(int fd, uint64_t old_bytes, uint64_t size_bytes);

}  // namespace gpuprof::shim
