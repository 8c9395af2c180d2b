// SPDX-License-Identifier: Apache-2.0
//
// Notes: the build id and the GNU properties that the loader reads, and USDT probes.
#pragma once

#include "tools/elfgate/elf_image.h"
#include "tools/elfgate/facts.h"

namespace gpuprof::elfgate {

// Fills build_id, x86_isa_needed and machine_features from PT_NOTE, probes from .note.stapsdt
// (which no segment holds).
Status read_notes(const ElfImage& image, Facts& facts);

}  // namespace gpuprof::elfgate
