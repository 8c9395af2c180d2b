// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/cupti/attempts.h"
#include "shim/cupti/mapped_objects.h"

namespace gpuprof::cupti {

enum class LoadResult : uint8_t {
  kLoaded,
  kNotFound,         // nothing suitable anywhere: Attempts tells where
  kNewerThanDriver,  // the copy that is mapped belongs to a newer CUDA than the driver
};

struct CuptiLibrary {
  void* handle = nullptr;
  bool was_mapped = false;  // by the application, before us
  char path[512] = {};
};

/// Finds CUPTI for a driver of CUDA `driver_version` (12040 is 12.4; 0: unknown, anything goes), in
/// this order:
///  1. a libcupti that is mapped already, whatever its file is called: never a second copy, so
///     nothing else is tried if there is one;
///  2. `override_path` (GPU_PROFILED_CUPTI_PATH, a file or a directory), and nothing else if it is
///     set and fails;
///  3. where the application's own libraries would have it from, by their run paths; next to the
///     mapped libcudart, libtorch or Triton: toolkit, pip (nvidia/cu13/lib, nvidia/cuda_cupti/lib),
///     conda and Nix layouts; the wheels of the Python package folders that are in use;
///  4. sonames, by the loader's own search;
///  5. toolkit paths, extras/CUPTI/lib64, NixOS and Jetson directories.
/// Within a place the newest release whose major is not above the driver's wins, and the next one
/// where that cannot be loaded (NamedVersion::goes_before): a newer CUPTI than the driver answers
/// 15, and our copy will satisfy the application's later need of the same soname. Files are judged
/// by name; exactly one is loaded, RTLD_LOCAL. InitializeInjection only.
LoadResult load_cupti(const MappedObjects& objects, const char* override_path,
                      uint32_t driver_version, CuptiLibrary* library, Attempts* attempts) noexcept;

/// CUDA major of an opened libcupti, by the version of its symbols, which a wheel's repair tool
/// leaves as it is where it renames the file and the soname; 0 if that says nothing.
uint32_t major_of_library(void* library) noexcept;

}  // namespace gpuprof::cupti
