// SPDX-License-Identifier: Apache-2.0
//
// Makes text that a target chose safe to print and to put into a profile.
#pragma once

#include <string>
#include <string_view>

namespace gpuprof::probe {

// Printable ASCII only: the common case, nothing to do.
bool is_plain(std::string_view text);

// Valid UTF-8 without control characters (C0, DEL, C1): each offending byte becomes '?', each
// offending character too. Never longer than `text`.
std::string sanitize(std::string_view text);

}  // namespace gpuprof::probe
