// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/python_frames.h"

#include <utility>

namespace gpuprof::probe {

bool PythonFrames::add(const gpuprof_ring_header& header, const gpuprof_python_chunk& chunk) {
  if (chunk.count > GPUPROF_PYTHON_CHUNK_FRAMES || chunk.end > GPUPROF_PYTHON_FAULT ||
      chunk.number >= GPUPROF_PYTHON_MAX_CHUNKS)
    return false;
  if (threads_.size() >= kMaxThreads && !threads_.contains(key_of(header))) threads_.clear();
  Pending& pending = threads_[key_of(header)];
  const bool same = pending.seq == header.seq && pending.exec_id == header.exec_id &&
                    pending.start_boottime == header.start_boottime;
  if (chunk.number == 0 || !same) {
    pending = {.start_boottime = header.start_boottime,
               .seq = header.seq,
               .exec_id = header.exec_id,
               .frames = {std::move(pending.frames.frames), GPUPROF_PYTHON_MORE}};
    pending.frames.frames.clear();
  }
  if (pending.chunks != chunk.number) return true;  // one before it was lost
  ++pending.chunks;
  pending.frames.frames.insert(pending.frames.frames.end(), chunk.frames,
                               chunk.frames + chunk.count);
  pending.frames.end = chunk.end;
  return true;
}

const PythonFrames::Frames& PythonFrames::take(const gpuprof_ring_header& header) {
  taken_.frames.clear();
  taken_.end = GPUPROF_PYTHON_MORE;
  const auto it = threads_.find(key_of(header));
  if (it == threads_.end()) return taken_;
  Pending& pending = it->second;
  if (pending.seq == header.seq && pending.exec_id == header.exec_id &&
      pending.start_boottime == header.start_boottime) {
    // The storage goes back with the thread's next chunk.
    std::swap(taken_, pending.frames);
  }
  pending.frames.frames.clear();
  pending.seq = UINT64_MAX;
  return taken_;
}

}  // namespace gpuprof::probe
