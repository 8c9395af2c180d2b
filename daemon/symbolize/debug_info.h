// SPDX-License-Identifier: Apache-2.0
//
// DebugInfo: the DWARF of one file, read as far as it is asked for.
#pragma once

#include <elfutils/libdw.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/symbolize/symbol.h"

namespace gpuprof::symbolize {

// What DWARF says of one address: innermost first. `system_name` is the linkage name, else the
// plain name; `has_linkage_name` tells for the outermost (real) function, whose name may also be
// had from the symbol table.
struct DebugFrames {
  std::vector<SourceFrame> frames;
  bool has_linkage_name = false;
};

// DWARF 2 to 5 through libdw. Units are indexed by address at the first question, functions of a
// unit at the first address in it, its line table likewise. What dwz moved to an alternate file is
// read from the one that is given; without one, what is there has no name. Split DWARF (.dwo) is
// not followed: libdw would open paths that the file names, in the daemon's own root. Memory: what
// libdw keeps of the units that were asked for. After kMaxUnits units everything is let go and read
// again as needed.
class DebugInfo {
 public:
  static constexpr size_t kMaxUnits = 512;

  // Null if the file has no usable DWARF. `elf` and `alternate` must outlive it; the latter has no
  // alternate of its own.
  static std::unique_ptr<DebugInfo> open(Elf* elf, Elf* alternate = nullptr);
  ~DebugInfo();
  DebugInfo(const DebugInfo&) = delete;
  DebugInfo& operator=(const DebugInfo&) = delete;

  // Nothing if no unit covers the address.
  std::optional<DebugFrames> find(uint64_t address);

 private:
  struct Range {
    uint64_t start = 0, end = 0;
    Dwarf_Off die = 0;
  };
  struct Unit {
    std::vector<Range>
        functions;  // sorted; the innermost of nested ones is found by the last start
    bool has_lines = false;
  };
  struct EndDwarf {
    void operator()(Dwarf* dwarf) const { dwarf_end(dwarf); }
  };

  DebugInfo(Elf* elf, Elf* alternate) : elf_(elf), alternate_elf_(alternate) {}
  bool load();
  void index_units();
  Unit* unit(Dwarf_Off offset, Dwarf_Die* cu);
  [[nodiscard]] bool lines_readable(Dwarf_Die* cu) const;
  static const Range* covering(const std::vector<Range>& ranges, uint64_t address);

  Elf* elf_;
  Elf* alternate_elf_;
  std::unique_ptr<Dwarf, EndDwarf> alternate_;  // `dwarf_` refers to it
  std::unique_ptr<Dwarf, EndDwarf> dwarf_;
  std::vector<Range> units_;
  std::unordered_map<Dwarf_Off, Unit> loaded_;
};

}  // namespace gpuprof::symbolize
