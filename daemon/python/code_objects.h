// SPDX-License-Identifier: Apache-2.0
//
// CodeObjects: the code objects of one interpreter: names, file, line table.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/python/layout.h"
#include "daemon/python/memory.h"

namespace gpuprof::python {

struct CodeObject {
  uint32_t number = 0;   // of the order in which they were read
  std::string function;  // valid UTF-8 without control characters
  std::string file;      // likewise
  int32_t first_line = 0;
  std::vector<uint8_t> lines;
  std::array<uint8_t, GPUPROF_PYTHON_CODE_BYTES> window = {};
};

// Read from the target when a frame first names it. A code object may be freed, and another one be
// put in its place, before we look: the window that BPF copied at the launch (names, file, line
// table and version) must still be there, and the object live, before and after the names were
// read: it keeps them, so they are its own. A match is kept.
// Bounded: kMaxCodes, kMaxBytes, kMaxReadsPerSecond against a process that makes all differ.
// Threads: one at a time.
class CodeObjects {
 public:
  static constexpr size_t kMaxCodes = 64 * 1024;
  static constexpr size_t kMaxBytes = size_t{16} << 20;
  static constexpr size_t kMaxTextCharacters = 1024;
  static constexpr size_t kMaxLineTable = size_t{256} << 10;
  static constexpr size_t kMaxReadsPerSecond = 20'000;

  CodeObjects(const Layout& layout, ReadMemory read);

  // Null: gone, changed, refused by a bound, or no code object. Valid until the next call.
  const CodeObject* find(uint64_t address,
                         std::span<const uint8_t, GPUPROF_PYTHON_CODE_BYTES> window,
                         uint64_t now_ns);
  // Not a function of the program but the interpreter's own, around a call of __init__ that it
  // specialised (_Py_InitCleanup, since 3.12): tracebacks leave it out, too.
  [[nodiscard]] bool is_cleanup(std::span<const uint8_t, GPUPROF_PYTHON_CODE_BYTES> window) const;
  // Of the frame: its line, 0 if it has none.
  [[nodiscard]] uint32_t line(const CodeObject& code, const gpuprof_python_frame& frame) const;

 private:
  std::unique_ptr<CodeObject> read(uint64_t address, std::span<const uint8_t> window);
  [[nodiscard]] bool holds(uint64_t address, std::span<const uint8_t> window) const;
  [[nodiscard]] std::optional<std::string> text(uint64_t address) const;
  [[nodiscard]] bool bytes(uint64_t address, std::vector<uint8_t>& out) const;
  bool may_read(uint64_t now_ns);
  bool is_code_type(uint64_t type);

  Layout layout_;
  uint64_t code_type_ = 0;  // address of PyCode_Type, once one was seen
  ReadMemory read_;
  std::unordered_map<uint64_t, std::unique_ptr<CodeObject>> codes_;
  size_t kept_bytes_ = 0;
  uint32_t next_number_ = 0;
  uint64_t second_ = 0;
  size_t reads_ = 0;
};

}  // namespace gpuprof::python
