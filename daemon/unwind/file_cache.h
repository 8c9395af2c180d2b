// SPDX-License-Identifier: Apache-2.0
//
// FileCache: the ELF files that processes map, opened once per node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::unwind {

class ElfFile;

// 64 processes that map one libtorch share one ElfFile: its image, CFI rules and (through
// symbolize::SymbolCache) its symbols. Keyed by device, inode, size and modification time.
// Threads: one at a time. Memory: files that nobody uses any more are kept for the next short
// process, the least recently opened are dropped beyond `kMaxUnusedFiles`.
class FileCache {
 public:
  static constexpr size_t kMaxUnusedFiles = 256;

  FileCache();
  ~FileCache();
  FileCache(const FileCache&) = delete;
  FileCache& operator=(const FileCache&) = delete;

  // The regular file behind `fd` (opened for reading). Fails with kCorrupt if it is no ELF file of
  // a supported machine.
  Result<std::shared_ptr<ElfFile>> open(const UniqueFd& fd);
  // An ELF image in memory (the vdso), shared by content.
  Result<std::shared_ptr<ElfFile>> from_memory(std::span<const uint8_t> image);

  // The one descriptor that all processes of this root directory share: it is held until their
  // profile is written, and thousands of short ones may have come and gone by then.
  std::shared_ptr<const UniqueFd> root(UniqueFd fd);

  [[nodiscard]] size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::shared_ptr<ElfFile> file;  // null: known to be no usable ELF file
    std::string why;
    std::list<std::string>::iterator used;
  };
  Result<std::shared_ptr<ElfFile>> hit(Entry& entry);
  Result<std::shared_ptr<ElfFile>> insert(std::string key, Result<std::shared_ptr<ElfFile>> file);
  void evict();

  std::unordered_map<std::string, Entry> entries_;
  std::list<std::string> order_;  // least recently opened first
  // By mount, device and inode. A descriptor keeps its mount, so no other gets the number.
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::weak_ptr<const UniqueFd>> roots_;
};

}  // namespace gpuprof::unwind
