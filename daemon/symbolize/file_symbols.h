// SPDX-License-Identifier: Apache-2.0
//
// FileSymbols: names and lines of one ELF file, from its own tables or its separate debug file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/symbolize/debug_info.h"
#include "daemon/symbolize/debug_search.h"
#include "daemon/symbolize/debug_source.h"
#include "daemon/symbolize/symbol.h"
#include "daemon/symbolize/symbol_counts.h"
#include "daemon/symbolize/symbol_table.h"

namespace gpuprof::symbolize {

using Frames = std::vector<SourceFrame>;

// Shared by all processes that map the file. Tables are read at the first question.
class FileSymbols {
 public:
  // `source`, if any, is asked for a debug file that is not found.
  FileSymbols(std::shared_ptr<unwind::ElfFile> file, size_t max_locations,
              DebugSource* source = nullptr);
  ~FileSymbols();

  // Frames at an ELF virtual address, innermost first; empty if no symbol covers it. `path` is the
  // file's in `space`, where a separate debug file is looked for (DebugSearch). The pointer is
  // shared with the cache.
  std::shared_ptr<const Frames> frames(uint64_t address, const unwind::AddressSpace& space,
                                       const std::string& path);
  [[nodiscard]] size_t table_bytes() const;
  // What libdw has decompressed.
  [[nodiscard]] uint64_t debug_bytes() const { return debug_bytes_; }
  [[nodiscard]] const std::shared_ptr<unwind::ElfFile>& file() const { return file_; }
  // What it has been made of; zero before the first question.
  [[nodiscard]] const SymbolCounts& counts() const { return counts_; }

 private:
  // Order matters: the table points into the file, and what comes later is destroyed earlier.
  struct Source {
    std::shared_ptr<unwind::ElfFile> file;
    std::unique_ptr<SymbolTable> table;
    size_t image_bytes = 0;  // on the heap
  };
  // Places that are looked up until the files' pages are given back.
  static constexpr size_t kPlacesPerRelease = 32;

  void load(const unwind::AddressSpace& space, const std::string& path);
  void add_source(std::shared_ptr<unwind::ElfFile> file, size_t image_bytes = 0);
  void add_mini_debug();
  void open_debug(const DebugFile& from, DebugSearch& search);
  [[nodiscard]] std::optional<Symbol> find_symbol(uint64_t address) const;
  Frames look_up(uint64_t address);
  void release_pages();

  std::shared_ptr<unwind::ElfFile> file_;
  std::vector<Source> sources_;                 // the fullest table first
  std::shared_ptr<unwind::ElfFile> alternate_;  // dwz's, of debug_
  std::unique_ptr<DebugInfo> debug_;
  uint64_t debug_bytes_ = 0;
  bool loaded_ = false;
  size_t since_release_ = 0;
  SymbolCounts counts_;
  DebugSource* source_;
  size_t max_locations_;
  std::unordered_map<uint64_t, std::shared_ptr<const Frames>> locations_;
};

}  // namespace gpuprof::symbolize
