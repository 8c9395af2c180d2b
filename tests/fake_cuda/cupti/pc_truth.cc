// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/cupti/pc_truth.h"

#include <map>
#include <string>
#include <tuple>

namespace fakecuda {
namespace {

std::map<PcTruthKey, PcTruth>& rows() {
  static auto* instance = new std::map<PcTruthKey, PcTruth>;
  return *instance;
}

// Equal labels at different addresses are one row.
using RowKey = std::tuple<std::string, std::string, uint32_t, uint64_t, uint32_t, uint32_t,
                          uint32_t, uint32_t>;

void print_stack(FILE* out, const std::string& label) {
  fputs("\"stack\":[", out);
  for (size_t from = 0; from < label.size();) {
    size_t to = label.find(';', from);
    if (to == std::string::npos) to = label.size();
    fprintf(out, "%s\"%.*s\"", from == 0 ? "" : ",", static_cast<int>(to - from), &label[from]);
    from = to + 1;
  }
  fputs("],", out);
}

void print_totals(FILE* out) {
  const PcTotals& t = pc_totals();
  fprintf(out,
          "\"pc_sampled\":%lu,\"pc_delivered\":%lu,\"pc_dropped\":%lu,\"pc_non_user\":%lu,"
          "\"pc_lost_disable\":%lu,\"pc_lost_oom\":%lu,\"pc_merged\":%lu,\"pc_graph_skipped\":%lu,"
          "\"pc_enables\":%lu,\"pc_disables\":%lu,\"pc_starts\":%lu,\"pc_stops\":%lu,"
          "\"pc_drains\":%lu,\"pc_drains_beside_launches\":%lu,\"pc_oom\":%lu,\n",
          t.sampled, t.delivered, t.dropped, t.non_user, t.lost_disable, t.lost_oom, t.merged,
          t.graph_skipped, t.enables, t.disables, t.starts, t.stops, t.drains,
          t.drains_beside_launches, t.oom);
}

}  // namespace

PcTruth& pc_truth(const PcTruthKey& key) { return rows()[key]; }

void write_pc_truth(FILE* out) {
  std::lock_guard lock(pc_mutex());
  std::map<RowKey, PcTruth> merged;
  for (const auto& [key, row] : rows()) {
    PcTruth& into =
        merged[RowKey{key.label ? key.label : "", key.code->name, key.code->module_id,
                      key.code->cubin_crc, key.offset, key.stall, key.mode, key.device}];
    into.sampled += row.sampled;
    into.delivered += row.delivered;
    into.not_issued += row.not_issued;
  }
  fputs("\"pc\":{", out);
  print_totals(out);
  fputs("\"rows\":[", out);
  bool first = true;
  for (const auto& [key, row] : merged) {
    const auto& [label, kernel, module, crc, offset, stall, mode, device] = key;
    fputs(first ? "\n{" : ",\n{", out);
    first = false;
    print_stack(out, label);
    fprintf(
        out,
        "\"kernel\":\"%s\",\"module\":%u,\"cubin\":\"%016lx\",\"pc\":%u,\"stall\":\"%s\","
        "\"mode\":\"%s\",\"device\":%u,\"sampled\":%lu,\"delivered\":%lu,\"not_issued\":%lu}",
        kernel.c_str(), module, crc, offset, kStalls[stall],
        mode == CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED ? "serialized" : "continuous",
        device, row.sampled, row.delivered, row.not_issued);
  }
  fputs("\n]},\n", out);
}

}  // namespace fakecuda
