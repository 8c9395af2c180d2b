// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/stitch.h"

#include <algorithm>

namespace gpuprof::python {
namespace {

void append_run(const FrameRun& run, std::vector<StitchedFrame>& out) {
  for (size_t i = run.begin; i < run.end; ++i) out.push_back({true, i});
}

}  // namespace

std::vector<FrameRun> runs_of(const Layout& layout, std::span<const gpuprof_python_frame> frames) {
  std::vector<FrameRun> runs;
  size_t begin = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    const uint8_t entry = frames[i].frame_window[layout.window_entry];
    switch (layout.entry) {
      case EntryRule::kEveryFrame:
        runs.push_back({i, i + 1});
        break;
      case EntryRule::kFlag:
        if (entry == 0) continue;
        runs.push_back({begin, i + 1});
        break;
      case EntryRule::kOwner:
        if (entry < kEntryOwner) continue;
        runs.push_back({begin, i, frames[i].address});
        break;
    }
    begin = i + 1;
  }
  // The copy ended inside a run.
  if (begin < frames.size()) runs.push_back({begin, frames.size()});
  // Interpreters are in no order of their calls. An entry frame is where its native one is.
  if (layout.entry == EntryRule::kOwner) {
    std::stable_sort(runs.begin(), runs.end(),
                     [](const FrameRun& a, const FrameRun& b) { return a.entry < b.entry; });
  }
  return runs;
}

StitchEnd stitch(std::span<const Native> native, bool native_whole, std::span<const FrameRun> runs,
                 std::vector<StitchedFrame>& out) {
  out.clear();
  const auto evaluations =
      static_cast<size_t>(std::count(native.begin(), native.end(), Native::kEvaluation));
  if (evaluations > runs.size() || (native_whole && evaluations != runs.size()))
    return StitchEnd::kDisagree;
  size_t next = 0;
  for (size_t i = 0; i < native.size(); ++i) {
    // Outside the outermost evaluation is how the interpreter was started.
    const bool inner = next < evaluations;
    if (native[i] == Native::kEvaluation) {
      append_run(runs[next++], out);
    } else if (native[i] == Native::kTrampoline || (inner && native[i] == Native::kInterpreter)) {
      continue;
    } else {
      out.push_back({false, i});
    }
  }
  for (; next < runs.size(); ++next) append_run(runs[next], out);
  return StitchEnd::kStitched;
}

}  // namespace gpuprof::python
