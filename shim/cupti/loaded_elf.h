// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <link.h>

#include <cstdint>

namespace gpuprof::cupti {

/// A shared object as it lies in memory, by its dynamic section: no file is opened, nothing is
/// locked or allocated, so that it may be used in dl_iterate_phdr's callback. The object is one
/// that the loader has accepted, and trusted as such.
class LoadedElf {
 public:
  explicit LoadedElf(const dl_phdr_info& info) noexcept;

  /// DT_SONAME, "" if it has none.
  [[nodiscard]] const char* soname() const noexcept { return text(soname_); }
  /// DT_RUNPATH, or DT_RPATH where there is none: directories between colons, "" if it has neither.
  [[nodiscard]] const char* run_path() const noexcept {
    return run_path_ != 0 ? text(run_path_) : text(rpath_);
  }
  /// Whether it defines `symbol` for others, by its GNU hash table (every libcupti has one).
  [[nodiscard]] bool exports(const char* symbol) const noexcept;

 private:
  [[nodiscard]] const char* text(uint64_t offset) const noexcept {
    return strings_ == nullptr ? "" : strings_ + offset;  // offset 0 is the empty string
  }

  const char* strings_ = nullptr;
  const ElfW(Sym) * symbols_ = nullptr;
  const uint32_t* hash_ = nullptr;
  uint64_t soname_ = 0;
  uint64_t run_path_ = 0;
  uint64_t rpath_ = 0;
};

}  // namespace gpuprof::cupti
