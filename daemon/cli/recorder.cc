// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/recorder.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "daemon/base/clock.h"
#include "daemon/symbolize/debug_search.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"
#include "daemon/unwind/elf_file.h"

namespace gpuprof::cli {
namespace {

// A pc carries the number of its layout in the bits that no user address has (5-level paging: 56).
constexpr int kLayoutShift = 57;
constexpr size_t kMaxLayouts = size_t{1} << (64 - kLayoutShift);
constexpr uint64_t kPcMask = (uint64_t{1} << kLayoutShift) - 1;
constexpr size_t kMaxImages = 256;  // of one process
constexpr size_t kMaxLookedAt = 4096;
constexpr uint32_t kUnseen = UINT32_MAX;  // the exec id of an image that sent nothing
constexpr uint64_t kRefreshNs = 1'000'000'000;
constexpr uint64_t kPlausibleSlackNs = 1'000'000'000;
constexpr uint64_t kFinestPerNs = 1000;  // PC samples of a large GPU: some 10 a nanosecond
constexpr uint64_t kRefreshShare = 20;   // looking at maps takes at most 1/20 of our time

const symbolize::SymbolizedPc kUnresolved;
// What unresolved pcs of a process whose maps were never read point into.
const std::vector<symbolize::Module> kUnknownModules = {{"[unknown]", "", 0, UINT64_MAX}};

}  // namespace

ProcessRecord* Recorder::find(ProcessId process) {
  const auto it = processes_.find(process);
  return it == processes_.end() ? nullptr : &it->second;
}

ProcessRecord* Recorder::add_process(ProcessId process, const ShimBaseline& baseline) {
  if (ProcessRecord* known = find(process)) return known;
  if (processes_.size() >= kMaxProcesses) return nullptr;
  ProcessRecord& record = processes_[process];
  record.id = process;
  record.baseline = baseline;
  open_space(record);
  return &record;
}

void Recorder::open_space(ProcessRecord& record) {
  record.opened_ns = monotonic_ns();
  if (auto stat = target::process_stat(record.id.pid);
      stat && stat->start_ticks == record.id.start_ticks) {
    record.comm = stat->comm;
    record.executable = target::printable(target::executable_of(record.id.pid), PATH_MAX);
    record.identity = target::identity_of(record.id);
  }
  open_layout(record);
}

void Recorder::open_layout(ProcessRecord& record) {
  auto space = unwind::AddressSpace::open(record.id.process(), files_);
  if (!space) {
    record.space_error = space.error().message;
    return;
  }
  if (!record.layouts.empty()) record.layouts.back().space->process_exited();
  Layout layout;
  layout.space = std::move(*space);
  layout.symbolizer = std::make_unique<symbolize::Symbolizer>(layout.space, symbols_);
  record.unwinder = std::make_unique<unwind::Unwinder>(layout.space);
  record.layouts.push_back(std::move(layout));
  if (record.layouts.size() == 2) keep_module_numbers(record);
  find_python(record);
}

// The numbers of the first layout's modules stay what they were while it was the only one: a window
// may be half told when a library is replaced.
void Recorder::keep_module_numbers(ProcessRecord& record) {
  Layout& first = record.layouts.front();
  record.modules = first.symbolizer->modules();
  first.module_of.resize(record.modules.size());
  std::iota(first.module_of.begin(), first.module_of.end(), 0u);
}

// At first sight of the program, and again when files were mapped: a host may load Python later.
void Recorder::find_python(ProcessRecord& record) {
  Layout& layout = record.layouts.back();
  if (!set_python_ || layout.python) return;
  record.python_looked_at = layout.space->generation();
  auto found = python::Interpreter::find(layout.space);
  if (found) {
    layout.python = std::move(*found);
    record.python_error.clear();
    record.python_version = layout.python->version();
    set_python_(record.id.process(), &layout.python->walk());
    return;
  }
  if (found.error().code != Code::kNotFound) record.python_error = found.error().message;
  set_python_(record.id.process(), nullptr);
}

// A process's images are told apart by the kernel's count of its execs. The two rings are drained
// in turn, so the stacks of one image may come after the first records of the next.
ProcessId Recorder::image_of(const probe::EventSource& source) {
  // Beyond the limit of processes nobody is told apart, and nothing is kept.
  if (processes_.size() >= kMaxProcesses && !exec_ids_.contains(source.process))
    return source.process;
  std::vector<uint32_t>& known = exec_ids_[source.process];
  auto it = std::find(known.begin(), known.end(), source.exec_id);
  ProcessId out = source.process;
  if (it == known.end() && known.size() < kMaxImages) {
    if (!known.empty()) {
      out.image = static_cast<uint32_t>(known.size() - 1);
      if (ProcessRecord* last = find(out); last != nullptr && !last->layouts.empty())
        last->layouts.back().space->process_exited();
    }
    it = known.insert(known.end(), source.exec_id);
  }
  out.image = it == known.end() ? kMaxImages - 1 : static_cast<uint32_t>(it - known.begin());
  return out;
}

ProcessRecord* Recorder::consumer_of(const probe::EventSource& source, size_t records) {
  ProcessRecord* record = record_of(source);
  if (record == nullptr) unconsumed_ += records;
  return record;
}

// BPF delivers launches and executions of watched processes only, so an unknown sender is a child
// whose process_v1 we did not get.
ProcessRecord* Recorder::record_of(const probe::EventSource& source) {
  const ProcessId id = image_of(source);
  ProcessRecord* record = find(id);
  if (record == nullptr) record = add_process(id, {});
  if (record == nullptr) return nullptr;
  if (record->comm.empty()) record->comm = target::printable(source.comm, 15);
  return record;
}

void Recorder::on_process(const probe::EventSource& source, const gpuprof_process_v1& record) {
  // That BPF watches it says that it descends from a process we were told of, also when all between
  // them are gone: the watch is inherited at fork.
  if (!source.watched) return;
  // A process that was there before us and never sent a thing: is this its shim's first word, or
  // has it become another program since?
  if (const ProcessRecord* before = find(source.process); before != nullptr &&
                                                          before->opened_ns < source.time_ns &&
                                                          !exec_ids_.contains(source.process))
    exec_ids_[source.process].push_back(kUnseen);
  ProcessRecord* known = record_of(source);
  if (known == nullptr) {
    ++programs_refused_;
    return;
  }
  known->injected_ns = source.time_ns;
  admit_(known->id, record);
}

void Recorder::process_exited(ProcessId process) {
  exec_ids_.erase(process.process());
  for (auto it = processes_.lower_bound(process.process());
       it != processes_.end() && it->first.process() == process.process(); ++it) {
    ProcessRecord& record = it->second;
    record.exited = true;
    joiner_.remove_process(it->first);
    device_modules_.process_exited(it->first);
    record.unwinder.reset();
    for (const Layout& layout : record.layouts) layout.space->process_exited();
    // Nothing of it will be symbolised.
    if (record.stacks_taken == 0) record.layouts.clear();
  }
}

void Recorder::advance(uint64_t now_ns) {
  joiner_.advance(now_ns);
  device_modules_.advance(now_ns);
  if (now_ns >= next_refresh_ns_) refresh_one(now_ns);
}

// A library that is unmapped and another one in its place would pass for the first for ever:
// unknown pcs make us look at the maps, known ones do not. At most one process a call.
void Recorder::refresh_one(uint64_t now) {
  ProcessRecord* due = nullptr;
  for (auto& [id, record] : processes_) {
    if (!record.stacks_since_refresh || record.layouts.empty()) continue;
    if (now < std::max(record.refreshed_ns, record.opened_ns) + kRefreshNs) continue;
    if (due == nullptr || record.refreshed_ns < due->refreshed_ns) due = &record;
  }
  if (due == nullptr) {
    next_refresh_ns_ =
        now + kRefreshNs / 10;  // looking at thousands of records takes a millisecond
    return;
  }
  due->stacks_since_refresh = false;
  due->refreshed_ns = now;
  const uint64_t begin = monotonic_ns();
  unwind::AddressSpace& space = *due->layouts.back().space;
  if (!space.refresh() && space.replaced() && due->layouts.size() < kMaxLayouts) {
    open_layout(*due);
  } else if (space.generation() != due->python_looked_at) {
    find_python(*due);
  }
  next_refresh_ns_ = now + (monotonic_ns() - begin) * kRefreshShare;
}

void Recorder::use_fetcher(std::unique_ptr<DebugFetcher> fetcher) {
  fetcher_ = std::move(fetcher);
  symbols_.use_source(fetcher_.get());
}

// Early, so that they have come when the profile is written.
void Recorder::want_debug_files(unwind::AddressSpace& space) {
  if (looked_at_.size() >= kMaxLookedAt) looked_at_.clear();
  for (const uint64_t pc : scratch_.pcs) {
    const unwind::Mapping* mapping = space.find(pc);
    if (mapping == nullptr || !mapping->file || !looked_at_.insert(mapping->file.get()).second)
      continue;
    if (symbolize::DebugSearch(space, mapping->path).lacks_debug(*mapping->file))
      fetcher_->want(mapping->file->build_id());
  }
}

// The root of the call path.
void Recorder::add_thread_frame(Layout& layout, const std::string& thread,
                                std::vector<uint64_t>& pcs) {
  if (pcs.empty() || thread.empty()) return;
  auto at = layout.thread_pcs.find(thread);
  if (at == layout.thread_pcs.end()) {
    if (layout.thread_pcs.size() >= kMaxThreadNames) return;
    symbolize::SourceFrame frame;
    frame.function = frame.system_name = "[thread " + thread + "]";
    at = layout.thread_pcs
             .emplace(thread,
                      layout.symbolizer->add_frame(frame, symbolize::Symbolizer::Added::kThread))
             .first;
  }
  if (at->second != 0) pcs.push_back(at->second);
}

void Recorder::unwind(ProcessRecord& record, const StackSample& stack, const std::string& thread) {
  record.unwinder->unwind(stack, scratch_);
  // An unknown pc made it look at the maps, and something has taken another thing's place.
  if (record.layouts.back().space->replaced() && record.layouts.size() < kMaxLayouts) {
    const size_t before = record.layouts.size();
    open_layout(record);
    if (record.layouts.size() != before) record.unwinder->unwind(stack, scratch_);
  }
  record.stacks_since_refresh = true;
  Layout& last = record.layouts.back();
  if (fetcher_) want_debug_files(*last.space);
  if (last.python) {
    last.python->stitch(
        stack, scratch_, monotonic_ns(),
        [&last](const symbolize::SourceFrame& frame) {
          return last.symbolizer->add_frame(frame, symbolize::Symbolizer::Added::kPython);
        },
        record.python);
  }
  if (thread_frames_) add_thread_frame(last, thread, scratch_.pcs);
  const uint64_t layout = uint64_t{record.layouts.size() - 1} << kLayoutShift;
  for (uint64_t& pc : scratch_.pcs) pc = (pc & kPcMask) | layout;
}

void Recorder::on_launch(const probe::EventSource& source, const gpuprof_launch_v1& launch,
                         const StackSample* stack) {
  ProcessRecord* record = record_of(source);
  if (record == nullptr) {
    joiner_.add_launch(image_of(source), launch, join::kNoStack, source.tid);
    return;
  }
  ++record->stacks_taken;
  const std::string thread = target::printable(source.comm, 15);
  join::StackId id = join::kNoStack;
  if (stack == nullptr || record->unwinder == nullptr) {
    ++record->stack_ends[static_cast<size_t>(unwind::StackEnd::kNoStack)];
  } else {
    unwind(*record, *stack, thread);
    ++record->stack_ends[static_cast<size_t>(scratch_.end)];
    record->frames_by_frame_pointer += scratch_.by_frame_pointer;
    id = stacks_.intern(scratch_.pcs);
    if (id == join::kNoStack && !scratch_.pcs.empty()) ++record->stacks_refused;
  }
  // The last one: a thread may be named after its first launch.
  if (const auto known = record->thread_names.find(source.tid);
      known != record->thread_names.end()) {
    known->second = thread;
  } else if (record->thread_names.size() < kMaxThreadNames) {
    record->thread_names.emplace(source.tid, thread);
  }
  joiner_.add_launch(record->id, launch, id, source.tid);
}

void Recorder::on_execs(const probe::EventSource& source, std::span<const gpuprof_exec_v1> execs) {
  ProcessRecord* record = record_of(source);
  joiner_.add_execs(record != nullptr ? record->id : image_of(source), execs);
  if (record == nullptr) return;
  record->executions += execs.size();
  for (const gpuprof_exec_v1& exec : execs) {
    record->gpu_time_ns += exec.end_ns - exec.start_ns;
    if (record->busy_until_ns.size() >= kMaxDevices &&
        !record->busy_until_ns.contains(exec.device_id))
      continue;
    uint64_t& until = record->busy_until_ns[exec.device_id];
    if (exec.end_ns <= until) continue;  // records come nearly in the order of their ends
    record->busy_ns += exec.end_ns - std::max(exec.start_ns, until);
    until = exec.end_ns;
  }
}

void Recorder::on_name(const probe::EventSource& source, uint32_t kind, uint64_t id,
                       std::string_view name) {
  ProcessRecord* record = consumer_of(source, 1);
  if (record == nullptr) return;
  if (kind == GPUPROF_NAME_STALL) take_stall_name(*record, id, name);
  if (kind != GPUPROF_NAME_FUNCTION || record->kernel_names.contains(id)) return;
  if (name_bytes_ + name.size() > kMaxNameBytes) {
    ++record->names_refused;
    return;
  }
  name_bytes_ += name.size();
  record->kernel_names.emplace(id, name);
}

void Recorder::on_device(const probe::EventSource& source, const gpuprof_device_v1& device) {
  ProcessRecord* record = consumer_of(source, 1);
  if (record == nullptr) return;
  if (record->devices.size() < kMaxDevices || record->devices.contains(device.device_id))
    record->devices[device.device_id] = device;
}

// More than one execution, or a thousand of what is counted finer, a nanosecond since we know the
// process: the page was overwritten, or somebody fires the probe.
bool Recorder::is_plausible(const ProcessRecord& record, uint64_t since, bool executions) {
  const uint64_t now = monotonic_ns();
  const uint64_t observed_ns = now - std::min(now, record.opened_ns) + kPlausibleSlackNs;
  return since / (executions ? 1 : kFinestPerNs) <= observed_ns;
}

void Recorder::apply_drop(ProcessRecord& record, uint32_t drop_class, uint64_t total) {
  if (drop_class == GPUPROF_DROP_INVALID || drop_class >= GPUPROF_DROP_CLASS_COUNT) return;
  const uint64_t before = record.baseline.drops[drop_class];
  const uint64_t since = total > before ? total - before : 0;
  if (!is_plausible(record, since, join::is_execution_loss(drop_class))) {
    record.implausible_drops |= uint64_t{1} << drop_class;
    return;
  }
  if (since < record.drops[drop_class]) return;  // totals only grow: an older report came late
  record.drops[drop_class] = since;
  if (join::is_execution_loss(drop_class)) joiner_.set_shim_loss(record.id, drop_class, since);
}

void Recorder::apply_emitted(ProcessRecord& record, uint32_t probe, uint64_t total) {
  if (probe == GPUPROF_PROBE_INVALID || probe >= GPUPROF_PROBE_COUNT) return;
  const uint64_t before = record.baseline.emitted[probe];
  const uint64_t since = total > before ? total - before : 0;
  if (!is_plausible(record, since, probe == GPUPROF_PROBE_EXEC)) {
    record.implausible_emitted |= 1u << probe;
    return;
  }
  record.emitted[probe] = std::max(record.emitted[probe], since);
  if (probe == GPUPROF_PROBE_PC_SAMPLE) joiner_.set_pc_emitted(record.id, record.emitted[probe]);
  if (probe != GPUPROF_PROBE_EXEC) return;
  record.emitted_known = true;
  joiner_.set_emitted(record.id, record.emitted[probe]);
}

void Recorder::on_drop(const probe::EventSource& source, const gpuprof_drop_v1& drop) {
  ProcessRecord* record = consumer_of(source, 1);
  if (record == nullptr) return;
  if (drop.drop_class == GPUPROF_DROP_FINAL_TOTAL) {
    apply_emitted(*record, drop.detail, drop.total);
  } else {
    apply_drop(*record, drop.drop_class, drop.total);
  }
}

void Recorder::set_totals(ProcessId process, const target::ShimStatus& status) {
  ProcessRecord* record = find(process);
  if (record == nullptr) return;
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_COUNT; ++probe)
    apply_emitted(*record, probe, status.probe_totals[probe]);
  for (uint32_t drop_class = 1; drop_class < GPUPROF_DROP_CLASS_COUNT; ++drop_class) {
    if (drop_class != GPUPROF_DROP_FINAL_TOTAL)
      apply_drop(*record, drop_class, status.drop_totals[drop_class]);
  }
}

