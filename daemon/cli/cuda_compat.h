// SPDX-License-Identifier: Apache-2.0
//
// `run --cuda-compat`: whether the command gets the forward-compatibility libcuda, and from where.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/driver_question.h"
#include "daemon/cli/environment.h"

namespace gpuprof::cli {

// What --cuda-compat asks for.
struct CompatWish {
  enum class Mode { kNever, kAuto, kDirectory };
  Mode mode = Mode::kNever;
  std::string directory;  // kDirectory, absolute
  bool quiet = false;     // nobody asked: only what was done is told
};

struct CompatChoice {
  std::string directory;  // to put before the driver's; empty: the command runs as it would
  std::string library;    // the real path of its libcuda
  std::string line;       // what to tell; empty: nothing
};

// The command line's word on this machine: without one, auto on Tegra and never elsewhere.
// kInvalidArgument: a directory without a libcuda.so.1, or one that LD_LIBRARY_PATH cannot name.
Result<CompatWish> compat_wish(const std::string& option, bool tegra);

// The directory is used if its libcuda is newer than the driver's (an older one cannot work with
// the kernel module, an equal one is of no use) and initialises on this machine's GPUs. `ask` loads
// a libcuda with `before` first in LD_LIBRARY_PATH. `system` is where the driver's may lie that the
// loader does not know of, `found` the directories for auto.
using AskDriver = std::function<Result<DriverAnswer>(const std::string& library,
                                                     const std::string& before, uint32_t bound)>;
CompatChoice choose_compat(const CompatWish& wish, const std::vector<std::string>& found,
                           const std::vector<std::string>& system, const AskDriver& ask);

// Puts it into LD_LIBRARY_PATH, before all else there: that beats a RUNPATH, and the loader's
// cache, for a needed library and for one that is dlopened by its name.
void set_compat(Environment& environment, const std::string& directory);

// `mapped`, the libcuda of a process of the command, is another one than that was chosen: why, in
// one line.
std::optional<std::string> other_libcuda(const CompatChoice& choice, uint32_t pid,
                                         const std::string& mapped);

// While no process of a command has loaded the shim: does one run on a libcuda that cannot work
// with the kernel module? Its cuInit may fail before it loads the shim, so the program alone would
// know. Looks less and less often, and no more once it has found one.
class LibcudaWatch {
 public:
  void look(uint32_t command, uint64_t now_ns);
  // "process 12: ... is older than ..."; empty: none was seen.
  [[nodiscard]] const std::string& failure() const { return failure_; }

 private:
  uint64_t next_ns_ = 0;
  uint64_t wait_ns_ = 0;
  std::string failure_;
};

// Finds, asks and decides, for a command that runs as `as` says. Up to some seconds where there is
// anything to ask.
Result<CompatChoice> cuda_compat(const std::string& option, const AskAs& as);

}  // namespace gpuprof::cli
