// SPDX-License-Identifier: Apache-2.0
//
// Callers: what is above each function inside a kernel's section, as far as all its callers agree.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "daemon/cubin/call_sites.h"
#include "daemon/cubin/image.h"

namespace gpuprof::cubin {

// What the line table says of a section.
class SiteChains {
 public:
  virtual ~SiteChains() = default;
  // Appends the frames of the instruction at `offset`, innermost first, up to that of the function
  // whose region it lies in.
  virtual void append(uint32_t offset, std::vector<SourceFrame>& frames) const = 0;
  // The kernel's frame where no line is known.
  [[nodiscard]] virtual SourceFrame kernel() const = 0;
};

// A function's callers are a list of frames that is part of the stack on every way from the kernel
// to it: aligned at the kernel, the frames in which all its call sites' chains (with their own
// functions' callers) name one function, without the line where they differ in it. So where all
// lead to one chain it is that one, and where nothing is known the kernel alone. Calls within a
// recursion add nothing to that.
//
// Kept is a call site for each function and how much of its chain holds. Immutable.
class Callers {
 public:
  // The time is linear in `code_bytes` of the section: beyond, nothing is known of any.
  static Callers build(const CallSites& calls, const SiteChains& chains, uint64_t code_bytes);

  // Appends what is above the function of a region that is not the kernel's, innermost first, the
  // kernel last.
  void append(uint32_t region, const SiteChains& chains, std::vector<SourceFrame>& frames) const;

  static constexpr uint64_t kBytesPerRegion = 24;

 private:
  friend class CallersBuilder;
  struct Caller {
    uint32_t region = 0;  // where `offset` lies
    uint32_t offset = 0;
    uint64_t without_line = 0;  // by the frame's number from the kernel's inward
    uint8_t kept = 0;           // number of frames, from the kernel's inward; 0: nothing is known
    uint8_t depth = 0;          // of the calls above
  };
  static_assert(sizeof(Caller) == kBytesPerRegion);

  std::vector<Caller> callers_;  // by region; of the kernel's there is none
};

}  // namespace gpuprof::cubin
