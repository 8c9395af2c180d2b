// SPDX-License-Identifier: Apache-2.0
//
// Image: the code of one cubin, as far as a profile needs it: functions, and for each PC the source
// line and the chain of inlined calls up to the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace gpuprof::cubin {

// The values of the label gpu_src_status.
enum class SourceStatus : uint8_t {
  kInvalid = 0,  // nothing was asked: never a result
  kResolved,     // a line of the table covers the PC, or a call that leads to it
  kNoLineInfo,   // the function is known, no line is
  kNoModule,     // no image for the sample's key (join's finding, never resolve()'s)
  kUnmapped,     // the image does not have the function, or the PC lies beyond its end
};
inline constexpr size_t kSourceStatusCount = 5;
// "resolved", "no-lineinfo", "no-module", "unmapped"; "" for kInvalid.
const char* source_status_name(SourceStatus status);

// One function on the way from an instruction up to its kernel. Views into the Image.
struct SourceFrame {
  // As in the symbol table or the line table's inline records; of a device function inside a
  // kernel's section, whose symbol is `$kernel$callee`, the callee. Empty: the table's name is
  // unusable.
  std::string_view mangled;
  std::string_view file;  // "/dir/a.cu"; empty: unknown
  uint32_t line = 0;      // 0: unknown
};

struct Function {
  std::string_view mangled;  // name of the symbol
  bool is_kernel = false;
  uint32_t section = 0;     // index of its .text section in the ELF file
  uint64_t offset = 0;      // in that section
  uint64_t size_bytes = 0;  // of its code
  uint64_t address = 0;     // in the image's linear layout (below)
};

struct Resolution {
  SourceStatus status = SourceStatus::kUnmapped;
  // Of the PC in the linear layout; 0 where kUnmapped, or where several functions have the name.
  uint64_t address = 0;
  std::vector<SourceFrame> frames;  // innermost first, the kernel last; empty where kUnmapped
};

// Immutable once parsed, so any number of threads may read it. Addresses in cubins all start at 0,
// one per section; the linear layout gives every .text section a span of its own, in the order of
// the section table, 256-byte aligned, none at 0.
class Image {
 public:
  // The bytes of one cubin (ELF64 LE, e_machine 190), which the image keeps. Errors (kCorrupt,
  // kUnsupported) are one line that says what is wrong with the file; hostile bytes cost time and
  // memory linear in their number.
  static Result<std::shared_ptr<const Image>> parse(std::vector<std::byte> bytes);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  [[nodiscard]] uint32_t sm() const;           // 90 for sm_90
  [[nodiscard]] uint32_t abi_version() const;  // 7, 8
  [[nodiscard]] bool has_line_info() const;
  [[nodiscard]] std::span<const std::byte> bytes() const;
  // In the order of their addresses.
  [[nodiscard]] std::span<const Function> functions() const;
  // By the symbol's name, a kernel before others; null if there is none.
  [[nodiscard]] const Function* find(std::string_view mangled) const;
  // `pc_offset` is in bytes from the start of `function` (of the kernel's section for a kernel, as
  // CUPTI counts it: device functions that were not inlined lie inside it, with their own lines, if
  // they have any). Above such a function are the calls that lead to it, as far as all ways from
  // the kernel agree (Callers); a frame whose line they do not agree on has neither file nor line.
  // A device function with a section of its own (-G, -rdc=true) has no kernel above: any may call
  // it. Local functions of several sections may have one name: `kernel`, where it is known, tells
  // which is meant, and else no more than the name is told.
  [[nodiscard]] Resolution resolve(std::string_view function, uint64_t pc_offset,
                                   std::string_view kernel = {}) const;
  // Can code of `function` run in `kernel`? It is the kernel by another name, lies in its section
  // or in one of its own without a kernel. False where the image does not have both.
  [[nodiscard]] bool may_run_in(std::string_view function, std::string_view kernel) const;
  // End of the linear layout.
  [[nodiscard]] uint64_t limit() const;
  // Of .debug_line in the file, and of what is made of it in memory.
  [[nodiscard]] uint64_t line_table_bytes() const;
  [[nodiscard]] uint64_t line_index_bytes() const;
  // Of each function, once its section's calls were read.
  static constexpr uint64_t kCallerBytes = 40;

 private:
  Image();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpuprof::cubin
