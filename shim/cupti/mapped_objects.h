// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "shim/cupti/oldest_version.h"

namespace gpuprof::cupti {

/// Sonames of the releases that the shim works with, the newest first.
inline constexpr const char* kCuptiSonames[] = {"libcupti.so.13", "libcupti.so.12",
                                                ("libcupti.so." GPUPROF_OLDEST_CUPTI_CUDA)};

/// The shared objects that this process has mapped, as far as they say where CUDA and CUPTI are: a
/// libcupti, libcuda, the directories of libcudart, libtorch, Triton and the like, the directories
/// in which the application's own objects would look for a libcupti, and Python's package folders.
///
/// Read once with dl_iterate_phdr. dlopen must not be called from its callback, which runs under
/// the loader's lock, so the paths are copied out first. Init only; no allocation.
class MappedObjects {
 public:
  static constexpr uint32_t kMax = 32;
  static constexpr uint32_t kMaxRunPaths = 8;
  static constexpr uint32_t kMaxSites = 4;
  static constexpr size_t kPathBytes = 512;

  /// Reads the list of mapped objects.
  void read() noexcept;
  /// Adds one, if its name is of interest and its directory is new; for read() and for tests.
  void add(const char* path) noexcept;
  /// Adds those directories of a DT_RUNPATH that hold a libcupti; $ORIGIN is `path`'s directory.
  void add_run_path(const char* run_path, const char* path) noexcept;
  /// Notes a mapped object that exports CUPTI's functions; one that is called libcupti, by its
  /// file or its soname, counts more than one that is not.
  void add_cupti(const char* path, const char* soname) noexcept;

  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  [[nodiscard]] const char* path(uint32_t index) const noexcept { return paths_[index]; }
  [[nodiscard]] uint32_t run_path_count() const noexcept { return run_path_count_; }
  [[nodiscard]] const char* run_path(uint32_t index) const noexcept { return run_paths_[index]; }
  /// Python package folders ("…/site-packages") of mapped objects.
  [[nodiscard]] uint32_t site_count() const noexcept { return site_count_; }
  [[nodiscard]] const char* site(uint32_t index) const noexcept { return sites_[index]; }
  /// The mapped libcupti as the loader names it ("": the program itself), null if none is.
  [[nodiscard]] const char* cupti() const noexcept { return has_cupti_ ? cupti_ : nullptr; }
  /// The first object whose file name starts with `prefix`, or null.
  [[nodiscard]] const char* find(const char* prefix) const noexcept;

 private:
  void add_site(const char* path) noexcept;
  void add_directory(const char* directory) noexcept;

  uint32_t count_ = 0;
  uint32_t run_path_count_ = 0;
  uint32_t site_count_ = 0;
  bool has_cupti_ = false;
  bool cupti_by_name_ = false;
  char paths_[kMax][kPathBytes] = {};
  char run_paths_[kMaxRunPaths][kPathBytes] = {};
  char sites_[kMaxSites][kPathBytes] = {};
  char cupti_[PATH_MAX] = {};
};

/// The part of a path after its last slash.
const char* file_name(const char* path) noexcept;
/// The part before it, into `out` (cut to `capacity`); "." where there is none.
void directory_of(const char* path, char* out, size_t capacity) noexcept;
/// Copies a path, cut to `capacity`; false if it had to be cut.
bool copy_path(const char* from, char* to, size_t capacity) noexcept;
/// DIRECTORY/NAME, likewise.
bool join_path(const char* directory, const char* name, char* to, size_t capacity) noexcept;
bool starts_with(const char* text, const char* prefix) noexcept;

}  // namespace gpuprof::cupti
