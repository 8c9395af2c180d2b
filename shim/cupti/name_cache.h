// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/core/name_table.h"

namespace gpuprof::cupti {

/// Name ids by the address of the name, for the records of one activity buffer or one drain. Good
/// for that only: after a module is unloaded another name may lie at the same address.
class NameCache {
 public:
  /// `fresh`: whether the name was looked up anew.
  uint64_t id_of(const char* name, bool* fresh) noexcept {
    const auto address = reinterpret_cast<uintptr_t>(name);
    Entry& entry = entries_[(address >> 4 ^ address >> 12) % kEntries];
    *fresh = entry.name != name;
    if (*fresh) entry = {name, shim::intern(name)};
    return entry.id;
  }

 private:
  static constexpr size_t kEntries = 64;
  struct Entry {
    const char* name = nullptr;
    uint64_t id = 0;
  };
  Entry entries_[kEntries];
};

}  // namespace gpuprof::cupti
