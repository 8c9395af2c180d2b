// SPDX-License-Identifier: Apache-2.0
//
// NodeScan: which processes of the node are to be looked at, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpuprof::target {

// Looking at a process means reading its mappings, which costs some 50 us, and a node has
// thousands. So /proc is listed, which costs a microsecond a process, and each process is looked at
// when it is new and then at growing intervals, for it may map a library at any time. A number that
// is reused between two listings is not told from its predecessor: its turn comes within kMostNs.
// Times are CLOCK_MONOTONIC. One thread.
class NodeScan {
 public:
  static constexpr uint64_t kListNs = 500'000'000;     // between listings
  static constexpr uint64_t kFirstNs = 500'000'000;    // to the second look; then twice the last
  static constexpr uint64_t kMostNs = 30'000'000'000;  // between looks
  // Linux has at most 4,194,304 process numbers; what is beyond is not looked at.
  static constexpr size_t kMaxProcesses = 1u << 17;

  explicit NodeScan(std::string proc = "/proc") : proc_(std::move(proc)) {}

  // Lists the processes, if it is time. False: /proc cannot be read.
  bool list(uint64_t now_ns);
  // The next process whose turn it is; its next turn comes at twice the interval, unless
  // look_again() says otherwise. Nullopt: none.
  std::optional<uint32_t> next(uint64_t now_ns);
  // As soon as `at_ns`, and later as for a new one. A process that was never listed is added.
  void look_again(uint32_t pid, uint64_t at_ns);

  [[nodiscard]] size_t processes() const { return known_.size(); }
  // Processes beyond kMaxProcesses at the last listing.
  [[nodiscard]] uint64_t refused() const { return refused_; }

 private:
  struct Process {
    uint64_t due_ns = 0;
    uint64_t interval_ns = kFirstNs;
    uint64_t listing = 0;  // in which it was seen last
  };
  struct Turn {
    uint64_t due_ns;
    uint32_t pid;
    bool operator>(const Turn& other) const { return due_ns > other.due_ns; }
  };
  void plan(uint32_t pid, Process& process, uint64_t due_ns);

  std::string proc_;
  std::unordered_map<uint32_t, Process> known_;
  // Turns that were planned; those whose process has another one by now are void.
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
  uint64_t next_list_ns_ = 0;
  uint64_t listing_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace gpuprof::target