void Recorder::on_loss(ProcessId process, uint32_t probe, uint64_t records,
                       probe::LossReason reason) {
  // Which image lost them is not known: the last one.
  if (const auto images = exec_ids_.find(process); images != exec_ids_.end())
    process.image = static_cast<uint32_t>(std::max<size_t>(images->second.size(), 1) - 1);
  joiner_.add_ring_loss(process, probe, records, static_cast<uint32_t>(reason));
  ProcessRecord* record = find(process);
  if (record == nullptr || probe >= GPUPROF_PROBE_COUNT) return;
  record->lost[probe][static_cast<size_t>(reason)] += records;
}

const symbolize::SymbolizedPc& Recorder::resolve(ProcessId process, uint64_t pc) {
  ProcessRecord* record = find(process);
  if (record == nullptr || record->layouts.empty()) return kUnresolved;
  if (record->layouts.size() == 1) return record->layouts[0].symbolizer->resolve(pc & kPcMask);
  Layout& layout =
      record->layouts[std::min<size_t>(pc >> kLayoutShift, record->layouts.size() - 1)];
  resolved_ = layout.symbolizer->resolve(pc & kPcMask);
  const std::vector<symbolize::Module>& theirs = layout.symbolizer->modules();
  while (layout.module_of.size() < theirs.size()) {
    const symbolize::Module& module = theirs[layout.module_of.size()];
    const bool is_file = !module.path.starts_with('[');  // others' bounds widen
    const auto same = std::find_if(
        record->modules.begin(), record->modules.end(), [&](const symbolize::Module& known) {
          return known.path == module.path && known.build_id == module.build_id &&
                 (!is_file || (known.start == module.start && known.limit == module.limit));
        });
    layout.module_of.push_back(static_cast<uint32_t>(same - record->modules.begin()));
    if (same == record->modules.end()) record->modules.push_back(module);
  }
  const symbolize::Module& found = theirs[resolved_.module];
  resolved_.module = layout.module_of[resolved_.module];
  symbolize::Module& module = record->modules[resolved_.module];
  module.start = std::min(module.start, found.start);
  module.limit = std::max(module.limit, found.limit);
  return resolved_;
}

