// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuprof::cupti {

/// A CUDA release as in a file name: "libcupti.so.13", "libcupti.so.11.8", "cuda-12.9".
struct FileVersion {
  uint32_t major = 0;  // 0: none ("libcupti.so", and "libcupti.so.2025.3.1", whose soname link lies
                       // beside it)
  uint32_t minor = kAny;
  uint32_t patch = kAny;

  /// What a name leaves open: such a name is the newest of those that do not.
  static constexpr uint32_t kAny = UINT32_MAX;
};

/// The release of a libcupti. A name that goes on after it is another file's, such as a backup's:
/// "libcupti.so.12.bak" has none.
FileVersion version_of_file(const char* file) noexcept;
/// The release that follows `stem` and ends the name.
FileVersion version_after(const char* stem, const char* file) noexcept;

/// An entry of a directory that a search may try.
struct NamedVersion {
  FileVersion version;
  char name[256] = {};

  [[nodiscard]] bool empty() const noexcept { return name[0] == '\0'; }
  /// Whether it is tried before `other`, whatever the directory's own order is: the major release,
  /// of one major the soname that the loader would look for, then the newest; last the name.
  [[nodiscard]] bool goes_before(const NamedVersion& other) const noexcept;
};

/// An entry with its release; empty where the name has none by `version`, or has no room.
NamedVersion named_version(const char* entry, const FileVersion& version) noexcept;

}  // namespace gpuprof::cupti
