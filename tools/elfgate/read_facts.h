// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/elfgate/elf_image.h"
#include "tools/elfgate/facts.h"

namespace gpuprof::elfgate {

// Everything that the checks ask about. Fails, with one line, on what is malformed.
Result<Facts> read_facts(const ElfImage& image);

}  // namespace gpuprof::elfgate
