// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/name_assembler.h"

#include <algorithm>

namespace gpuprof::probe {

bool is_valid(const gpuprof_name_v1& chunk) {
  if (chunk.kind != GPUPROF_NAME_FUNCTION && chunk.kind != GPUPROF_NAME_STALL) return false;
  if (chunk.total_bytes == 0 || chunk.total_bytes > GPUPROF_NAME_MAX_BYTES) return false;
  if (chunk.offset >= chunk.total_bytes || chunk.offset % GPUPROF_NAME_CHUNK_BYTES != 0) {
    return false;
  }
  return chunk.chunk_bytes == std::min(chunk.total_bytes - chunk.offset, GPUPROF_NAME_CHUNK_BYTES);
}

std::optional<std::string> NameAssembler::add(ProcessId process, const gpuprof_name_v1& chunk) {
  if (chunk.chunk_bytes == chunk.total_bytes) return std::string(chunk.bytes, chunk.chunk_bytes);
  const Key key{process, chunk.kind, chunk.id};
  auto entry = partial_.find(key);
  if (entry != partial_.end() && entry->second.bytes.size() != chunk.total_bytes) {
    drop(entry);
    entry = partial_.end();
  }
  if (entry == partial_.end()) {
    if (partial_.size() == kMaxPartial) drop(partial_.find(oldest_first_.front()));
    oldest_first_.push_back(key);
    entry = partial_.emplace(key, Partial{}).first;
    entry->second.bytes.resize(chunk.total_bytes);
    entry->second.age = std::prev(oldest_first_.end());
  }
  Partial& name = entry->second;
  std::copy_n(chunk.bytes, chunk.chunk_bytes, name.bytes.begin() + chunk.offset);
  name.present.set(chunk.offset / GPUPROF_NAME_CHUNK_BYTES);
  const size_t chunks =
      (chunk.total_bytes + GPUPROF_NAME_CHUNK_BYTES - 1) / GPUPROF_NAME_CHUNK_BYTES;
  if (name.present.count() != chunks) return std::nullopt;
  std::string whole = std::move(name.bytes);
  oldest_first_.erase(name.age);
  partial_.erase(entry);
  return whole;
}

void NameAssembler::drop(std::map<Key, Partial>::iterator entry) {
  given_up_++;
  oldest_first_.erase(entry->second.age);
  partial_.erase(entry);
}

void NameAssembler::forget(ProcessId process) {
  auto entry = partial_.lower_bound(Key{process, 0, 0});
  while (entry != partial_.end() && std::get<0>(entry->first) == process) drop(entry++);
}

}  // namespace gpuprof::probe
