// SPDX-License-Identifier: Apache-2.0
//
// Could a process load this library? Judged from outside, in the process's own root.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/doctor/root_walk.h"
#include "daemon/target/process.h"

namespace gpuprof::doctor {

// The process that shall load it.
struct LoadingProcess {
  UniqueFd root;             // O_PATH
  bool is_our_root = false;  // its files have the names that they have for us
  FileUser user;
  std::string machine;  // of its program, "x86-64" or "aarch64"; empty: not known
  std::vector<target::Mapping> mappings;
  uint64_t started_unix_ns = 0;  // 0: not known
};

// As /proc tells; gone or hidden parts stay empty. kPermission where its root cannot be opened.
Result<LoadingProcess> loading_process(uint32_t pid);

enum class LibraryFault {
  kNone,           // nothing that can be seen from outside
  kNoPath,         // not an absolute path
  kMissing,        // the file, a directory on the way, or what a link names
  kNoFile,         // a directory or a device
  kNotSearchable,  // the process's user may not enter a directory
  kNotReadable,    // its user may not read the file
  kNoexec,         // the mount forbids executable mappings
  kNoElf,          // empty, cut, or no ELF file
  kOtherMachine,   // for another processor
  kMusl,           // the process has no glibc
  kOldLibc,        // a version that its C library does not have
  kNoDependency,   // a library that it needs was not found
  kNoExport,       // InitializeInjection is missing
  kChangedSince,   // it is good now, and was put there after the process started
  kUnseen,         // we may not look
};

// "missing", "noexec", …: the words of --json.
const char* library_fault_name(LibraryFault fault);

struct LibraryCheck {
  LibraryFault fault = LibraryFault::kNone;
  // What is wrong and what to do, without a subject: "there is no such file in ...: mount ...".
  // Empty for kNone.
  std::string text;
};

// `path` as the value of CUDA_INJECTION64_PATH. Its file and those of the C library are read, at
// most probe::kMaxShimBytes each.
LibraryCheck check_library(const LoadingProcess& process, const std::string& path);

}  // namespace gpuprof::doctor
