// SPDX-License-Identifier: Apache-2.0
//
// CubinFiles: the directory of --save-cubins.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/invoker.h"

namespace gpuprof::cli {

// Each cubin becomes DIR/<sha256>.cubin, mode 0600, owned by the invoking user: whole or not at
// all, never through a link, never over a file that is there. One thread, in the deputy's process
// once there is one.
class CubinFiles {
 public:
  // Makes the last component of `path` if it is missing (0700). kIo: what is wrong with it, found
  // before profiling begins.
  static Result<CubinFiles> open(const std::string& path, const Invoker& owner);

  // Copies `from` (whole, from its start) to <sha256>.cubin. False: it is there already. kIo also
  // where something else has its name.
  Result<bool> save(const std::string& sha256, int from) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  // save() gives the files to another user: needs CAP_CHOWN.
  [[nodiscard]] bool gives_away() const { return gives_away_; }
  void add_descriptors(std::vector<int>& out) const { out.push_back(directory_.get()); }

 private:
  CubinFiles() = default;
  Status fill(int file, int from) const;
  Result<bool> keep(const std::string& name, int from) const;

  std::string path_;
  UniqueFd directory_;
  uid_t uid_ = 0;
  gid_t gid_ = 0;
  bool gives_away_ = false;
};

// What became of the cubins of one run: one line, whatever failed.
class SavedCubins {
 public:
  void add(const Result<bool>& saved);
  // Evicted from the store, and its process could not be asked again.
  void add_lost() { ++lost_; }
  [[nodiscard]] bool failed() const { return failed_ != 0; }
  [[nodiscard]] std::string line(const std::string& path) const;

 private:
  size_t saved_ = 0, there_ = 0, lost_ = 0, failed_ = 0;
  std::string first_error_;
};

}  // namespace gpuprof::cli
