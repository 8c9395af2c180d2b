// SPDX-License-Identifier: Apache-2.0
//
// DynamicSection: PT_DYNAMIC and the string table it names. Read through the program headers, as
// the loader does: section headers may be stripped, stale or wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/elfgate/elf_image.h"

namespace gpuprof::elfgate {

// Lifetime: within that of its image.
class DynamicSection {
 public:
  // A file without PT_DYNAMIC (a static program) has an empty one.
  static Result<DynamicSection> read(const ElfImage& image);

  [[nodiscard]] bool is_present() const { return is_present_; }
  [[nodiscard]] const std::vector<Elf64_Dyn>& entries() const { return entries_; }
  // The last entry of that tag, which is the one that glibc uses.
  [[nodiscard]] std::optional<uint64_t> value(int64_t tag) const;
  [[nodiscard]] Result<std::string_view> string_at(uint64_t offset, std::string_view what) const;
  // string_at(offset) follows soon.
  void prefetch_string(uint64_t offset) const {
    if (offset < strings_.size()) __builtin_prefetch(strings_.data() + offset);
  }

 private:
  bool is_present_ = false;
  std::vector<Elf64_Dyn> entries_;
  std::string_view strings_;
};

}  // namespace gpuprof::elfgate
