// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::cupti {

/// Paths of the shared objects that this process has mapped and that say where CUDA and CUPTI are:
/// libcuda, libcupti, libcudart, libtorch, Triton and their neighbours.
///
/// Read once with dl_iterate_phdr. dlopen must not be called from its callback, which runs under
/// the loader's lock, so the paths are copied out first. Init only; no allocation.
class MappedObjects {
 public:
  static constexpr uint32_t kMax = 32;
  static constexpr size_t kPathBytes = 512;

  /// Reads the list of mapped objects.
  void read() noexcept;
  /// Adds one, if its name is of interest; for read() and for tests.
  void add(const char* path) noexcept;

  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  [[nodiscard]] const char* path(uint32_t index) const noexcept { return paths_[index]; }
  /// The first object whose file name starts with `prefix`, or null.
  [[nodiscard]] const char* find(const char* prefix) const noexcept;

 private:
  uint32_t count_ = 0;
  char paths_[kMax][kPathBytes] = {};
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
