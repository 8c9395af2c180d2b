// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/stream.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace gpuprof::probe {
namespace {

// Where [begin, end) stands among the disjoint ranges of a map from begin to anything.
enum class Fit { kFree, kInside, kOverlaps };

template <class Map, class EndOf>
Fit fit(const Map& ranges, uint64_t begin, uint64_t end, EndOf end_of) {
  auto after = ranges.upper_bound(begin);
  if (after != ranges.begin()) {
    const auto& before = *std::prev(after);
    const uint64_t before_end = end_of(before);
    if (end <= before_end) return Fit::kInside;
    if (begin < before_end) return Fit::kOverlaps;
  }
  return after != ranges.end() && after->first < end ? Fit::kOverlaps : Fit::kFree;
}

}  // namespace

Stream::Verdict Stream::accept(uint64_t seq, uint32_t count, int64_t now_ns) {
  if (count == 0 || seq > std::numeric_limits<uint64_t>::max() - kMaxGap)
    return Verdict::kMalformed;
  const uint64_t end = seq + count;
  if (!started_) {
    started_ = true;
    origin_ = seq;
    origin_ns_ = now_ns;
    next_ = end;
    return Verdict::kDeliver;
  }
  if (seq > next_) return accept_ahead(seq, end);
  if (seq < next_) return accept_behind(seq, end);
  if (!ahead_.empty() && ahead_.begin()->first < end) return Verdict::kMalformed;
  next_ = end;
  return Verdict::kDeliver;
}

Stream::Verdict Stream::accept_ahead(uint64_t seq, uint64_t end) const {
  if (seq - next_ > kMaxGap) return Verdict::kMalformed;
  switch (fit(ahead_, seq, end, [](const auto& e) { return e.first + e.second.header.count; })) {
    case Fit::kFree:
      return Verdict::kHold;
    case Fit::kInside:
      return Verdict::kDuplicate;
    case Fit::kOverlaps:
      break;
  }
  return Verdict::kMalformed;
}

Stream::Verdict Stream::accept_behind(uint64_t seq, uint64_t end) {
  if (end > next_) return Verdict::kMalformed;
  const bool late = std::any_of(lost_.begin(), lost_.end(), [&](const Range& range) {
    return seq >= range.begin && end <= range.end;
  });
  if (late) return Verdict::kLate;
  if (settled_ || seq >= origin_) return Verdict::kDuplicate;
  if (end > origin_ || origin_ - seq > kMaxGap) return Verdict::kMalformed;
  switch (fit(early_, seq, end, [](const auto& e) { return e.second; })) {
    case Fit::kFree:
      early_.emplace(seq, end);
      return Verdict::kDeliver;
    case Fit::kInside:
      return Verdict::kDuplicate;
    case Fit::kOverlaps:
      break;
  }
  return Verdict::kMalformed;
}

void Stream::hold(HeldBatch batch) {
  const uint64_t seq = batch.header.seq;
  ahead_.emplace(seq, std::move(batch));
}

std::optional<HeldBatch> Stream::pop() {
  if (ahead_.empty() || ahead_.begin()->first != next_) return std::nullopt;
  HeldBatch batch = std::move(ahead_.begin()->second);
  ahead_.erase(ahead_.begin());
  next_ += batch.header.count;
  return batch;
}

uint64_t Stream::close_gap(int64_t deadline_ns) {
  if (started_ && !settled_ && origin_ns_ <= deadline_ns) {
    settled_ = true;
    // Between the earliest of the early ones and the origin, everything was emitted while attached.
    uint64_t missing = 0;
    for (auto it = early_.begin(); it != early_.end(); ++it) {
      const auto after = std::next(it);
      const uint64_t until = after == early_.end() ? origin_ : after->first;
      if (until > it->second) note_lost(it->second, until);
      missing += until - it->second;
    }
    early_.clear();
    if (missing > 0) return missing;
  }
  if (ahead_.empty() || ahead_.begin()->second.arrived_ns > deadline_ns) return 0;
  const uint64_t resume = ahead_.begin()->first;
  const uint64_t missing = resume - next_;
  note_lost(next_, resume);
  next_ = resume;
  return missing;
}

void Stream::note_lost(uint64_t begin, uint64_t end) {
  if (lost_.size() == kMaxRanges) lost_.pop_front();
  lost_.push_back({begin, end});
}

}  // namespace gpuprof::probe
