// SPDX-License-Identifier: Apache-2.0
//
// DebugSearch: the separate debug file of an object, and the alternate file that dwz made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/symbolize/symbol_counts.h"

namespace gpuprof::unwind {
class AddressSpace;
class ElfFile;
}  // namespace gpuprof::unwind

namespace gpuprof::symbolize {

// One file that was found, and where: a relative alternate link starts there.
struct DebugFile {
  std::shared_ptr<unwind::ElfFile> file;
  std::string path;
  bool is_hosts = false;  // of the daemon's root, not the target's
};

// Looks where gdb does, first in the target's root, then in the daemon's own (there below
// /usr/lib/debug only):
//   /usr/lib/debug/.build-id/xx/yyyy.debug
//   DIR/LINK, DIR/.debug/LINK, /usr/lib/debug/DIR/LINK   (.gnu_debuglink of an object in DIR)
// A file is taken if its build id is the object's; by a link, if the link's checksum is the file's
// (CRC-32 of all of it, up to kMaxChecksumBytes; larger ones by their build id alone). All names
// are the target's word: opened inside the root, regular files only. Short-lived; borrows its
// arguments.
class DebugSearch {
 public:
  static constexpr uint64_t kMaxChecksumBytes = uint64_t{256} << 20;

  // `path`: of the object, as the target sees it.
  DebugSearch(const unwind::AddressSpace& space, std::string path)
      : space_(space), path_(std::move(path)) {}

  // Null file: there is none.
  DebugFile find(const unwind::ElfFile& object);
  // Neither has it debug information, nor is there a file by its build id.
  [[nodiscard]] bool lacks_debug(const unwind::ElfFile& object) const;
  // A file from elsewhere, if it is of the object's build. Its alternate is looked for by build id.
  DebugFile check(UniqueFd fd, const unwind::ElfFile& object);
  // The alternate of `debug` (.gnu_debugaltlink), by its build id. Null file: none is needed, or
  // none is there, which is noted.
  DebugFile find_alternate(const DebugFile& debug);

  // What stood in the way.
  [[nodiscard]] const DebugTroubles& troubles() const { return troubles_; }

 private:
  struct Wanted {
    std::string build_id;  // empty: not asked for
    bool has_checksum = false;
    uint32_t checksum = 0;
  };
  void note(DebugTrouble trouble) { ++troubles_[static_cast<size_t>(trouble)]; }
  DebugFile by_build_id(const std::string& id);
  DebugFile open(const std::string& path, bool is_hosts, const Wanted& wanted);
  DebugFile read(const UniqueFd& fd, const Wanted& wanted);
  [[nodiscard]] const UniqueFd& root(bool is_hosts) const;

  const unwind::AddressSpace& space_;
  std::string path_;
  DebugTroubles troubles_ = {};
};

}  // namespace gpuprof::symbolize
