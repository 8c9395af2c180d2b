// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/pc_attribution.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <tuple>

#include "daemon/join/assemble.h"
#include "daemon/join/spread.h"

namespace gpuprof::join {
namespace {

constexpr uint32_t kNoClass = UINT32_MAX;
// What a kernel keeps of its call paths where there is no room for all its instructions on each.
constexpr uint64_t kMinPaths = 8;
constexpr uint32_t kMostDevices = 64;

using uint128 = unsigned __int128;

}  // namespace

PcAttribution::PcAttribution(const PcTable& table, const Window& window,
                             const ProcessTable& processes, const JoinerLimits& limits,
                             FrameSource* frames, DeviceSource* device)
    : table_(table),
      window_(window),
      processes_(processes),
      limits_(limits),
      frames_(frames),
      device_(device) {}

void PcAttribution::run(std::span<const uint32_t> class_of, JoinResult& result, JoinStats& stats) {
  classify(result);
  order_cells();
  index_.emplace(result.rows, class_of);
  join_sources(result);
  const std::vector<uint64_t> rooms = make_rooms();
  for (uint32_t source = 0; source < rooms.size(); ++source) {
    if (has_cells(source)) split(source, rooms[source], result, stats);
  }
  share_out(result);
}

// Of a device that is not known: what all the process's devices agree on.
std::string PcAttribution::stall_text(const PcSource& source, uint32_t stall_index) {
  const ProcessId process = processes_[source.process].id;
  if (source.device_id != kFolded)
    return std::string(device_->stall_name(process, source.device_id, stall_index));
  std::string agreed;
  for (uint32_t device = 0; device < kMostDevices; ++device) {
    const std::string_view name = device_->stall_name(process, device, stall_index);
    if (name.empty()) continue;
    if (!agreed.empty() && agreed != name) return {};
    agreed = name;
  }
  return agreed;
}

PcAttribution::Stall PcAttribution::stall_of(const PcSource& source, uint32_t stall_index,
                                             JoinResult& result) {
  const auto [at, is_new] = stall_names_.insert({source.process, source.device_id, stall_index});
  Stall& stall = stall_names_[at].value;
  if (!is_new || device_ == nullptr) return stall;
  const StallName name = parse_stall_name(stall_text(source, stall_index));
  stall.kind = name.kind;
  const auto [id, is_new_name] =
      stall_ids_.try_emplace(name.reason, static_cast<uint32_t>(result.stalls.size()));
  if (is_new_name) result.stalls.push_back(name.reason);
  stall.id = id->second;
  return stall;
}

// Two counters of one reason become one cell; what counts no samples becomes none.
void PcAttribution::classify(JoinResult& result) {
  for (const auto& [key, count] : table_.entries().entries()) {
    const PcSource& source = table_.sources()[key.source].key;
    const Stall stall = stall_of(source, key.stall_index, result);
    PcAccounting& pc = processes_[source.process].window.pc;
    pc.pending -= count;
    if (stall.kind == StallKind::kUnnamed) pc.unnamed += count;
    if (stall.kind == StallKind::kOther) pc.other += count;
    if (stall.kind == StallKind::kUnnamed || stall.kind == StallKind::kOther) continue;
    Cell& cell = cells_[cells_.insert({key.source, key.pc_offset, stall.id}).first].value;
    if (stall.kind == StallKind::kStalled) {
      pc.samples += count;
      cell.samples += count;
    } else {
      pc.not_issued += count;
      cell.stall_samples += count;
    }
  }
}

void PcAttribution::order_cells() {
  cell_begin_.assign(table_.sources().size() + 1, 0);
  for (const auto& cell : cells_.entries()) ++cell_begin_[cell.key.source + 1];
  std::partial_sum(cell_begin_.begin(), cell_begin_.end(), cell_begin_.begin());
  cell_order_.resize(cells_.size());
  std::iota(cell_order_.begin(), cell_order_.end(), 0u);
  std::stable_sort(cell_order_.begin(), cell_order_.end(), [&](uint32_t a, uint32_t b) {
    const auto& left = cells_[a];
    const auto& right = cells_[b];
    if (left.key.source != right.key.source) return left.key.source < right.key.source;
    if (left.value.samples != right.value.samples) return left.value.samples > right.value.samples;
    return left.value.stall_samples > right.value.stall_samples;
  });
}

std::shared_ptr<const cubin::Image> PcAttribution::image_of(const PcSource& source) {
  if (device_ == nullptr) return nullptr;
  return device_->device_module(processes_[source.process].id, source.cubin_key).image;
}

std::string PcAttribution::name_of(const PcSource& source, uint64_t name_id) {
  if (frames_ == nullptr) return {};
  return std::string(frames_->kernel_name(processes_[source.process].id, name_id));
}

// Executions have their kernel's name. A device function that was not inlined lies in the section
// of its kernel.
uint64_t PcAttribution::kernel_of(const PcSource& source) {
  const uint64_t function = source.function_name_id;
  if (index_->find_kernel(source.process, function) != nullptr) return function;
  const std::string name = name_of(source, function);
  if (name.empty()) return function;
  const auto image = image_of(source);
  if (!image) return function;
  const cubin::Resolution begin = image->resolve(name, 0);
  if (begin.frames.empty()) return function;
  const std::string_view kernel = begin.frames.back().mangled;
  const cubin::Function* const found = image->find(kernel);
  return found != nullptr && found->is_kernel ? XXH3_64bits(kernel.data(), kernel.size())
                                              : function;
}

// A correlation is believed as far as the code agrees. Nothing contradicts it where either of the
// two has no name.
bool PcAttribution::runs_in(const PcSource& source, uint64_t kernel) {
  const uint64_t function = source.function_name_id;
  if (function == kernel || function == 0 || kernel == 0) return true;
  const std::string name = name_of(source, function), kernel_name = name_of(source, kernel);
  if (name.empty() || kernel_name.empty()) return false;
  const auto image = image_of(source);
  return image && image->may_run_in(name, kernel_name);
}

uint32_t PcAttribution::extra_row(const ExtraKey& key, const Row& row, JoinResult& result) {
  const auto [at, is_new] = extra_rows_.insert(key);
  if (is_new) {
    extra_rows_[at].value = static_cast<uint32_t>(result.rows.size());
    result.rows.push_back(row);
  }
  return extra_rows_[at].value;
}

PcAttribution::Join PcAttribution::join_target(const PcTarget& target, JoinResult& result) {
  Join join{PcAttrib::kExact, nullptr, 0};
  Row row = window_.row_of(target.class_id);
  row.stack = target.stack;
  row.tid = target.tid;
  if (target.stack != kNoStack) {
    join.row = index_->find_exact(target);
    if (join.row != RowIndex::kNone) return join;
    row.match = Match::kExact;  // it executed in an earlier window, or was folded into its kernel
  } else {
    // Its launch was not sampled: the call path is as good as that of the execution.
    join.set = index_->find_inexact(target.class_id);
    if (join.set != nullptr) return join;
    row.match = Match::kUnmatched;
    row.reason = Unmatched::kNoSample;
  }
  join.row =
      extra_row({0, row.process, 0, 0, target.stack, target.tid, target.class_id}, row, result);
  return join;
}

PcAttribution::Join PcAttribution::join_kernel(const PcSource& source, uint64_t kernel,
                                               JoinResult& result) {
  Join join;
  if (kernel == 0) return join_nothing(source, kernel, result);  // nor do executions tell theirs
  join.set = index_->find_in_context(source.process, kernel, source.device_id, source.context_id);
  const bool is_in_context = join.set != nullptr;
  if (!is_in_context) join.set = index_->find_on_device(source.process, kernel, source.device_id);
  if (join.set != nullptr) {
    const bool has_modules = modules_[modules_.find({kernel, source.process})].value.second;
    join.attrib = is_in_context && !has_modules && !join.set->has_several_paths
                      ? PcAttrib::kKernel
                      : PcAttrib::kKernelAmbiguous;
    return join;
  }
  join.set = index_->find_kernel(source.process, kernel);
  join.attrib = PcAttrib::kKernelMultidevice;
  if (join.set != nullptr) return join;
  return join_nothing(source, kernel, result);
}

PcAttribution::Join PcAttribution::join_nothing(const PcSource& source, uint64_t kernel,
                                                JoinResult& result) {
  Row row;
  row.process = source.process;
  row.kind = GPUPROF_KIND_KERNEL;
  row.device_id = source.device_id;
  row.context_id = source.context_id;
  row.name_id = kernel;
  const ExtraKey key{kernel, source.process, source.device_id, source.context_id, kNoStack,
                     0,      kNoClass};
  return {PcAttrib::kUnattributed, nullptr, extra_row(key, row, result)};
}

// Few images fit into memory at once: what asks for one comes together.
std::vector<uint32_t> PcAttribution::sources_by_image() const {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < table_.sources().size(); ++i) {
    if (has_cells(i)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const PcSource& left = table_.sources()[a].key;
    const PcSource& right = table_.sources()[b].key;
    return std::tie(left.cubin_key, left.process) < std::tie(right.cubin_key, right.process);
  });
  return order;
}

