// SPDX-License-Identifier: Apache-2.0
//
// Symbolizer: pcs of one process -> functions, files, lines and inlined frames.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/symbolize/debug_source.h"
#include "daemon/symbolize/symbol.h"
#include "daemon/symbolize/symbol_counts.h"

namespace gpuprof::unwind {
class AddressSpace;
}

namespace gpuprof::symbolize {

// What is shared by all processes of a node: symbol tables and debug information by file. Make one
// beside the unwind::FileCache; it must outlive the symbolizers. Threads: one at a time.
// Memory: the least recently used files' tables are dropped beyond kMaxFiles files, kMaxTableBytes
// of symbol tables or kMaxDebugBytes of decompressed debug information, and are read again when
// they are needed; per file at most kMaxFileLocations resolved addresses are kept.
class SymbolCache {
 public:
  static constexpr size_t kMaxFiles = 256;
  static constexpr size_t kMaxTableBytes = size_t{64} << 20;
  static constexpr uint64_t kMaxDebugBytes = uint64_t{96} << 20;
  static constexpr size_t kMaxFileLocations = 8192;

  SymbolCache();
  ~SymbolCache();
  SymbolCache(const SymbolCache&) = delete;
  SymbolCache& operator=(const SymbolCache&) = delete;

  // Asked for debug files that are not found. Outlives the cache, or is taken away by null.
  void use_source(DebugSource* source);
  // A file that was let go and read again counts twice.
  [[nodiscard]] SymbolCounts counts() const;

 private:
  friend class Symbolizer;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Names come from DWARF where the file or its separate debug file has it (4 and 5, inlined
// functions included), else from the symbol tables of either or of .gnu_debugdata, never beyond a
// symbol's end; in JIT memory from the perf map /tmp/perf-NSPID.map of the target's root. C++ and
// Rust (legacy) names are demangled. Threads: one at a time, the same as the address space's.
// Failure: `frames` is empty.
class Symbolizer {
 public:
  static constexpr size_t kMaxCachedPcs = 1024;
  static constexpr size_t kMaxAddedFrames = 128 * 1024;
  // No user address has it (5-level paging: 56 bits).
  static constexpr uint64_t kAddedFrame = uint64_t{1} << 56;

  Symbolizer(std::shared_ptr<unwind::AddressSpace> space, SymbolCache& cache);
  ~Symbolizer();
  Symbolizer(Symbolizer&&) noexcept;
  Symbolizer& operator=(Symbolizer&&) noexcept;

  // What a frame is that is known without its code. Each is a module of its own.
  enum class Added : uint8_t { kPython, kThread };

  // The pc that stands for such a frame in stacks, which resolve() takes. 0 beyond kMaxAddedFrames.
  uint64_t add_frame(const SourceFrame& frame, Added what);
  // `pc` as RawStack has it (callers already -1). The reference is valid until the next resolve().
  const SymbolizedPc& resolve(uint64_t pc);
  // Grows only, and an index stays good; the bounds of "[jit]" and "[unknown]" may widen. One entry
  // per distinct file, also of files that could not be opened (absolute addresses there).
  [[nodiscard]] const std::vector<Module>& modules() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpuprof::symbolize
