// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/pc_joiner.h"

#include <algorithm>

namespace gpuprof::join {

void PcJoiner::add(uint32_t slot, std::span<const gpuprof_pc_sample_v1> samples) {
  Process& p = processes_[slot];
  p.sampled();
  for (const gpuprof_pc_sample_v1& record : samples) {
    ++p.window.pc.records;
    p.window.pc.counts += record.samples;
    p.window.pc.pending += record.samples;
    PcSource source;
    source.cubin_key = record.cubin_key;
    source.function_name_id = record.function_name_id;
    source.process = slot;
    source.device_id = record.device_id;
    source.context_id = record.context_id;
    const Waiting sample{launch_key(record.epoch, record.correlation),
                         now_ns_,
                         source,
                         record.pc_offset,
                         record.stall_index,
                         record.samples};
    if (record.correlation == 0) {
      count(source, sample);
      continue;
    }
    p.has_correlated_samples = true;
    if (resolve(sample, false)) continue;
    const size_t limit = std::max(limits_.max_pc_waiting, 1u);
    if (waiting_.size() >= limit) {
      ++stats_.pc_resolved_early;
      resolve(waiting_.pop(), true);
    }
    waiting_.push(sample, limit);
  }
}

void PcJoiner::note_execution(const ClassKey& key, uint64_t launch, uint64_t fingerprint) {
  executions_.add(launch, key, fingerprint, limits_.max_serialized_executions);
}

bool PcJoiner::resolve(const Waiting& sample, bool is_final) {
  Process& p = processes_[sample.source.process];
  const SerializedExecution* execution = executions_.find(sample.source.process, sample.launch);
  const Launch* launch = p.launches.find(sample.launch);
  PcSource source = sample.source;
  if ((execution != nullptr && execution->is_shared) || (launch != nullptr && launch->is_graph)) {
    source.join = PcSource::kOfGraph;
  } else if (execution != nullptr && (launch != nullptr || is_final)) {
    PcTarget target;
    target.class_id = window_.classify(execution->key, p.classes);
    if (launch != nullptr) {
      target.stack = launch->stack;
      target.tid = launch->tid;
    }
    source.join = table_.join_of(target);
  } else if (!is_final) {
    return false;
  }
  count(source, sample);
  return true;
}

void PcJoiner::count(const PcSource& source, const Waiting& sample) {
  Process& p = processes_[source.process];
  switch (table_.add(source, sample.pc_offset, sample.stall_index, sample.samples, p.pc_sources,
                     p.pc_entries)) {
    case PcTable::Added::kWhole:
      break;
    case PcTable::Added::kInFunction:
      stats_.pc_folded += sample.samples;
      break;
    case PcTable::Added::kRefused:
      p.window.pc.pending -= sample.samples;
      p.window.pc.refused += sample.samples;
      break;
  }
}

void PcJoiner::advance(uint64_t now_ns) {
  now_ns_ = std::max(now_ns_, now_ns);
  while (!waiting_.empty() && waiting_.front().since_ns + limits_.pc_grace_ns <= now_ns_)
    resolve(waiting_.pop(), true);
}

void PcJoiner::resolve_all() {
  while (!waiting_.empty()) resolve(waiting_.pop(), true);
}

}  // namespace gpuprof::join