void PcAttribution::join_sources(JoinResult& result) {
  const uint32_t count = static_cast<uint32_t>(table_.sources().size());
  std::vector<uint64_t> kernels(count);
  std::vector<bool> has_target(count);
  for (const uint32_t i : sources_by_image()) {
    const PcSource& source = table_.sources()[i].key;
    has_target[i] = source.has_target() &&
                    runs_in(source, window_.row_of(table_.target(source).class_id).name_id);
    if (has_target[i]) continue;
    kernels[i] = kernel_of(source);
    const auto [at, is_new] = modules_.insert({kernels[i], source.process});
    auto& [cubin, has_others] = modules_[at].value;
    if (is_new) cubin = source.cubin_key;
    has_others = has_others || cubin != source.cubin_key;
  }
  joins_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (!has_cells(i)) continue;
    const PcSource& source = table_.sources()[i].key;
    joins_[i] = has_target[i] ? join_target(table_.target(source), result)
                              : join_kernel(source, kernels[i], result);
    if (source.join == PcSource::kOfGraph && joins_[i].attrib != PcAttrib::kUnattributed)
      joins_[i].attrib = PcAttrib::kGraphRefused;
  }
}

// The most PC rows that a source can make: a cell of few samples is on as few call paths.
uint64_t PcAttribution::need_of(uint32_t source) const {
  uint64_t need = 0;
  for (uint32_t at = cell_begin_[source]; at < cell_begin_[source + 1]; ++at) {
    const Cell& cell = cells_[cell_order_[at]].value;
    const uint64_t most = cell.samples != 0 ? cell.samples : cell.stall_samples;
    need += std::min<uint64_t>(std::max<uint64_t>(most, 1), joins_[source].size());
  }
  return need;
}

