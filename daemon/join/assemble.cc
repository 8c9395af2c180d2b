// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/assemble.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "daemon/join/flat_index.h"
#include "daemon/join/labels.h"
#include "daemon/join/model_builder.h"

namespace gpuprof::join {
namespace {

void add_clamped(int64_t& value, uint64_t more) {
  const uint64_t room = static_cast<uint64_t>(INT64_MAX - value);
  value = more > room ? INT64_MAX : value + static_cast<int64_t>(more);
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

// Of the process with the most PC samples. 0: none has any.
int64_t period_cycles(const JoinResult& result) {
  uint64_t most = 0;
  uint32_t period = 0;
  for (const ProcessResult& process : result.processes) {
    if (process.window.pc.samples <= most) continue;
    most = process.window.pc.samples;
    period = process.pc_period;
  }
  return period == 0 || period > 62 ? 0 : int64_t{1} << period;
}

std::vector<ProcessId> ids_of(const JoinResult& result) {
  std::vector<ProcessId> ids;
  for (const ProcessResult& process : result.processes) ids.push_back(process.process);
  return ids;
}

class Assembler {
 public:
  Assembler(const JoinResult& result, const StackTable& stacks, FrameSource& source,
            DeviceSource* device, const AssembleOptions& options)
      : result_(result),
        options_(options),
        builder_(ids_of(result), stacks, source, device),
        labels_(result, source, options, builder_.model()) {
    stats_.sources.resize(result.processes.size());
  }

  // Image by image: few fit into memory at once, and the rows come by kernel.
  void resolve_code() {
    std::vector<uint32_t> order(result_.pc_rows.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto place = [&](uint32_t i) {
      const PcRow& pc = result_.pc_rows[i];
      const PcFunction& of = result_.pc_functions[pc.function];
      return std::make_tuple(of.cubin_key, of.process, of.function_name_id, pc.pc_offset);
    };
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const auto left = place(a), right = place(b);
      return left != right ? left < right : a < b;
    });
    for (const uint32_t i : order) {
      meanwhile();
      const PcRow& pc = result_.pc_rows[i];
      if (pc.pc_offset != kFolded) place_of(result_.rows[pc.row], pc);
    }
  }
  void add_rows() {
    auto pc = result_.pc_rows.begin();
    for (uint32_t i = 0; i < result_.rows.size(); ++i) {
      meanwhile();
      Row row = result_.rows[i];
      const bool is_plain = pc == result_.pc_rows.end() || pc->row != i;
      for (; pc != result_.pc_rows.end() && pc->row == i; ++pc) {
        add_code(row, *pc);
        row.executions -= pc->executions;
        row.time_ns -= pc->time_ns;
      }
      // What its instructions have is not its own any more.
      if (is_plain || row.executions != 0 || row.time_ns != 0) add_row(row);
    }
  }
  AssembleStats stats() {
    stats_.labels_suppressed = labels_.suppressed();
    return stats_;
  }
  Model finish(uint32_t main, const std::string& executable) {
    return builder_.finish(main, executable);
  }

 private:
  struct SampleKey {
    uint32_t stack, label_set, code_labels;
  };

  void add_row(const Row& row) {
    ModelSample& sample = sample_of({builder_.stack_of(row), labels_.set_of(row), UINT32_MAX});
    add_clamped(sample.values[kGpuTimeNs], row.time_ns);
    add_clamped(sample.values[kGpuExecutions], row.executions);
  }

  const DeviceCode::Place& place_of(const Row& row, const PcRow& pc) {
    const PcFunction& function = result_.pc_functions[pc.function];
    return builder_.device_code().find(function.process, function.cubin_key,
                                       function.function_name_id, row.name_id, pc.pc_offset);
  }

  void add_code(const Row& row, const PcRow& pc) {
    const PcFunction& function = result_.pc_functions[pc.function];
    SourceCounts& counts = stats_.sources[function.process];
    const DeviceCode::Place* place = nullptr;
    std::string missing;
    if (pc.pc_offset == kFolded) {
      counts.folded += pc.samples;
    } else {
      place = &place_of(row, pc);
      counts.by_status[static_cast<size_t>(place->status)] += pc.samples;
      if (place->missing != 0) missing = builder_.device_code().missing(*place);
    }
    const cubin::SourceStatus status =
        place != nullptr ? place->status : cubin::SourceStatus::kUnmapped;
    ModelSample& sample = sample_of({builder_.stack_of(row, place), labels_.set_of(row),
                                     labels_.code_set_of(pc, place != nullptr, status, missing)});
    add_clamped(sample.values[kGpuTimeNs], pc.time_ns);
    add_clamped(sample.values[kGpuExecutions], pc.executions);
    add_clamped(sample.values[kGpuPcSamples], pc.samples);
    add_clamped(sample.values[kGpuStallSamples], pc.stall_samples);
  }

  ModelSample& sample_of(const SampleKey& key) {
    Model& model = builder_.model();
    const auto [at, is_new] = samples_.insert(key);
    if (is_new) {
      samples_[at].value = static_cast<uint32_t>(model.samples.size());
      model.samples.push_back({key.stack, key.label_set, {}, key.code_labels});
    }
    return model.samples[samples_[at].value];
  }

  void meanwhile() {
    if (options_.meanwhile) options_.meanwhile();
  }

  const JoinResult& result_;
  const AssembleOptions& options_;
  ModelBuilder builder_;
  Labels labels_;
  FlatIndex<SampleKey, uint32_t> samples_;
  AssembleStats stats_;
};

}  // namespace

Model assemble(const JoinResult& result, const StackTable& stacks, FrameSource& source,
               DeviceSource* device, const AssembleOptions& options, AssembleStats* stats) {
  Assembler assembler(result, stacks, source, device, options);
  assembler.resolve_code();
  assembler.add_rows();
  if (stats) *stats = assembler.stats();
  std::string executable;
  uint32_t main = 0;
  if (!result.processes.empty()) {
    main = main_process(result);
    executable = source.process(result.processes[main].process).executable;
  }
  Model model = assembler.finish(main, executable);
  model.pc_period_cycles = period_cycles(result);
  return model;
}

}  // namespace gpuprof::join
