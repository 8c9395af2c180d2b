// SPDX-License-Identifier: Apache-2.0
//
// WindowFiles: the files of a run under --window, one a window.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cli/console.h"
#include "daemon/cli/deputy.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/name_pattern.h"
#include "daemon/cli/options.h"
#include "daemon/cli/output_series.h"
#include "daemon/cli/run_so_far.h"
#include "daemon/cli/session.h"
#include "daemon/cli/window_writer.h"

namespace gpuprof::cli {

// Windows end at whole multiples of their length after the run's start. An execution and a PC
// sample are of the window in which they are received. While a window's frames are named the rings
// go on being drained; compressing and writing is the WindowWriter's. Where that falls behind, a
// window ends late, so that nothing is lost, and is counted. A window without GPU work has no
// profile; its summary is written all the same. Lifetime: from before the attach to the end of the
// run. One thread.
class WindowFiles {
 public:
  // `comm` and `pid` name the files where the user does not. Errors: kInvalidArgument where the
  // names do not tell windows apart, kIo where nothing can be written there.
  static Result<std::unique_ptr<WindowFiles>> open(const Options& options, const Invoker& owner,
                                                   std::string_view comm, uint32_t pid);

  // Before privileges are dropped.
  Status start_deputy();

  // Ends the window if it is time to. `meanwhile` is called between two drains, as the caller's own
  // loop would do it. Then `before_forgetting`: the processes that ended are still known there.
  void tick(Session& session, Console& console, const std::function<void()>& meanwhile,
            const std::function<void()>& before_forgetting);

  // The last window, which finish() of the session ended. Waits until all is written. False: some
  // window or summary was not, and that is told.
  bool finish(Session& session, const join::JoinResult& result, Console& console);

  [[nodiscard]] const RunSoFar& run() const { return run_; }
  // The latest profile; empty: none was written.
  [[nodiscard]] const std::string& last_written() const { return last_written_; }

 private:
  WindowFiles(const Options& options, std::string_view comm, uint32_t pid);
  Result<std::string> write(WindowWriter::Series series, const std::string& name,
                            std::string_view bytes);
  [[nodiscard]] std::string profile_name(time_t when) const;
  [[nodiscard]] uint64_t last_due_ns(const Session& session) const;
  void end_window(Session& session, const std::function<void()>& meanwhile,
                  const std::function<void()>& before_forgetting);
  void add_window(Session& session, const join::JoinResult& result, const join::StackTable& stacks,
                  uint64_t end_ns, const std::function<void()>& pump);
  void take(const std::vector<WindowOutcome>& outcomes, Console& console);

  const Options& options_;
  const uint64_t length_ns_;
  const std::string comm_;
  const uint32_t pid_;
  std::optional<NamePattern> profile_pattern_;
  std::optional<NamePattern> summary_pattern_;
  std::vector<OutputSeries> series_;  // by WindowWriter::Series
  std::optional<Deputy> deputy_;
  RunSoFar run_;
  uint64_t window_start_ns_ = 0;  // 0: the run's start
  uint64_t due_ns_ = 0;
  uint64_t late_window_ = UINT64_MAX;  // the latest that was, by how many had ended before it
  std::string last_written_;
  std::string trouble_told_;
  WindowWriter writer_;  // ends first
};

}  // namespace gpuprof::cli
