// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/progress.h"

#include <algorithm>
#include <cstdio>

#include "daemon/base/clock.h"
#include "daemon/cli/duration.h"

namespace gpuprof::cli {
namespace {

constexpr uint64_t kIntervalNs = 500'000'000;

}  // namespace

std::string progress_text(uint64_t elapsed_ns, uint64_t interval_ns, const Recorder::Totals& before,
                          const Recorder::Totals& now) {
  const double seconds = static_cast<double>(interval_ns) * 1e-9;
  const double rate =
      seconds > 0 ? static_cast<double>(now.executions - before.executions) / seconds : 0;
  const double capacity =
      static_cast<double>(interval_ns) * static_cast<double>(std::max<size_t>(now.devices, 1));
  // Records arrive in flushes of 100 ms, so an interval can hold a little more than its own length.
  const double busy =
      capacity > 0
          ? std::min(100.0, 100.0 * static_cast<double>(now.busy_ns - before.busy_ns) / capacity)
          : 0;
  char out[160];
  std::snprintf(out, sizeof out,
                "%s  %.0f executions/s  GPU %.0f %% busy  %llu lost  (Ctrl-C ends)",
                human_duration(std::chrono::nanoseconds(elapsed_ns)).c_str(), rate, busy,
                static_cast<unsigned long long>(now.lost));
  return out;
}

void Progress::update() {
  if (!console_.is_terminal()) return;
  const uint64_t now_ns = monotonic_ns();
  if (last_ns_ != 0 && now_ns - last_ns_ < kIntervalNs) return;
  const Recorder::Totals now = session_.recorder().totals();
  const uint64_t since = last_ns_ == 0 ? session_.started_ns() : last_ns_;
  console_.progress(progress_text(now_ns - session_.started_ns(), now_ns - since, last_, now));
  last_ns_ = now_ns;
  last_ = now;
}

}  // namespace gpuprof::cli
