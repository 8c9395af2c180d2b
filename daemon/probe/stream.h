// SPDX-License-Identifier: Apache-2.0
//
// Stream puts the batches of one (process image, probe) back into emission order and counts, to the
// record, what is missing.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "proto/ring_abi.h"

namespace gpuprof::probe {

// A batch that waits for earlier ones.
struct HeldBatch {
  gpuprof_ring_header header{};
  std::vector<uint8_t> records;  // empty: delivered on arrival (launches), held for the count only
  int64_t arrived_ns = 0;

  // What holding it costs, with its place in a map.
  [[nodiscard]] uint64_t bytes() const { return records.size() + sizeof(HeldBatch) + 48; }
};

// A batch with sequence number `seq` stands for the records [seq, seq + count). The caller hands in
// each arrival by accept() and acts on the verdict; now and then it closes what has waited too
// long. A late attach sees the first number only by what comes first, so batches from just before
// it are taken for as long as a gap may stay open.
class Stream {
 public:
  enum class Verdict {
    kDeliver,    // now; then pop() until it has no more
    kHold,       // arrives ahead of its turn: hold()
    kDuplicate,  // was received already
    kLate,       // its gap was closed and counted as lost
    kMalformed,  // overlaps what was received, or is absurdly far ahead
  };

  // No producer loses this many records (hours at 1M/s) between two batches that arrive.
  static constexpr uint64_t kMaxGap = 1ull << 34;

  Verdict accept(uint64_t seq, uint32_t count, int64_t now_ns);
  void hold(HeldBatch batch);
  // The held batch whose turn has come.
  std::optional<HeldBatch> pop();
  // Closes one gap that has been open since `deadline_ns` or longer: returns the records lost in it
  // (then pop() what follows), or 0 if no gap is due.
  uint64_t close_gap(int64_t deadline_ns);

  [[nodiscard]] bool has_gaps() const { return !ahead_.empty() || !early_.empty(); }
  [[nodiscard]] uint64_t next() const { return next_; }

 private:
  struct Range {
    uint64_t begin;
    uint64_t end;
  };
  static constexpr size_t kMaxRanges = 64;

  [[nodiscard]] Verdict accept_ahead(uint64_t seq, uint64_t end) const;
  Verdict accept_behind(uint64_t seq, uint64_t end);
  void note_lost(uint64_t begin, uint64_t end);

  bool started_ = false;
  uint64_t next_ = 0;
  std::map<uint64_t, HeldBatch> ahead_;  // by seq; disjoint, all beyond next_
  uint64_t origin_ = 0;                  // the first number seen
  int64_t origin_ns_ = 0;
  bool settled_ = false;                // nothing from before the origin is taken any more
  std::map<uint64_t, uint64_t> early_;  // received from before the origin: begin -> end
  std::deque<Range> lost_;              // the latest gaps closed, to tell late from duplicate
};

}  // namespace gpuprof::probe
