// SPDX-License-Identifier: Apache-2.0
//
// PythonFrames: the chunks of a launch's Python frames, kept until the launch itself comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "proto/ring_abi.h"

namespace gpuprof::probe {

// BPF writes a launch's chunks and then the launch, in one ring; other threads' come in between.
// One launch a thread is kept: where it never comes (its stack was lost), the thread's next
// replaces it.
class PythonFrames {
 public:
  static constexpr size_t kMaxThreads = 1024;

  struct Frames {
    std::vector<gpuprof_python_frame> frames;  // innermost first
    uint32_t end = GPUPROF_PYTHON_MORE;        // enum gpuprof_python_end
  };

  // False if the chunk's numbers cannot be.
  bool add(const gpuprof_ring_header& header, const gpuprof_python_chunk& chunk);
  // The frames of the launch with this header, empty if there are none. Valid until the next add().
  const Frames& take(const gpuprof_ring_header& header);
  // Those with frames that wait, or whose storage is kept.
  [[nodiscard]] size_t threads() const { return threads_.size(); }

 private:
  struct Pending {
    uint64_t start_boottime = 0;
    uint64_t seq = 0;
    uint32_t exec_id = 0;
    uint32_t chunks = 0;
    Frames frames;
  };
  static uint64_t key_of(const gpuprof_ring_header& header) {
    return uint64_t{header.pid} << 32 | header.tid;
  }

  std::unordered_map<uint64_t, Pending> threads_;  // by pid << 32 | tid
  Frames taken_;
};

}  // namespace gpuprof::probe
