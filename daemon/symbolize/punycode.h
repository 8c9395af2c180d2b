// SPDX-License-Identifier: Apache-2.0
//
// Punycode, as Rust's symbols have it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpuprof::symbolize {

void append_utf8(std::string& out, uint32_t code);

// RFC 3492 with the digits a-z, 0-9; what precedes the last '_' is the plain part. UTF-8; nothing
// if it is malformed. At most 4 bytes for each of `text`.
std::optional<std::string> decode_punycode(std::string_view text);

}  // namespace gpuprof::symbolize