void Recorder::note_shim(std::string path) {
  constexpr std::string_view kDeleted = " (deleted)";  // module paths are without
  if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
  shims_.insert(std::move(path));
}

const std::vector<symbolize::Module>& Recorder::modules(ProcessId process) {
  ProcessRecord* record = find(process);
  if (record == nullptr || record->layouts.empty()) return kUnknownModules;
  return record->layouts.size() == 1 ? record->layouts[0].symbolizer->modules() : record->modules;
}

join::ProcessInfo Recorder::process(ProcessId process) {
  const ProcessRecord* record = find(process);
  return record == nullptr
             ? join::ProcessInfo()
             : join::ProcessInfo{record->comm, record->executable, record->identity.labels()};
}

std::string Recorder::thread_name(ProcessId process, uint32_t tid) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->thread_names.find(tid);
  return it == record->thread_names.end() ? std::string() : it->second;
}

join::DeviceInfo Recorder::device(ProcessId process, uint32_t device_id) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->devices.find(device_id);
  if (it == record->devices.end()) return {};
  return {target::printable(std::string_view(it->second.name, sizeof it->second.name)),
          target::gpu_uuid(it->second.uuid)};
}

std::string_view Recorder::kernel_name(ProcessId process, uint64_t name_id) {
  const ProcessRecord* record = find(process);
  if (record == nullptr) return {};
  const auto it = record->kernel_names.find(name_id);
  return it == record->kernel_names.end() ? std::string_view() : it->second;
}

}  // namespace gpuprof::cli
