// SPDX-License-Identifier: Apache-2.0
// Ground truth: what was issued, per (call path label, kind, function), in a table per thread.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {

struct TruthRow {
  const char* label;
  const Function* function;
  uint32_t kind;
  uint32_t copy_kind;
  bool graph;
  bool used;
  // Written by the owning thread, read by the writer of the file.
  std::atomic<uint64_t> count, ns, recorded_count, recorded_ns;
};

struct TruthTable {
  static constexpr size_t kRows = 8192;
  TruthRow rows[kRows];
};

namespace {

struct Tables {
  std::mutex mutex;
  std::vector<TruthTable*> all;
};

Tables& tables() {
  static auto* instance = new Tables;
  return *instance;
}

TruthTable* new_table() {
  auto* table = new TruthTable{};
  std::lock_guard lock(tables().mutex);
  tables().all.push_back(table);
  return table;
}

void bump(std::atomic<uint64_t>& counter, uint64_t by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

TruthRow& find_row(TruthTable& table, const char* label, const Function* function,
                   const Execution& execution) {
  const bool graph = execution.graph_id != 0;
  uint64_t hash = reinterpret_cast<uintptr_t>(label) * 0x9e3779b97f4a7c15ull ^
                  reinterpret_cast<uintptr_t>(function) * 0xc2b2ae3d27d4eb4full ^
                  (execution.kind * 131 + execution.copy_kind * 7 + (graph ? 1 : 0));
  hash ^= hash >> 29;
  for (size_t probe = 0; probe < TruthTable::kRows; ++probe) {
    TruthRow& row = table.rows[(hash + probe) % TruthTable::kRows];
    if (!row.used) {
      row.label = label;
      row.function = function;
      row.kind = execution.kind;
      row.copy_kind = execution.copy_kind;
      row.graph = graph;
      row.used = true;
      return row;
    }
    if (row.label == label && row.function == function && row.kind == execution.kind &&
        row.copy_kind == execution.copy_kind && row.graph == graph) {
      return row;
    }
  }
  fatal("truth-full", "more than %zu (path, kernel) pairs on one thread", TruthTable::kRows);
  __builtin_unreachable();
}

const char* kind_name(uint32_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_MEMCPY:
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return "memcpy";
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return "memset";
    default:
      return "kernel";
  }
}

struct Sums {
  uint64_t count = 0, ns = 0, recorded_count = 0, recorded_ns = 0;
};

// Equal labels at different addresses, and the same pair on several threads, are one row.
using RowKey = std::tuple<std::string, std::string, std::string, uint32_t, uint32_t, bool>;

void print_sums(FILE* out, const Sums& sums) {
  fprintf(out,
          "\"executions\":%lu,\"gpu_ns\":%lu,\"recorded_executions\":%lu,\"recorded_gpu_ns\":%lu",
          sums.count, sums.ns, sums.recorded_count, sums.recorded_ns);
}

void print_stack(FILE* out, const std::string& label) {
  fputs("\"stack\":[", out);
  size_t from = 0;
  while (from < label.size()) {
    size_t to = label.find(';', from);
    if (to == std::string::npos) to = label.size();
    fprintf(out, "%s\"%.*s\"", from == 0 ? "" : ",", static_cast<int>(to - from), &label[from]);
    from = to + 1;
  }
  fputs("],", out);
}

void print_cupti(FILE* out) {
  const CuptiTotals& t = interface().totals;
  fprintf(out,
          "\"cupti\":{\"queued\":%lu,\"delivered\":%lu,\"dropped\":%lu,\"zero_times\":%lu,"
          "\"reversed\":%lu,\"incomplete\":%lu,\"buffers_requested\":%lu,\"buffers_completed\":%lu,"
          "\"callbacks\":%lu,\"subscribes\":%lu,\"unsubscribes\":%lu,\"enables\":%lu,"
          "\"disables\":%lu,\"flushes\":%lu},\n",
          t.queued.load(), t.delivered.load(), t.dropped.load(), t.zero_times.load(),
          t.reversed.load(), t.incomplete.load(), t.buffers_requested.load(),
          t.buffers_completed.load(), t.callbacks.load(), t.subscribes.load(),
          t.unsubscribes.load(), t.enables.load(), t.disables.load(), t.flushes.load());
}

std::map<RowKey, Sums> merge(Sums& total) {
  std::map<RowKey, Sums> rows;
  std::lock_guard lock(tables().mutex);
  for (TruthTable* table : tables().all) {
    for (TruthRow& row : table->rows) {
      if (!row.used) continue;
      Sums& sums = rows[RowKey{
          row.label ? row.label : "", kind_name(row.kind), row.function ? row.function->name : "",
          row.function ? row.function->module_id : 0, row.copy_kind, row.graph}];
      for (Sums* into : {&sums, &total}) {
        into->count += row.count;
        into->ns += row.ns;
        into->recorded_count += row.recorded_count;
        into->recorded_ns += row.recorded_ns;
      }
    }
  }
  return rows;
}

}  // namespace

void count_truth(const Execution& execution, const Function* function, bool recorded) {
  ThreadState& thread = thread_state();
  if (thread.truth == nullptr) thread.truth = new_table();
  TruthRow& row = find_row(*thread.truth, thread.label, function, execution);
  const uint64_t ns = execution.end_ns - execution.start_ns;
  bump(row.count, 1);
  bump(row.ns, ns);
  if (recorded) {
    bump(row.recorded_count, 1);
    bump(row.recorded_ns, ns);
  }
}

bool write_truth(const char* path) {
  Sums total;
  const auto rows = merge(total);
  const std::string temporary = std::string(path) + ".tmp";
  FILE* out = fopen(temporary.c_str(), "we");
  if (out == nullptr) return false;
  fprintf(out, "{\"pid\":%d,\"launches\":%lu,\"captured_launches\":%lu,\"violations\":%lu,\n",
          getpid(), driver().launches.load(), driver().captured.load(), violations());
  print_sums(out, total);
  fputs(",\n", out);
  print_cupti(out);
  if (const CuptiHooks* hooks = interface().hooks.load()) hooks->write_truth(out);
  fputs("\"rows\":[\n", out);
  bool first = true;
  for (const auto& [key, sums] : rows) {
    const auto& [label, kind, kernel, module, copy_kind, graph] = key;
    fputs(first ? "{" : ",\n{", out);
    first = false;
    print_stack(out, label);
    fprintf(out, "\"kind\":\"%s\",\"kernel\":\"%s\",\"module\":%u,\"copy_kind\":%u,\"graph\":%s,",
            kind.c_str(), kernel.c_str(), module, copy_kind, graph ? "true" : "false");
    print_sums(out, sums);
    fputs("}", out);
  }
  fputs("\n]}\n", out);
  const bool written = fclose(out) == 0;
  return written && rename(temporary.c_str(), path) == 0;
}

}  // namespace fakecuda

FAKE_EXPORT int fake_cuda_write_truth(const char* path) {
  return fakecuda::write_truth(path) ? 0 : -1;
}