// How many PC rows each source may make. Processes share the limit out: one that needs less than an
// equal share leaves the rest to the others. Within a process all shrink alike.
std::vector<uint64_t> PcAttribution::make_rooms() const {
  const auto count = static_cast<uint32_t>(joins_.size());
  std::vector<uint64_t> needs(count);
  std::vector<uint64_t> by_process(processes_.slots().size());
  for (uint32_t i = 0; i < count; ++i) {
    needs[i] = need_of(i);
    by_process[table_.sources()[i].key.process] += needs[i];
  }
  std::vector<uint32_t> order;
  for (uint32_t slot = 0; slot < by_process.size(); ++slot) {
    if (by_process[slot] != 0) order.push_back(slot);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return by_process[a] < by_process[b]; });
  std::vector<uint64_t> shares(by_process.size());
  uint64_t left = limits_.max_pc_rows;
  for (size_t i = 0; i < order.size(); ++i) {
    shares[order[i]] = std::min(by_process[order[i]], left / (order.size() - i));
    left -= shares[order[i]];
  }
  std::vector<uint64_t> rooms(count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t process = table_.sources()[i].key.process;
    if (needs[i] == 0) continue;
    const uint128 part = uint128{needs[i]} * shares[process] / by_process[process];
    rooms[i] = std::max<uint64_t>(1, static_cast<uint64_t>(part));
  }
  return rooms;
}

