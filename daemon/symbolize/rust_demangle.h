// SPDX-License-Identifier: Apache-2.0
//
// Rust's v0 mangling (RFC 2603).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace gpuprof::symbolize {

// The readable form of a `_R...` symbol as rustc-demangle's alternate form has it: no hashes of
// crates, no types of constants. Nothing for what is malformed or a later version's (constants of
// compound types), would take more than `max_bytes` or does not end within bounds of depth and
// steps: back references can double the length at every step. A suffix that LLVM adds
// (".llvm.123") is left out, another one kept.
//
// Our own: libiberty's allocates while it prints, so that it cannot be left in the middle, and the
// other implementations come with a language's run time.
std::optional<std::string> demangle_rust_v0(std::string_view name, size_t max_bytes);

}  // namespace gpuprof::symbolize
