// SPDX-License-Identifier: Apache-2.0
//
// FileSymbols: names and lines of one ELF file, from its own tables or its separate debug file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/symbolize/debug_info.h"
#include "daemon/symbolize/symbol.h"
#include "daemon/symbolize/symbol_table.h"

namespace gpuprof::unwind {
class AddressSpace;
class ElfFile;
}  // namespace gpuprof::unwind

namespace gpuprof::symbolize {

using Frames = std::vector<SourceFrame>;

// Shared by all processes that map the file. Tables are read at the first question.
class FileSymbols {
 public:
  FileSymbols(std::shared_ptr<unwind::ElfFile> file, size_t max_locations);
  ~FileSymbols();

  // Frames at an ELF virtual address, innermost first; empty if no symbol covers it. A separate
  // debug file is looked for in `space`'s root, then in the daemon's. The pointer is shared with
  // the cache.
  std::shared_ptr<const Frames> frames(uint64_t address, const unwind::AddressSpace& space);
  [[nodiscard]] size_t table_bytes() const;
  [[nodiscard]] const std::shared_ptr<unwind::ElfFile>& file() const { return file_; }

 private:
  void load(const unwind::AddressSpace& space);
  Frames look_up(uint64_t address);

  std::shared_ptr<unwind::ElfFile> file_;
  std::shared_ptr<unwind::ElfFile> debug_file_;  // /usr/lib/debug/.build-id/..., if there is one
  std::unique_ptr<SymbolTable> table_;
  std::unique_ptr<SymbolTable> debug_table_;
  std::unique_ptr<DebugInfo> debug_;
  bool loaded_ = false;
  size_t max_locations_;
  std::unordered_map<uint64_t, std::shared_ptr<const Frames>> locations_;
};

}  // namespace gpuprof::symbolize
