// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/assemble.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "daemon/join/flat_index.h"
#include "daemon/join/model_builder.h"

namespace gpuprof::join {
namespace {

// Everything that a row's labels are made of.
struct LabelKey {
  uint32_t process, tid, device_id, context_id, stream_id, graph_id, match, reason;
};

std::string number_text(uint32_t value) {
  return value == kFolded ? "other" : std::to_string(value);
}

class Labels {
 public:
  Labels(const JoinResult& result, FrameSource& source, const AssembleOptions& options)
      : result_(result), source_(source), options_(options) {}

  uint32_t set_of(const Row& row, Model& model) {
    const LabelKey key{row.process,
                       row.tid,
                       row.device_id,
                       row.context_id,
                       row.stream_id,
                       row.graph_id,
                       static_cast<uint32_t>(row.match),
                       static_cast<uint32_t>(row.reason)};
    const auto [at, is_new] = sets_.insert(key);
    if (is_new) sets_[at].value = intern(make(row), model);
    suppressed_ += suppressed_by_set_[sets_[at].value];
    return sets_[at].value;
  }

  [[nodiscard]] uint64_t suppressed() const { return suppressed_; }

 private:
  std::vector<ModelLabel> make(const Row& row) {
    dropped_ = 0;
    std::vector<ModelLabel> labels;
    const ProcessId process = result_.processes[row.process].process;
    put(labels, "gpu_join", match_name(row.match));
    if (row.match == Match::kUnmatched) {
      put(labels, "gpu_join_reason", unmatched_name(row.reason));
    }
    put(labels, "gpu_device", number_text(row.device_id));
    if (row.device_id != kFolded)
      put(labels, "gpu_uuid", source_.device(process, row.device_id).uuid);
    put(labels, "gpu_context", number_text(row.context_id));
    put(labels, "gpu_stream", number_text(row.stream_id));
    if (row.graph_id != 0) put(labels, "gpu_graph_id", number_text(row.graph_id));
    put(labels, "pid", std::to_string(process.pid));
    put(labels, "comm", source_.process(process).comm);
    if (row.tid != 0) {
      const std::string name = source_.thread_name(process, row.tid);
      put(labels, "thread", (name.empty() ? "" : name + "/") + std::to_string(row.tid));
    }
    return labels;
  }

  void put(std::vector<ModelLabel>& labels, const char* key, std::string text) {
    if (text.empty()) return;
    auto& values = values_[key];
    if (values.size() >= options_.max_label_values && !values.contains(text)) {
      ++dropped_;
      return;
    }
    values.insert(text);
    labels.push_back({key, std::move(text), 0, ""});
  }

  // Rows that differ in a suppressed label only share one set.
  uint32_t intern(std::vector<ModelLabel> labels, Model& model) {
    std::string bytes;
    for (const ModelLabel& label : labels)
      bytes.append(label.key).append("\0", 1).append(label.text).append("\0", 1);
    const auto [at, is_new] =
        by_text_.try_emplace(std::move(bytes), static_cast<uint32_t>(model.label_sets.size()));
    if (is_new) {
      model.label_sets.push_back(std::move(labels));
      suppressed_by_set_.push_back(dropped_);
    }
    return at->second;
  }

  const JoinResult& result_;
  FrameSource& source_;
  const AssembleOptions& options_;
  FlatIndex<LabelKey, uint32_t> sets_;
  std::map<std::string, uint32_t> by_text_;
  std::map<std::string, std::unordered_set<std::string>> values_;
  std::vector<uint64_t> suppressed_by_set_;
  uint64_t dropped_ = 0;
  uint64_t suppressed_ = 0;
};

int64_t add_clamped(int64_t value, uint64_t more) {
  const uint64_t room = static_cast<uint64_t>(INT64_MAX - value);
  return more > room ? INT64_MAX : value + static_cast<int64_t>(more);
}

// The process with the most GPU time.
uint32_t main_process(const JoinResult& result) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < result.processes.size(); ++i) {
    if (result.processes[i].window.received_ns > result.processes[best].window.received_ns)
      best = i;
  }
  return best;
}

}  // namespace

Model assemble(const JoinResult& result, const StackTable& stacks, FrameSource& source,
               const AssembleOptions& options, AssembleStats* stats) {
  std::vector<ProcessId> processes;
  for (const ProcessResult& process : result.processes) processes.push_back(process.process);
  ModelBuilder builder(std::move(processes), stacks, source);
  Labels labels(result, source, options);
  struct SampleKey {
    uint32_t stack, label_set;
  };
  FlatIndex<SampleKey, uint32_t> samples;
  for (const Row& row : result.rows) {
    Model& model = builder.model();
    const SampleKey key{builder.stack_of(row), labels.set_of(row, model)};
    const auto [at, is_new] = samples.insert(key);
    if (is_new) {
      samples[at].value = static_cast<uint32_t>(model.samples.size());
      model.samples.push_back({key.stack, key.label_set, {}});
    }
    ModelSample& sample = model.samples[samples[at].value];
    sample.values[kGpuTimeNs] = add_clamped(sample.values[kGpuTimeNs], row.time_ns);
    sample.values[kGpuExecutions] = add_clamped(sample.values[kGpuExecutions], row.executions);
  }
  if (stats) stats->labels_suppressed = labels.suppressed();
  if (result.processes.empty()) return builder.finish(0, "");
  const uint32_t main = main_process(result);
  return builder.finish(main, source.process(result.processes[main].process).executable);
}

}  // namespace gpuprof::join
