// SPDX-License-Identifier: Apache-2.0
//
// Status: what a shim function answers where it can fail. The shim throws nothing and aborts
// nothing; a caller that gets anything but kOk counts, drops or declines.
#pragma once

#include <cstdint>

namespace gpuprof::shim {

enum class [[nodiscard]] Status : uint8_t{
    kOk = 0,
    kNoMemory,     // mmap, fallocate or a bounded arena refused
    kLimit,        // a resource limit of the process (RLIMIT_FSIZE, RLIMIT_NOFILE) forbids it
    kUnsupported,  // the kernel lacks the call
    kSystem,       // another error of a system call
    kAlready,      // done before
};

}  // namespace gpuprof::shim
