// SPDX-License-Identifier: Apache-2.0
//
// CallSites: which instructions of a section enter which of its functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/cubin/elf_image.h"

namespace gpuprof::cubin {

// A function inside a kernel's section.
struct Region {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool is_kernel = false;
  // Of ptxas' own library: no program has its address.
  bool is_library = false;
};

// The number of the region that an offset lies in is 1 + its index; 0 is the kernel's code, which
// is what lies in no other. Of those that begin together the last counts.
inline constexpr uint32_t kKernelRegion = 0;
// `regions`: in the order of their beginnings.
[[nodiscard]] uint32_t region_of(std::span<const Region> regions, uint64_t offset);

struct CallSite {
  uint32_t callee = 0;  // number of a region
  uint32_t caller = 0;  // of another one, or the kernel's
  uint32_t offset = 0;  // of the call, or of the branch, in the section
};

struct CallSites {
  std::vector<CallSite> sites;  // by callee, then offset
  // By number: it may be entered by other ways than these. All are, where the code cannot be read.
  std::vector<bool> has_others;
};

struct SectionCode {
  uint32_t sm = 0;
  std::span<const std::byte> code;
  std::span<const Region> regions;
  uint32_t text = 0;                          // index into ElfImage::texts
  std::span<const CodeReference> references;  // to this section, by the referring instruction
};

// Reads each instruction once. A function is entered by a CALL or a branch whose target is in the
// instruction or in its relocation. It may be entered by other ways where
// - its address is anywhere in the image (a relocation of anything but a call's target),
// - the section has indirect calls or branches, unless it is of ptxas' library: function pointers
// of
//   a whole program are offsets in the section, in tables without relocations,
// - the code before it goes on into it.
CallSites find_call_sites(const SectionCode& section);

}  // namespace gpuprof::cubin
