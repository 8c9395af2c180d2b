// SPDX-License-Identifier: Apache-2.0
//
// The DWARF expressions of call frame information, decoded.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/unwind/cfi_section.h"
#include "daemon/unwind/frame_rule.h"

namespace gpuprof::unwind {

// The longest of glibc, libgcc and the linkers' PLTs has 10.
inline constexpr size_t kMaxExprOps = 128;

// Appends the operations of the block at a section offset to `ops`; branches become indices into
// `ops` (its size: the end). False if the block is malformed, has an operation without meaning for
// a frame, more than kMaxExprOps of them, or a branch into the middle of one.
bool decode_expression(const CfiSection& section, uint64_t block, std::vector<ExprOp>& ops);

}  // namespace gpuprof::unwind
