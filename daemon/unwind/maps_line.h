// SPDX-License-Identifier: Apache-2.0
//
// MapsLine: one line of /proc/PID/maps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpuprof::unwind {

struct MapsLine {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t file_offset = 0;
  uint64_t dev = 0;  // makedev(major, minor); 0 for memory without a file
  uint64_t inode = 0;
  bool executable = false;
  bool deleted = false;  // the kernel appended " (deleted)"
  std::string path;      // escapes undone, " (deleted)" removed; may hold any byte but NUL
};

// Format: Documentation/filesystems/proc.rst, "maps". Nothing for a malformed line.
std::optional<MapsLine> parse_maps_line(std::string_view line);

// For display: control bytes and what is not UTF-8 become '?'.
std::string printable(std::string_view text);

}  // namespace gpuprof::unwind
