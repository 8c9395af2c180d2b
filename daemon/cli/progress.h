// SPDX-License-Identifier: Apache-2.0
//
// Progress: the line that shows on a terminal that something is happening.
#pragma once

#include "daemon/cli/console.h"
#include "daemon/cli/session.h"

namespace gpuprof::cli {

class Progress {
 public:
  Progress(Session& session, Console& console) : session_(session), console_(console) {}
  // Draws at most twice a second.
  void update();

 private:
  Session& session_;
  Console& console_;
  uint64_t last_ns_ = 0;
  Recorder::Totals last_;
};

// "12.3 s  45,678 executions/s  GPU 87 %  0 lost". `interval_ns` lies between the two totals.
std::string progress_text(uint64_t elapsed_ns, uint64_t interval_ns, const Recorder::Totals& before,
                          const Recorder::Totals& now);

}  // namespace gpuprof::cli
