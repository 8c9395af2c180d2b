// SPDX-License-Identifier: Apache-2.0
//
// Unwinder: copied registers and stack bytes of one thread -> the pcs of its frames.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "daemon/base/stack_sample.h"
#include "daemon/unwind/machine.h"
#include "daemon/unwind/stack.h"

namespace gpuprof::unwind {

class AddressSpace;

// Walks by the CFI of the mapped files (.eh_frame, else .debug_frame), compiled once per pc into a
// compact rule that all processes share: 9 to 46 ns a warm frame, where libdwfl needs 400 to 700
// [docs/hardware.md]. Only the copied bytes are read, never the process, except for the code bytes
// after a return address into JIT memory (read once per pc).
// Threads: one at a time, the same as the address space's. Failure: never; RawStack::end says how
// far it came. Input is hostile: every read is bounded, every step must go up the stack.
class Unwinder {
 public:
  static constexpr size_t kMaxFrames = 512;

  // `machine` is what the samples are of: this one, but for recordings.
  explicit Unwinder(std::shared_ptr<AddressSpace> space, Machine machine = kHostMachine);
  ~Unwinder();
  Unwinder(Unwinder&&) noexcept;
  Unwinder& operator=(Unwinder&&) noexcept;

  // The sample's views may die after the call.
  RawStack unwind(const StackSample& sample);
  // The same into a stack whose storage is reused.
  void unwind(const StackSample& sample, RawStack& out);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpuprof::unwind
