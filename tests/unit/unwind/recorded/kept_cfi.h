// SPDX-License-Identifier: Apache-2.0
//
// KeptCfi: what a recording keeps of an ELF file.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace gpuprof::unwind::test {

// The file with nothing but its headers, its sections' names and what .eh_frame, .eh_frame_hdr and
// .debug_frame say of the functions at `addresses` (ELF virtual ones); every other byte is 0, and
// sections that libdw would want to look into are gone. `image` is a 64-bit little-endian ELF file.
// The rest of a section becomes FDEs about nothing, so that records stay where they are. Ends the
// program where the file is not as linkers make them.
std::string keep_cfi(std::string image, const std::set<uint64_t>& addresses);

}  // namespace gpuprof::unwind::test
