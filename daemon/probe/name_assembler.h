// SPDX-License-Identifier: Apache-2.0
//
// NameAssembler puts name_v1 chunks together, in any order.
#pragma once

#include <bitset>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "daemon/base/process_id.h"
#include "proto/usdt_abi.h"

namespace gpuprof::probe {

// True if kind, lengths and offset are within the ABI's bounds.
bool is_valid(const gpuprof_name_v1& chunk);

// Bounded: at most kMaxPartial names are open at a time; the one opened first makes room. The shim
// emits a name's chunks back to back, so only losses leave one open.
class NameAssembler {
 public:
  static constexpr size_t kMaxPartial = 256;

  // `chunk` has passed is_valid(). Returns the raw bytes once all chunks are there; a later repeat
  // of the name is returned again. A chunk that disagrees with the others' total starts the name
  // anew.
  std::optional<std::string> add(ProcessId process, const gpuprof_name_v1& chunk);
  void forget(ProcessId process);

  [[nodiscard]] uint64_t given_up() const { return given_up_; }

 private:
  static constexpr size_t kMaxChunks =
      (GPUPROF_NAME_MAX_BYTES + GPUPROF_NAME_CHUNK_BYTES - 1) / GPUPROF_NAME_CHUNK_BYTES;
  using Key = std::tuple<ProcessId, uint32_t, uint64_t>;  // process, kind, id

  struct Partial {
    std::string bytes;
    std::bitset<kMaxChunks> present;
    std::list<Key>::iterator age;
  };

  void drop(std::map<Key, Partial>::iterator entry);

  std::map<Key, Partial> partial_;
  std::list<Key> oldest_first_;
  uint64_t given_up_ = 0;
};

}  // namespace gpuprof::probe
