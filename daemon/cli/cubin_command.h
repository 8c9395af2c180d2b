// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled cubin: what a cubin holds, and which source line an instruction of it came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/options.h"
#include "daemon/cubin/image.h"

namespace gpuprof::cli {

// "0x10,20" (hexadecimal), or "@FILE" with one a line, blank lines left out. kInvalidArgument, or
// kIo where the file cannot be read.
Result<std::vector<uint64_t>> parse_pcs(const std::string& text);

// JSON: an array, one object a pc, frames innermost first. Text: a line a frame.
std::string resolve_json(const cubin::Image& image, const CubinQuery& query,
                         const std::vector<uint64_t>& pcs);
std::string resolve_text(const cubin::Image& image, const CubinQuery& query,
                         const std::vector<uint64_t>& pcs);

// Mangled names of up to three functions that `wanted` may mean: it is a part of their mangled or
// readable name, or nearly one of the two. Nearest first.
std::vector<std::string> near_functions(const cubin::Image& image, const std::string& wanted);

std::string info_json(const cubin::Image& image, const std::string& file);
std::string info_text(const cubin::Image& image, const std::string& file);

}  // namespace gpuprof::cli
