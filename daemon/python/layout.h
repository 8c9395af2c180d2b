// SPDX-License-Identifier: Apache-2.0
//
// Layout: what lies where in one CPython version's thread states, frames and code objects.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/base/result.h"
#include "daemon/python/line_table.h"
#include "proto/ring_abi.h"

namespace gpuprof::python {

// How a frame tells where the interpreter was entered from C: there one native frame of
// _PyEval_EvalFrameDefault ends.
enum class EntryRule : uint8_t {
  kEveryFrame,  // 3.9, 3.10: each Python frame has a native one
  kFlag,        // 3.11: the last Python frame of the native one is marked
  kOwner,       // 3.12 on: a frame without code follows it
};

// Offsets in bytes. `walk` is what BPF needs, without addresses. window_*: in a copied window.
struct Layout {
  uint32_t version = 0;  // major << 8 | minor
  gpuprof_python walk = {};
  EntryRule entry = EntryRule::kEveryFrame;
  uint32_t window_entry = 0;        // kFlag: the flag; kOwner: the owner, a byte
  uint32_t window_instruction = 0;  // pointer, or index (below)
  // The instruction is a number, times this; 0: an address, relative to the code's instructions.
  uint32_t index_bytes = 0;
  LineTableKind lines = LineTableKind::kLnotab;

  uint32_t code_bytes = 0;  // to read of a code object
  uint32_t code_filename = 0;
  uint32_t code_name = 0;  // the qualified name where the version keeps it
  uint32_t code_first_line = 0;
  uint32_t code_lines = 0;
  uint32_t code_instructions = 0;
  uint32_t text_bytes = 0;  // of the head of a str: ASCII ones' characters follow
};

inline constexpr uint8_t kEntryOwner = 3;  // FRAME_OWNED_BY_CSTACK, since 3.14 _INTERPRETER too

// Bytes of _PyRuntime to hand to layout_of().
inline constexpr size_t kRuntimeBytes = 1024;

// The layout of CPython `version`, for _PyRuntime at `address`, of which `runtime` are the first
// kRuntimeBytes. 3.9 to 3.12: known offsets [the headers of 3.9.2, 3.10.12, 3.11.2 and 3.12.3;
// they do not change after a release]. 3.13 and 3.14: as the interpreter's own _Py_DebugOffsets
// say. kUnsupported: another version, a free-threaded build, or offsets that cannot be.
Result<Layout> layout_of(uint32_t version, uint64_t address, std::span<const uint8_t> runtime);

}  // namespace gpuprof::python
