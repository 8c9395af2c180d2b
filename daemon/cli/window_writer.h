// SPDX-License-Identifier: Apache-2.0
//
// WindowWriter: output windows become files on a thread of their own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/join/model.h"

namespace gpuprof::cli {

// A window that has ended, with everything resolved.
struct FinishedWindow {
  uint64_t index = 0;
  uint64_t executions = 0;
  uint64_t gpu_time_ns = 0;
  std::optional<join::Model> model;  // none: an empty window has no profile
  std::string profile_name;          // in its directory
  std::string summary;               // without the profile's path; empty: none is wanted
  std::string summary_name;
};

// What became of one file of a window.
struct WindowOutcome {
  enum class What : uint8_t {
    kWritten,          // the profile, now at `path`
    kWaiting,          // it could not be written, and is tried again with the next window
    kUnwritten,        // it could not be made
    kWrittenAtLast,    // it had been kWaiting
    kUnwrittenAtLast,  // it had been kWaiting, and is given up
    kSummaryFailed,    // the summary was not written, and is not tried again
  };
  What what = What::kWritten;
  uint64_t index = 0;
  uint64_t executions = 0;
  uint64_t gpu_time_ns = 0;
  std::string path;
  std::string error;  // one line
};

// Compressing a profile and syncing a file takes longer than the rings can wait. A profile that
// cannot be written (a full disk) is kept, compressed, and tried again before each later one and
// at the end; beyond kMaxWaiting of them, or kMaxWaitingBytes, the oldest is given up. The thread
// starts with the first window, by which time our privileges are dropped and our children forked.
// One thread calls; nothing waits but finish() and the destructor.
class WindowWriter {
 public:
  static constexpr size_t kMaxQueued = 2;  // windows, each with its model
  static constexpr size_t kMaxWaiting = 16;
  static constexpr size_t kMaxWaitingBytes = size_t{64} << 20;

  enum Series : uint32_t { kProfiles = 0, kSummaries = 1 };
  // Writes a file; returns its path. Called on the writer's thread alone.
  using Write =
      std::function<Result<std::string>(Series, const std::string& name, std::string_view bytes)>;

  explicit WindowWriter(Write write) : write_(std::move(write)) {}
  ~WindowWriter();
  WindowWriter(const WindowWriter&) = delete;
  WindowWriter& operator=(const WindowWriter&) = delete;

  // There is no room for another one now.
  [[nodiscard]] bool full() const;
  void add(FinishedWindow window);
  // What was written, or not, since the last call.
  std::vector<WindowOutcome> collect();
  // Waits until all is written or given up. Add nothing more.
  std::vector<WindowOutcome> finish();

 private:
  struct Waiting {
    FinishedWindow window;  // without its model
    std::string bytes;
  };

  void work();
  void write_window(FinishedWindow& window);
  void try_waiting(bool is_last);
  void keep(Waiting waiting, const std::string& error);
  void write_summary(const FinishedWindow& window, const std::string& path);
  void tell(WindowOutcome::What what, const FinishedWindow& window, std::string path,
            std::string error);

  Write write_;
  std::deque<Waiting> waiting_;  // the writer's thread alone
  size_t waiting_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FinishedWindow> queue_;  // under the lock, as all below
  bool ending_ = false;
  std::vector<WindowOutcome> outcomes_;
  std::jthread thread_;
};

}  // namespace gpuprof::cli
