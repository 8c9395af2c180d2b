// SPDX-License-Identifier: Apache-2.0
//
// Finds the shim's probe sites in its ELF file: the SystemTap notes of provider gpu_profiled.
// The file may be anybody's, so everything is bounded and checked before it is believed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "proto/usdt_abi.h"

namespace gpuprof::probe {

struct ProbeSite {
  gpuprof_probe probe = GPUPROF_PROBE_INVALID;
  uint64_t offset = 0;            // of the one-instruction nop, in the file
  uint64_t semaphore_offset = 0;  // of the 16-bit counter, in the file
  // A 5-byte nop (0f 1f 44 00 00) follows the 1-byte nop. x86-64 only.
  bool has_nop5 = false;
};

// "launch_v1" for GPUPROF_PROBE_LAUNCH; "?" for what is no probe.
std::string_view probe_name(uint32_t probe);

// The shim is under 1 MiB; a debug build with DWARF stays far below this.
inline constexpr uint64_t kMaxShimBytes = 64ull << 20;

// The whole regular file by pread, so that nobody can change or truncate it under the parser.
Result<std::vector<uint8_t>> read_shim_file(int fd);

// Sites in the order of enum gpuprof_probe, at most one each. Names that this build does not know
// are skipped (a newer shim may have _v2 probes) and counted in `unknown`. kCorrupt: malformed, a
// probe with two sites, with other arguments than the ABI's, without a semaphore, or whose site is
// not a nop. kUnsupported: not this machine's ELF. kNotFound: a probe that every shim has is
// missing.
Result<std::vector<ProbeSite>> parse_usdt_notes(std::span<const uint8_t> image,
                                                uint64_t* unknown = nullptr);

// Is the file behind `fd` a shim, whatever its name? Reads all of it.
bool is_shim_file(int fd);

}  // namespace gpuprof::probe
