// SPDX-License-Identifier: Apache-2.0
//
// DebugFetcher: debug files from a debuginfod server, while the run goes on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/environment.h"
#include "daemon/cli/invoker.h"
#include "daemon/symbolize/debug_source.h"

namespace gpuprof::cli {

// Where DEBUGINFOD_URLS is set, a helper process (gpu-prof-fetch) of the invoking user, without any
// capability, runs elfutils' `debuginfod-find` for each build that is wanted, kMaxAtOnce at a time,
// and hands over what came; the cache is debuginfod's own, of that user. Nobody waits for it: what
// has not come when the profile is written is not in it, and what is still running then is ended.
// Lifetime: started before privileges are dropped; the destructor ends and reaps the helper.
class DebugFetcher : public symbolize::DebugSource {
 public:
  static constexpr size_t kMaxWanted = 512;
  static constexpr size_t kMaxAtOnce = 4;
  static constexpr int kPatienceSeconds = 300;  // for one file
  static constexpr const char* kProgram = "debuginfod-find";

  struct Counts {
    uint64_t wanted = 0;
    uint64_t found = 0;
    uint64_t missing = 0;  // no server has it, or none answers
  };

  // Null: DEBUGINFOD_URLS is not set. kNotFound: it is, and there is no debuginfod-find on its
  // PATH.
  static Result<std::unique_ptr<DebugFetcher>> start(const Invoker& owner, Environment environment);
  ~DebugFetcher() override;
  DebugFetcher(const DebugFetcher&) = delete;
  DebugFetcher& operator=(const DebugFetcher&) = delete;

  void want(const std::string& build_id) override;
  UniqueFd take(const std::string& build_id) override;
  // Of what has been answered by now.
  Counts counts();
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  DebugFetcher() = default;
  void collect();

  pid_t pid_ = -1;
  UniqueFd socket_;
  std::set<std::string> wanted_;
  std::map<std::string, UniqueFd> arrived_;
  Counts counts_;
};

}  // namespace gpuprof::cli
