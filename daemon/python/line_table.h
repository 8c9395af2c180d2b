// SPDX-License-Identifier: Apache-2.0
//
// From an instruction of a Python code object to its source line.
#pragma once

#include <cstdint>
#include <span>

namespace gpuprof::python {

// How co_lnotab, or co_linetable, is written. The formats are CPython's Objects/lnotab_notes.txt
// (up to 3.9 and 3.10) and InternalDocs/code_objects.md (3.11 and later).
enum class LineTableKind : uint8_t { kLnotab, kRanges, kLocations };

// The line of the instruction at byte `offset` of the code, 0 where it has none or the table ends
// before. `first_line` is co_firstlineno. Any bytes do: the work is bounded by the table's size.
uint32_t line_at(LineTableKind kind, std::span<const uint8_t> table, int32_t first_line,
                 uint32_t offset);

}  // namespace gpuprof::python
