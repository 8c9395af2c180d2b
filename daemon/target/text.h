// SPDX-License-Identifier: Apache-2.0
//
// Text that came from a target, made safe for a terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpuprof::target {

// Up to the first NUL and at most `max_bytes`; control bytes, DEL, C1 controls and invalid UTF-8
// become '?', so that a target can neither move the cursor nor break a one-line message.
std::string printable(std::string_view text, size_t max_bytes = 1024);

// "GPU-3f2a9c11-…", as nvidia-smi -L prints it; empty if all bytes are zero.
std::string gpu_uuid(std::span<const uint8_t, 16> uuid);

}  // namespace gpuprof::target
