// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/labels.h"

#include <utility>

namespace gpuprof::join {
namespace {

constexpr const char* kSeveral = "other";

std::string number_text(uint32_t value) {
  return value == kFolded ? kSeveral : std::to_string(value);
}

}  // namespace

uint32_t Labels::set_of(const Row& row) {
  const Key key{row.process,
                row.tid,
                row.device_id,
                row.context_id,
                row.stream_id,
                row.graph_id,
                static_cast<uint32_t>(row.match),
                static_cast<uint32_t>(row.reason),
                static_cast<uint32_t>(row.serialized)};
  const auto [at, is_new] = sets_.insert(key);
  if (is_new) sets_[at].value = intern(make(row));
  suppressed_ += suppressed_by_set_[sets_[at].value];
  return sets_[at].value;
}

std::vector<ModelLabel> Labels::make(const Row& row) {
  dropped_ = 0;
  std::vector<ModelLabel> labels;
  const ProcessResult& of = result_.processes[row.process];
  const ProcessId process = of.process;
  const bool has_execution = row.match != Match::kInvalid;
  if (has_execution) put(labels, "gpu_join", match_name(row.match));
  if (row.match == Match::kUnmatched) put(labels, "gpu_join_reason", unmatched_name(row.reason));
  if (has_execution && of.is_sampled) {
    put(labels, "gpu_serialized", serialized_name(row.serialized));
  }
  put(labels, "gpu_device", number_text(row.device_id));
  if (row.device_id != kFolded)
    put(labels, "gpu_uuid", source_.device(process, row.device_id).uuid);
  put(labels, "gpu_context", number_text(row.context_id));
  if (has_execution) put(labels, "gpu_stream", number_text(row.stream_id));
  if (row.graph_id != 0) put(labels, "gpu_graph_id", number_text(row.graph_id));
  put(labels, "pid", std::to_string(process.pid));
  put(labels, "start_ticks", std::to_string(process.start_ticks));
  const ProcessInfo info = source_.process(process);
  put(labels, "comm", info.comm);
  for (const auto& [key, text] : info.labels) put(labels, key.c_str(), text);
  if (row.tid != 0) {
    const std::string name = source_.thread_name(process, row.tid);
    put(labels, "thread", (name.empty() ? "" : name + "/") + std::to_string(row.tid));
  }
  return labels;
}

uint32_t Labels::code_set_of(const PcRow& pc, bool has_code, cubin::SourceStatus status,
                             const std::string& missing) {
  const std::string stall = pc.stall == kFolded ? kSeveral : result_.stalls[pc.stall];
  const char* status_text = has_code ? cubin::source_status_name(status) : "";
  const char* attrib = pc_attrib_name(result_.pc_functions[pc.function].attrib);
  const auto [at, is_new] =
      code_sets_.try_emplace(stall + '\0' + status_text + '\0' + attrib + '\0' + missing, 0u);
  if (is_new) {
    dropped_ = 0;
    std::vector<ModelLabel> labels;
    put(labels, "gpu_stall", stall);
    put(labels, "gpu_src_status", status_text);
    put(labels, "gpu_src_reason", missing);
    put(labels, "gpu_pc_attrib", attrib);
    at->second = intern(std::move(labels));
  }
  suppressed_ += suppressed_by_set_[at->second];
  return at->second;
}

void Labels::put(std::vector<ModelLabel>& labels, const char* key, std::string text) {
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
uint32_t Labels::intern(std::vector<ModelLabel> labels) {
  std::string bytes;
  for (const ModelLabel& label : labels)
    bytes.append(label.key).append("\0", 1).append(label.text).append("\0", 1);
  const auto [at, is_new] =
      by_text_.try_emplace(std::move(bytes), static_cast<uint32_t>(model_.label_sets.size()));
  if (is_new) {
    model_.label_sets.push_back(std::move(labels));
    suppressed_by_set_.push_back(dropped_);
  }
  return at->second;
}

}  // namespace gpuprof::join
