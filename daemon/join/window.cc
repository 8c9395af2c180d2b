// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/window.h"

#include <algorithm>
#include <numeric>

namespace gpuprof::join {
namespace {

// Positions of `count` items grouped by `group_of(i)`: counting sort, stable.
template <class GroupOf>
void group_items(size_t groups, size_t count, GroupOf group_of, std::vector<uint32_t>& begin,
                 std::vector<uint32_t>& items) {
  begin.assign(groups + 1, 0);
  items.resize(count);
  for (uint32_t i = 0; i < count; ++i) ++begin[group_of(i) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (uint32_t i = 0; i < count; ++i) items[next[group_of(i)]++] = i;
}

}  // namespace

ClassKey Window::group_key(const ClassKey& key) {
  ClassKey group;
  group.process = key.process;
  group.context_id = key.context_id;
  if (key.graph_id != 0) {
    group.graph_id = key.graph_id;
    group.kind = GPUPROF_KIND_GRAPH;
  } else {
    group.name_id = key.name_id;
    group.kind = key.kind;
    group.copy_kind = key.copy_kind;
  }
  return group;
}

uint32_t Window::insert_class(const ClassKey& key) {
  const auto [id, is_new] = classes_.insert(key);
  if (is_new) classes_[id].value.group = groups_.insert(group_key(key)).first;
  return id;
}

uint32_t Window::classify(const ClassKey& key, uint32_t& used) {
  const uint32_t known = classes_.find(key);
  if (known != decltype(classes_)::kNone) return known;
  const uint32_t in_all = limits_.max_classes;
  const uint32_t for_it = used < limits_.reserved_classes_per_process ? 2 * in_all : in_all;
  if (used < limits_.max_classes_per_process && classes_.size() < for_it) {
    ++used;
    return insert_class(key);
  }
  ClassKey folded = key;
  folded.stream_id = kFolded;
  const uint32_t without_stream = classes_.find(folded);
  if (without_stream != decltype(classes_)::kNone) return without_stream;
  const auto widened = [](uint32_t limit) { return uint64_t{limit} + limit / 4; };
  if (used < widened(limits_.max_classes_per_process) &&
      classes_.size() < widened(limits_.max_classes)) {
    ++used;
    return insert_class(folded);
  }
  ClassKey other;
  other.process = key.process;
  other.device_id = other.context_id = other.stream_id = kFolded;
  other.serialized = Serialized::kUnknown;
  return insert_class(other);  // one a process: bounded by the process table
}

bool Window::add_exact(uint32_t class_id, StackId stack, uint32_t tid, uint64_t time_ns,
                       uint32_t& used) {
  const RowKey key{class_id, stack, tid};
  uint32_t at = rows_.find(key);
  if (at == decltype(rows_)::kNone) {
    if (used >= limits_.max_exact_rows_per_process || rows_.size() >= limits_.max_exact_rows) {
      return false;
    }
    ++used;
    at = rows_.insert(key).first;
  }
  rows_[at].value.add(1, time_ns);
  return true;
}

void Window::add_without_stack(uint32_t class_id, Unmatched reason, uint64_t time_ns) {
  classes_[class_id].value.without_stack[static_cast<size_t>(reason)].add(1, time_ns);
}

bool Window::add_weight(uint32_t group, StackId stack, uint32_t tid, uint64_t weight_q32,
                        uint64_t time_ns, bool is_first) {
  const WeightKey key{group, stack, tid};
  uint32_t at = weights_.find(key);
  if (at == decltype(weights_)::kNone) {
    if (weights_.size() >= limits_.max_exact_rows) return false;
    at = weights_.insert(key).first;
  }
  WeightSum& sum = weights_[at].value;
  if (is_first) sum.add_launch(weight_q32);
  sum.add_time(weight_q32, time_ns);
  return true;
}

Row Window::row_of(uint32_t class_id) const {
  const ClassKey& key = classes_[class_id].key;
  Row row;
  row.process = key.process;
  row.kind = key.kind;
  row.copy_kind = key.copy_kind;
  row.serialized = key.serialized;
  row.device_id = key.device_id;
  row.context_id = key.context_id;
  row.stream_id = key.stream_id;
  row.graph_id = key.graph_id;
  row.name_id = key.name_id;
  return row;
}

Window::Groups Window::index_groups() const {
  Groups groups;
  group_items(
      groups_.size(), classes_.size(), [&](uint32_t i) { return classes_[i].value.group; },
      groups.class_begin, groups.classes);
  group_items(
      groups_.size(), weights_.size(), [&](uint32_t i) { return weights_[i].key.group; },
      groups.weight_begin, groups.weights);
  return groups;
}

Window::Candidates Window::candidates(const Groups& groups, uint32_t group) const {
  const std::vector<uint32_t> entries(groups.weights.begin() + groups.weight_begin[group],
                                      groups.weights.begin() + groups.weight_begin[group + 1]);
  std::vector<WeightSum> sums;
  sums.reserve(entries.size());
  for (const uint32_t entry : entries) sums.push_back(weights_[entry].value);
  const std::vector<uint64_t> executions = execution_weights(sums);
  const std::vector<uint64_t> times = time_weights(sums);
  // Heaviest first, so that a prefix is what a tight row budget keeps; without the weightless.
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (executions[i] != 0 || times[i] != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return times[a] != times[b] ? times[a] > times[b] : executions[a] > executions[b];
  });
  Candidates sorted;
  for (const uint32_t i : order) {
    sorted.entries.push_back(entries[i]);
    sorted.execution_weights.push_back(executions[i]);
    sorted.time_weights.push_back(times[i]);
  }
  return sorted;
}

void Window::spread_class(uint32_t class_id, const Candidates& from, std::vector<double>& carry,
                          Spread& out) const {
  const auto& tallies = classes_[class_id].value.without_stack;
  Tally total = tallies[static_cast<size_t>(Unmatched::kNoSample)];
  const Tally& lost = tallies[static_cast<size_t>(Unmatched::kLaunchLost)];
  total.add(lost.executions, lost.time_ns);
  if (total.executions == 0) return;
  std::vector<uint64_t> executions(from.entries.size());
  std::vector<uint64_t> times(from.entries.size());
  apportion(total.executions, from.execution_weights, executions, carry);
  apportion(total.time_ns, from.time_weights, times, {});
  for (size_t i = 0; i < from.entries.size(); ++i) {
    if (executions[i] == 0 && times[i] == 0) continue;
    Row row = row_of(class_id);
    row.stack = weights_[from.entries[i]].key.stack;
    row.tid = weights_[from.entries[i]].key.tid;
    row.match = Match::kSampled;
    row.executions = executions[i];
    row.time_ns = times[i];
    out.push(class_id, row);
  }
}

void Window::unmatched_rows(uint32_t class_id, bool has_samples, bool launches_lost,
                            Spread& out) const {
  std::array<Tally, kUnmatchedCount> tallies = classes_[class_id].value.without_stack;
  Tally& no_sample = tallies[static_cast<size_t>(Unmatched::kNoSample)];
  Tally& lost = tallies[static_cast<size_t>(Unmatched::kLaunchLost)];
  if (launches_lost) lost.add(no_sample.executions, no_sample.time_ns);
  if (launches_lost || has_samples) no_sample = {};
  if (has_samples) lost = {};
  for (size_t reason = 1; reason < kUnmatchedCount; ++reason) {
    if (tallies[reason].executions == 0) continue;
    Row row = row_of(class_id);
    row.match = Match::kUnmatched;
    row.reason = static_cast<Unmatched>(reason);
    row.executions = tallies[reason].executions;
    row.time_ns = tallies[reason].time_ns;
    out.push(class_id, row);
  }
}

Spread Window::make_rows(const std::vector<bool>& launches_lost) const {
  Spread result;
  for (const auto& entry : rows_.entries()) {
    Row row = row_of(entry.key.class_id);
    row.stack = entry.key.stack;
    row.tid = entry.key.tid;
    row.match = Match::kExact;
    row.executions = entry.value.executions;
    row.time_ns = entry.value.time_ns;
    result.push(entry.key.class_id, row);
  }
  const Groups groups = index_groups();
  uint64_t classes_left = classes_.size();
  uint64_t budget = limits_.max_spread_rows;
  for (uint32_t group = 0; group < groups_.size(); ++group) {
    Candidates from = candidates(groups, group);
    const bool has_samples = !from.entries.empty();
    const uint64_t room = std::max<uint64_t>(1, budget / std::max<uint64_t>(1, classes_left));
    const uint32_t begin = groups.class_begin[group];
    const uint32_t end = groups.class_begin[group + 1];
    // Fair shares of the budget only once it is short: most groups have few classes and stacks.
    const bool is_short = from.entries.size() * (end - begin) > budget / 4;
    if (is_short && from.entries.size() > room) {
      result.stacks_trimmed += from.entries.size() - room;
      from.resize(room);
    }
    std::vector<double> carry(from.entries.size());
    for (uint32_t at = begin; at < end; ++at) {
      const uint32_t class_id = groups.classes[at];
      const size_t before = result.rows.size();
      if (has_samples) spread_class(class_id, from, carry, result);
      budget -= std::min<uint64_t>(budget, result.rows.size() - before);
      unmatched_rows(class_id, has_samples, launches_lost[classes_[class_id].key.process], result);
    }
    classes_left -= end - begin;
  }
  return result;
}

void Window::clear() {
  classes_.clear();
  groups_.clear();
  rows_.clear();
  weights_.clear();
}

}  // namespace gpuprof::join