// The heaviest `most` cells of a source, the last one being all the others where there are more.
std::vector<PcAttribution::Cells::Entry> PcAttribution::cells_of(uint32_t source, size_t most,
                                                                 JoinStats& stats) const {
  std::vector<Cells::Entry> cells;
  for (uint32_t at = cell_begin_[source]; at < cell_begin_[source + 1]; ++at) {
    const Cells::Entry& cell = cells_[cell_order_[at]];
    if (cells.size() < most) {
      cells.push_back(cell);
      continue;
    }
    Cells::Entry& rest = cells.back();
    if (rest.key.stall != kFolded) stats.pc_folded += rest.value.samples;
    rest.key.pc_offset = rest.key.stall = kFolded;
    rest.value.samples += cell.value.samples;
    rest.value.stall_samples += cell.value.stall_samples;
    stats.pc_folded += cell.value.samples;
  }
  return cells;
}

void PcAttribution::split(uint32_t source, uint64_t room, JoinResult& result, JoinStats& stats) {
  const Join& join = joins_[source];
  const PcSource& from = table_.sources()[source].key;
  const uint64_t all_cells = cell_begin_[source + 1] - cell_begin_[source];
  const uint64_t all_paths = join.size();
  uint64_t paths = all_paths;
  const bool fits = need_of(source) <= room;
  if (!fits) {
    paths = std::max(room / all_cells, std::min(kMinPaths, room));
    paths = std::min(paths, all_paths);
  }
  stats.pc_stacks_trimmed += all_paths - paths;
  const std::vector<Cells::Entry> cells =
      cells_of(source, fits ? all_cells : std::max<uint64_t>(1, room / paths), stats);
  std::vector<uint64_t> times(paths), samples(paths), stall_samples(paths);
  for (size_t i = 0; i < paths; ++i) times[i] = result.rows[join.at(i)].time_ns;
  std::vector<double> carry(paths);
  const auto function = static_cast<uint32_t>(result.pc_functions.size());
  result.pc_functions.push_back(
      {from.process, from.device_id, from.cubin_key, from.function_name_id, join.attrib});
  uint64_t& attributed =
      processes_[from.process].window.pc.attrib[static_cast<size_t>(join.attrib)];
  for (const Cells::Entry& cell : cells) {
    attributed += cell.value.samples;
    apportion(cell.value.samples, times, samples, carry);
    apportion(cell.value.stall_samples, cell.value.samples != 0 ? samples : times, stall_samples,
              {});
    for (size_t i = 0; i < paths; ++i) {
      if (samples[i] == 0 && stall_samples[i] == 0) continue;
      result.pc_rows.push_back({join.at(i), function, cell.key.pc_offset, cell.key.stall,
                                samples[i], stall_samples[i], 0, 0});
    }
  }
}

void PcAttribution::share_out(JoinResult& result) {
  std::vector<PcRow>& pcs = result.pc_rows;
  std::stable_sort(pcs.begin(), pcs.end(),
                   [](const PcRow& a, const PcRow& b) { return a.row < b.row; });
  std::vector<uint64_t> weights, times, executions;
  for (size_t begin = 0, end = 0; begin < pcs.size(); begin = end) {
    weights.clear();
    for (; end < pcs.size() && pcs[end].row == pcs[begin].row; ++end)
      weights.push_back(pcs[end].samples);
    if (std::all_of(weights.begin(), weights.end(), [](uint64_t w) { return w == 0; })) continue;
    times.resize(weights.size());
    executions.resize(weights.size());
    const Row& row = result.rows[pcs[begin].row];
    apportion(row.time_ns, weights, times, {});
    apportion(row.executions, weights, executions, {});
    for (size_t i = begin; i < end; ++i) {
      pcs[i].time_ns = times[i - begin];
      pcs[i].executions = executions[i - begin];
    }
  }
}

}  // namespace gpuprof::join
