// SPDX-License-Identifier: Apache-2.0
//
// assemble(): joined rows become a profile with named frames and labels.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/cubin/image.h"
#include "daemon/join/device_source.h"
#include "daemon/join/joiner.h"
#include "daemon/join/model.h"
#include "daemon/join/stack_table.h"
#include "daemon/symbolize/symbol.h"

namespace gpuprof::join {

struct ProcessInfo {
  std::string comm;        // empty if unknown
  std::string executable;  // path as the target sees it, equal to a Module::path; may be empty
  // Labels of all that it did: key and text, each key once.
  std::vector<std::pair<std::string, std::string>> labels;
};

struct DeviceInfo {
  std::string name;
  std::string uuid;  // "GPU-xxxxxxxx-xxxx-...", empty if unknown
};

// What assemble() asks about processes. Implemented by the recorder over its symbolizers. Each
// reference must stay valid until the next call with the same process. Nothing fails: unknown
// things are empty.
class FrameSource {
 public:
  virtual ~FrameSource() = default;
  virtual const symbolize::SymbolizedPc& resolve(ProcessId, uint64_t pc) = 0;
  // What SymbolizedPc::module indexes; may grow with resolve().
  virtual const std::vector<symbolize::Module>& modules(ProcessId) = 0;
  // Is it the profiler's own, by what only the caller knows? Shim and CUPTI are known by name, too.
  virtual bool is_tool(const symbolize::Module&) { return false; }
  virtual ProcessInfo process(ProcessId) = 0;
  // Of the thread `tid` (daemon's namespace level).
  virtual std::string thread_name(ProcessId, uint32_t tid) = 0;
  virtual DeviceInfo device(ProcessId, uint32_t device_id) = 0;
  // Mangled, as name_v1 carried it.
  virtual std::string_view kernel_name(ProcessId, uint64_t name_id) = 0;
};

struct AssembleOptions {
  uint32_t max_label_values = 1000;  // different values of one label key; more: label left out
  // Called between two rows, for a caller that cannot wait: may do anything but take from the
  // result or the stacks. Null: nothing is.
  std::function<void()> meanwhile = nullptr;
};

// PC samples (StallKind::kStalled) of one process by what is known of their instructions. Their sum
// is the window's PcAccounting::samples.
struct SourceCounts {
  std::array<uint64_t, cubin::kSourceStatusCount> by_status{};  // by cubin::SourceStatus
  uint64_t folded = 0;  // they lost their instruction to a bound

  [[nodiscard]] uint64_t of(cubin::SourceStatus status) const {
    return by_status[static_cast<size_t>(status)];
  }
  SourceCounts& operator+=(const SourceCounts& other) {
    for (size_t i = 0; i < by_status.size(); ++i) by_status[i] += other.by_status[i];
    folded += other.folded;
    return *this;
  }
};

struct AssembleStats {
  uint64_t labels_suppressed = 0;     // samples that lost a label to max_label_values
  std::vector<SourceCounts> sources;  // like JoinResult::processes
};

// Stacks in the model, root to leaf: CPU frames with inlined ones, `[cuda graph]` for graph nodes,
// then the kernel or `[memcpy HtoD]`, `[memset]`. Rows without a stack have the root `[no stack]`,
// PC samples that joined no execution `[unattributed]`. A row with PC rows is shown by these: the
// leaf is the sampled instruction, with the device functions inlined there below its kernel.
// The shim's and CUPTI's frames at the leaf are left out, nameless ones inside the driver too, so
// that the last CPU frame is the launch call. The first module is the main executable of the
// process with the most GPU time. Fills neither comments nor times: the caller does. `device` null:
// nothing is known of device code.
Model assemble(const JoinResult& result, const StackTable& stacks, FrameSource& source,
               DeviceSource* device = nullptr, const AssembleOptions& options = {},
               AssembleStats* stats = nullptr);

}  // namespace gpuprof::join
