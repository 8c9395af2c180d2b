// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/process_table.h"

#include <algorithm>

namespace gpuprof::join {

uint32_t ProcessTable::slot_of(ProcessId id, uint32_t limit) {
  if (last_slot_ != kNone && id == last_id_) return last_slot_;
  auto found = slots_.find(id);
  if (found == slots_.end()) {
    if (slots_.size() >= limit) return kNone;
    const auto free = std::find(processes_.begin(), processes_.end(), nullptr);
    const auto slot = static_cast<uint32_t>(free - processes_.begin());
    if (free == processes_.end()) processes_.emplace_back();
    processes_[slot] = std::make_unique<Process>();
    processes_[slot]->id = id;
    processes_[slot]->sampling_room = &sampling_room_;
    found = slots_.emplace(id, slot).first;
  }
  last_id_ = id;
  last_slot_ = found->second;
  return last_slot_;
}

Process* ProcessTable::find(ProcessId id) const {
  const auto found = slots_.find(id);
  return found == slots_.end() ? nullptr : processes_[found->second].get();
}

void ProcessTable::erase(uint32_t slot) {
  slots_.erase(processes_[slot]->id);
  processes_[slot].reset();
  last_slot_ = kNone;
}

}  // namespace gpuprof::join
