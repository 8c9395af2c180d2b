// SPDX-License-Identifier: Apache-2.0
//
// Runs the line number programs of .debug_line (DWARF 2 to 4, section 6.2) with NVIDIA's extension.
#pragma once

#include "daemon/base/result.h"
#include "daemon/cubin/elf_image.h"
#include "daemon/cubin/line_table_builder.h"

namespace gpuprof::cubin {

// kCorrupt, in one line, at the first contradiction.
Status run_line_programs(const ElfImage& elf, LineTableBuilder& builder);

}  // namespace gpuprof::cubin
