// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/sampling_windows.h"

#include <algorithm>

namespace gpuprof::join {
namespace {

constexpr uint32_t kSerializedMode = 2;

}  // namespace

const char* serialized_name(Serialized serialized) {
  switch (serialized) {
    case Serialized::kFalse:
      return "false";
    case Serialized::kTrue:
      return "true";
    case Serialized::kUnknown:
      return "unknown";
  }
  return "unknown";
}

SamplingWindows::~SamplingWindows() {
  if (room_ == nullptr) return;
  const auto beyond = [](size_t used, size_t reserved) {
    return static_cast<uint32_t>(used > reserved ? used - reserved : 0);
  };
  room_->contexts += beyond(tracks_.size(), kReservedContexts);
  room_->spans += beyond(spans_, kReservedSpans);
}

SamplingWindows::Track* SamplingWindows::track(const gpuprof_window_v1& record) {
  const auto found = std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& track) {
    return track.context_id == record.context_id && track.device_id == record.device_id;
  });
  if (found != tracks_.end()) return &*found;
  if (tracks_.size() >= kMaxContexts) return nullptr;
  if (room_ != nullptr && tracks_.size() >= kReservedContexts) {
    if (room_->contexts == 0) return nullptr;
    --room_->contexts;
  }
  tracks_.push_back({record.device_id, record.context_id});
  tracks_.back().is_unknown = lost_any_;
  return &tracks_.back();
}

bool SamplingWindows::take_span() {
  if (room_ != nullptr && spans_ >= kReservedSpans) {
    if (room_->spans == 0) return false;
    --room_->spans;
  }
  ++spans_;
  return true;
}

void SamplingWindows::push(Track& track, const Span& span) {
  if (span.begin_ns >= span.end_ns) return;
  if (track.spans.size() >= kMaxSpans || !take_span()) {
    const bool has_older = !track.spans.empty();
    track.forgotten_ns = has_older ? track.spans.front().end_ns : span.end_ns;
    if (!has_older) return;
    track.spans.erase(track.spans.begin());
  }
  track.spans.push_back(span);
}

void SamplingWindows::add(const gpuprof_window_v1& record) {
  ++counts_.records;
  Track* track = this->track(record);
  if (track == nullptr) {
    ++counts_.refused;
    return;
  }
  if (record.event == GPUPROF_WINDOW_OPEN) {
    open(*track, record);
  } else {
    close(*track, record);
  }
  track->last_ns = std::max(track->last_ns, record.time_ns);
  track->is_unknown = false;
}

void SamplingWindows::open(Track& track, const gpuprof_window_v1& record) {
  if (track.is_open && track.window_id == record.window_id) {
    ++counts_.duplicates;
    return;  // it is open still: nothing else can have been
  }
  if (track.is_open) {
    ++counts_.closes_lost;
    --counts_.open;
    if (track.mode == kSerializedMode)
      push(track, {track.open_ns, track.last_ns, Serialized::kTrue});
  }
  if (track.is_open || track.is_unknown)
    push(track, {track.last_ns, record.time_ns, Serialized::kUnknown});
  ++counts_.opened[record.mode <= kSerializedMode ? record.mode : 0];
  ++counts_.open;
  track.is_open = true;
  track.mode = record.mode;
  track.window_id = record.window_id;
  track.open_ns = record.time_ns;
  if (record.period != 0) period_ = record.period;
}

void SamplingWindows::close(Track& track, const gpuprof_window_v1& record) {
  ++counts_.closed;
  if (track.is_open && track.window_id == record.window_id) {
    --counts_.open;
    track.is_open = false;
    if (track.mode == kSerializedMode)
      push(track, {track.open_ns, record.time_ns, Serialized::kTrue});
    return;
  }
  // Another one than we know of was open: since when, nobody told.
  ++counts_.opens_lost;
  if (track.is_open) {
    ++counts_.closes_lost;
    --counts_.open;
    track.is_open = false;
    if (track.mode == kSerializedMode)
      push(track, {track.open_ns, track.last_ns, Serialized::kTrue});
  }
  push(track, {std::min(track.last_ns, record.time_ns), record.time_ns, Serialized::kUnknown});
}

void SamplingWindows::add_loss() {
  lost_any_ = true;
  for (Track& track : tracks_) track.is_unknown = true;
}

Serialized SamplingWindows::at(uint32_t device_id, uint32_t context_id, uint64_t start_ns) const {
  const auto track = std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& candidate) {
    return candidate.context_id == context_id && candidate.device_id == device_id;
  });
  if (track == tracks_.end()) return Serialized::kUnknown;
  if (track->is_unknown && start_ns >= track->last_ns) return Serialized::kUnknown;
  if (track->is_open && start_ns >= track->open_ns)
    return track->mode == kSerializedMode ? Serialized::kTrue : Serialized::kFalse;
  for (auto span = track->spans.rbegin(); span != track->spans.rend(); ++span) {
    if (start_ns >= span->end_ns) return Serialized::kFalse;
    if (start_ns >= span->begin_ns) return span->state;
  }
  return start_ns < track->forgotten_ns ? Serialized::kUnknown : Serialized::kFalse;
}

}  // namespace gpuprof::join
