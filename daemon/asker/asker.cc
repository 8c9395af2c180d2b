// SPDX-License-Identifier: Apache-2.0
#include "daemon/asker/asker.h"

extern "C" const std::byte gpuprof_asker_begin[];
extern "C" const std::byte gpuprof_asker_end[];

namespace gpuprof::asker {

std::span<const std::byte> program() { return {gpuprof_asker_begin, gpuprof_asker_end}; }

}  // namespace gpuprof::asker
