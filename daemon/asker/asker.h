// SPDX-License-Identifier: Apache-2.0
//
// The asker (asker.c): an ELF executable of its own, whose bytes gpu-profiled carries with it. A
// static gpu-profiled cannot load a library of another glibc; the asker is started by the loader of
// the system it runs on, needs glibc 2.17 or newer, and nothing of ours.
#pragma once

#include <cstddef>
#include <span>

namespace gpuprof::asker {

// The file's bytes.
std::span<const std::byte> program();

}  // namespace gpuprof::asker
