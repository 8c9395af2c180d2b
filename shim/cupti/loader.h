// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/cupti/mapped_objects.h"

namespace gpuprof::cupti {

/// Everything that was tried to find a libcupti, for the one line that a user sees.
class Attempts {
 public:
  /// "; NAME: ERROR", where dlerror()'s habit of repeating the path is taken out and a file that is
  /// not there is "not found". Names in a row with one error share it: "A, B: not found".
  void add(const char* name, const char* error) noexcept;
  [[nodiscard]] const char* text() const noexcept { return text_; }

 private:
  [[nodiscard]] bool named(const char* name) const noexcept;

  size_t used_ = 0;
  size_t error_at_ = 0;  // where the last error begins, after ": "
  char text_[768] = {};
};

enum class LoadResult : uint8_t {
  kLoaded,
  kNotFound,         // nothing suitable anywhere: Attempts tells where
  kNewerThanDriver,  // the copy that is mapped belongs to a newer CUDA than the driver
};

struct CuptiLibrary {
  void* handle = nullptr;
  char path[512] = {};
};

/// Finds CUPTI for a driver of CUDA major `driver_major` (0: unknown, anything goes), in this
/// order:
///  1. a libcupti that is mapped already, whatever its file is called: never a second copy;
///  2. `override_path` (GPU_PROFILED_CUPTI_PATH, a file or a directory), and nothing else if it is
///     set and fails;
///  3. next to the mapped libcudart, libtorch or Triton: toolkit, pip (nvidia/cu13/lib,
///     nvidia/cuda_cupti/lib) and conda layouts;
///  4. sonames, by the loader's own search;
///  5. toolkit paths, extras/CUPTI/lib64, NixOS and Jetson directories.
/// Within a place the newest major that is not above the driver's wins: a newer CUPTI than the
/// driver answers 15, and our copy will satisfy the application's later need of the same soname.
/// Files are judged by name; exactly one is loaded, RTLD_LOCAL. InitializeInjection only.
LoadResult load_cupti(const MappedObjects& objects, const char* override_path,
                      uint32_t driver_major, CuptiLibrary* library, Attempts* attempts) noexcept;

/// CUDA major in a file name "libcupti.so.13" or "libcupti.so.11.8", 0 if it has none
/// ("libcupti.so", and "libcupti.so.2025.3.1", whose soname link lies beside it).
uint32_t major_of_file(const char* file) noexcept;

}  // namespace gpuprof::cupti
