// SPDX-License-Identifier: Apache-2.0
//
// Names of kernels as a person reads them.
#pragma once

#include <string>
#include <string_view>

namespace gpuprof::join {

// The demangled form of an Itanium name ("_Z..."), or the name itself where it is none, is longer
// than 1,024 bytes (libiberty refuses those: DEMANGLE_RECURSION_LIMIT), or expands beyond 64 KiB:
// names come from targets, and a few hundred bytes of nested substitutions can stand for gigabytes.
std::string demangle(const std::string& mangled);

// Most bytes of a short name.
inline constexpr size_t kShortNameBytes = 256;

// Function name with its namespaces: no return type, no parameters, and template arguments as deep
// as kShortNameBytes allow, "<...>" below. From what demangle() gave; of a name that it left
// mangled, the leading namespaces and identifier.
std::string short_kernel_name(std::string_view demangled);

// "[memcpy HtoD]", by enum gpuprof_copy_kind.
std::string_view copy_frame_name(uint32_t copy_kind);

}  // namespace gpuprof::join
