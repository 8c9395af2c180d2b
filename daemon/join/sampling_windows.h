// SPDX-License-Identifier: Apache-2.0
//
// SamplingWindows: when the contexts of one process were sampled, and how.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/join/pc_accounting.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

// Did an execution run alone because of us: the label gpu_serialized.
// kUnknown is what is said before anything is known; kFalse is a proven gap.
enum class Serialized : uint8_t { kUnknown = 0, kFalse, kTrue };
// "false", "true", "unknown".
const char* serialized_name(Serialized serialized);

// What the windows of all processes together may hold beyond what each has for itself.
struct SamplingRoom {
  uint32_t contexts = 16 * 1024;  // 100 bytes each
  uint32_t spans = 64 * 1024;     // 24 bytes each
};

// Windows come in order for each context, before the executions in them (these wait for a flush).
// Where a record is missing nothing is known of any context from the last record that came of it to
// the next: kUnknown, never a guess, as of a context that no record ever came of. Bounded, also for
// all processes: a few hostile ones take each other's room, and leave every other process its
// reserve. One thread.
class SamplingWindows {
 public:
  static constexpr size_t kMaxContexts = 256;
  static constexpr size_t kMaxSpans = 64;  // of one context; older: unknown
  static constexpr size_t kReservedContexts = 4;
  static constexpr size_t kReservedSpans = 64;  // of all its contexts

  // Without a room there is no bound but the process's own. It must outlive this.
  explicit SamplingWindows(SamplingRoom* room = nullptr) : room_(room) {}
  ~SamplingWindows();
  SamplingWindows(const SamplingWindows&) = delete;
  SamplingWindows& operator=(const SamplingWindows&) = delete;

  void add(const gpuprof_window_v1& record);
  // Window records of the process are missing.
  void add_loss();

  // Of an execution that started at `start_ns`.
  [[nodiscard]] Serialized at(uint32_t device_id, uint32_t context_id, uint64_t start_ns) const;
  [[nodiscard]] const WindowCounts& counts() const { return counts_; }
  // log2 cycles of the latest window, 0: none was opened.
  [[nodiscard]] uint32_t period() const { return period_; }
  [[nodiscard]] bool lost_any() const { return lost_any_; }

 private:
  struct Span {
    uint64_t begin_ns, end_ns;  // [begin, end)
    Serialized state;
  };
  struct Track {
    uint32_t device_id, context_id;
    bool is_open = false;
    bool is_unknown = false;  // since last_ns
    uint32_t mode = 0;        // of the open window
    uint64_t window_id = 0;
    uint64_t open_ns = 0;
    uint64_t last_ns = 0;          // of the latest record
    uint64_t forgotten_ns = 0;     // before: spans were dropped
    std::vector<Span> spans = {};  // by time; only those that are not kFalse
  };

  Track* track(const gpuprof_window_v1& record);
  bool take_span();
  void push(Track& track, const Span& span);
  void open(Track& track, const gpuprof_window_v1& record);
  void close(Track& track, const gpuprof_window_v1& record);

  SamplingRoom* const room_;
  std::vector<Track> tracks_;
  size_t spans_ = 0;  // of all tracks
  WindowCounts counts_;
  uint32_t period_ = 0;
  bool lost_any_ = false;  // also of contexts that no record came of
};

}  // namespace gpuprof::join
