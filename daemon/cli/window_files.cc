// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/window_files.h"

#include <algorithm>
#include <ctime>

#include "daemon/base/clock.h"
#include "daemon/cli/duration.h"
#include "daemon/cli/report.h"
#include "daemon/cli/report_parts.h"
#include "daemon/join/assemble.h"

namespace gpuprof::cli {
namespace {

constexpr uint64_t kDrainNs = 10'000'000;  // the rings hold some 500 ms of a busy node
constexpr uint64_t kShortestLastNs = 500'000'000;
constexpr uint64_t kReadPatienceNs = 300'000'000;  // for the images that samples name
constexpr uint64_t kRereadBudgetNs = 200'000'000;  // of a window: nothing is drained meanwhile

int64_t unix_of(uint64_t monotonic) {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec -
         static_cast<int64_t>(monotonic_ns() - monotonic);
}

// The recorder, which is fed between two questions. Only there: what it has answered stays good
// until the next one.
class FedSource final : public join::FrameSource, public join::DeviceSource {
 public:
  FedSource(Recorder& recorder, const std::function<void()>& feed)
      : recorder_(recorder), feed_(feed) {}

  const symbolize::SymbolizedPc& resolve(ProcessId process, uint64_t pc) override {
    feed_();
    return recorder_.resolve(process, pc);
  }
  const std::vector<symbolize::Module>& modules(ProcessId process) override {
    return recorder_.modules(process);
  }
  bool is_tool(const symbolize::Module& module) override { return recorder_.is_tool(module); }
  join::ProcessInfo process(ProcessId process) override { return recorder_.process(process); }
  std::string thread_name(ProcessId process, uint32_t tid) override {
    return recorder_.thread_name(process, tid);
  }
  join::DeviceInfo device(ProcessId process, uint32_t device_id) override {
    return recorder_.device(process, device_id);
  }
  std::string_view kernel_name(ProcessId process, uint64_t name_id) override {
    return recorder_.kernel_name(process, name_id);
  }
  const join::DeviceModule& device_module(ProcessId process, uint64_t cubin_key) override {
    feed_();
    return recorder_.device_module(process, cubin_key);
  }
  std::string_view stall_name(ProcessId process, uint32_t device_id,
                              uint32_t stall_index) override {
    return recorder_.stall_name(process, device_id, stall_index);
  }

 private:
  Recorder& recorder_;
  const std::function<void()>& feed_;
};

Error same_files() {
  return {Code::kInvalidArgument, 0, "-o and --summary-json name the same file: choose two"};
}

}  // namespace

WindowFiles::WindowFiles(const Options& options, std::string_view comm, uint32_t pid)
    : options_(options),
      length_ns_(static_cast<uint64_t>(options.window->count())),
      comm_(comm),
      pid_(pid),
      writer_([this](WindowWriter::Series series, const std::string& name, std::string_view bytes) {
        return write(series, name, bytes);
      }) {}

Result<std::unique_ptr<WindowFiles>> WindowFiles::open(const Options& options, const Invoker& owner,
                                                       std::string_view comm, uint32_t pid) {
  std::unique_ptr<WindowFiles> out(new WindowFiles(options, comm, pid));
  const time_t now = ::time(nullptr);
  if (!options.output.empty()) {
    auto pattern = NamePattern::parse(options.output, "-o");
    if (!pattern) return tl::unexpected<Error>(pattern.error());
    out->profile_pattern_ = std::move(*pattern);
  }
  const std::string directory = out->profile_pattern_ ? out->profile_pattern_->directory() : "";
  auto profiles = OutputSeries::open(directory, out->profile_name(now), OutputFile::Existing::kKeep,
                                     owner, "-o");
  if (!profiles) return tl::unexpected<Error>(profiles.error());
  out->series_.push_back(std::move(*profiles));
  if (options.summary_json.empty()) return out;
  auto pattern = NamePattern::parse(options.summary_json, "--summary-json");
  if (!pattern) return tl::unexpected<Error>(pattern.error());
  auto summaries = OutputSeries::open(
      pattern->directory(), pattern->name_at(now),
      pattern->has_time() ? OutputFile::Existing::kKeep : OutputFile::Existing::kReplace, owner,
      "--summary-json");
  if (!summaries) return tl::unexpected<Error>(summaries.error());
  if (summaries->is_same_directory(out->series_[0]) &&
      pattern->name_at(now) == out->profile_name(now))
    return tl::unexpected<Error>(same_files());
  out->summary_pattern_ = std::move(*pattern);
  out->series_.push_back(std::move(*summaries));
  return out;
}

Status WindowFiles::start_deputy() {
  std::vector<OutputSeries*> series;
  for (OutputSeries& one : series_) series.push_back(&one);
  auto deputy = Deputy::start_writer(series);
  if (!deputy) return tl::unexpected<Error>(deputy.error());
  deputy_.emplace(std::move(*deputy));
  return {};
}

std::string WindowFiles::profile_name(time_t when) const {
  return profile_pattern_ ? profile_pattern_->name_at(when)
                          : default_output_name(comm_, pid_, when);
}

// On the writer's thread.
Result<std::string> WindowFiles::write(WindowWriter::Series series, const std::string& name,
                                       std::string_view bytes) {
  return deputy_ ? deputy_->write(series, name, bytes) : series_[series].write(name, bytes);
}

void WindowFiles::tick(Session& session, Console& console, const std::function<void()>& meanwhile,
                       const std::function<void()>& before_forgetting) {
  const uint64_t begin = monotonic_ns();
  if (due_ns_ == 0) due_ns_ = session.started_ns() + length_ns_;
  take(writer_.collect(), console);
  if (begin < due_ns_ || due_ns_ >= last_due_ns(session)) return;
  // The caller's loop goes on meanwhile: a disk that hangs must not hold up Ctrl-C.
  if (writer_.full()) {
    if (late_window_ != run_.windows.ended) ++run_.windows.late;
    late_window_ = run_.windows.ended;
    return;
  }
  // What samples name is mostly read within milliseconds.
  if (begin < due_ns_ + kReadPatienceNs && session.recorder().device_modules().pending()) return;
  session.recorder().device_modules().allow_rereads(kRereadBudgetNs);
  end_window(session, meanwhile, before_forgetting);
}

// --duration 10m --window 1m are ten files: no eleventh one of the last records.
uint64_t WindowFiles::last_due_ns(const Session& session) const {
  if (!options_.duration) return UINT64_MAX;
  return session.started_ns() + static_cast<uint64_t>(options_.duration->count()) -
         std::min(length_ns_ / 2, kShortestLastNs);
}

void WindowFiles::end_window(Session& session, const std::function<void()>& meanwhile,
                             const std::function<void()>& before_forgetting) {
  uint64_t fed = 0;
  const auto feed = [&] {
    session.tick(std::chrono::milliseconds(0));
    if (meanwhile) meanwhile();
    fed = monotonic_ns();
  };
  feed();
  const Recorder::Cut cut = session.cut_window();
  const uint64_t end = fed;
  const std::function<void()> pump = [&] {
    const uint64_t now = monotonic_ns();
    if (now < fed + kDrainNs) return;
    run_.windows.longest_pause_ns = std::max(run_.windows.longest_pause_ns, now - fed);
    feed();
  };
  add_window(session, cut.result, cut.stacks, end, pump);
  pump();
  if (before_forgetting) before_forgetting();
  run_.add_ended(session, cut.result, cut.ended);
  session.forget(cut.ended);
  due_ns_ += length_ns_ * ((end - due_ns_) / length_ns_ + 1);
}

void WindowFiles::add_window(Session& session, const join::JoinResult& result,
                             const join::StackTable& stacks, uint64_t end_ns,
                             const std::function<void()>& pump) {
  const uint64_t start_ns = window_start_ns_ != 0 ? window_start_ns_ : session.started_ns();
  window_start_ns_ = end_ns;
  run_.window = {++run_.windows.ended, unix_of(start_ns), end_ns - start_ns};
  FinishedWindow window;
  window.index = run_.window.index;
  const join::Accounting account = window_accounting(result);
  window.executions = account.received;
  window.gpu_time_ns = account.received_ns;
  join::AssembleStats assembled;
  FedSource source(session.recorder(), pump);
  join::AssembleOptions options;
  options.meanwhile = pump;
  join::Model model = join::assemble(result, stacks, source, &source, options, &assembled);
  session.recorder().device_modules().release_parsed();
  run_.add_window(result, assembled);
  const auto when = static_cast<time_t>(run_.window.start_unix_ns / 1'000'000'000);
  if (result.rows.empty()) {
    ++run_.windows.empty;
  } else {
    model.time_unix_ns = run_.window.start_unix_ns;
    model.duration_ns = static_cast<int64_t>(run_.window.duration_ns);
    model.comments = profile_comments(session, result);
    window.model = std::move(model);
    window.profile_name = profile_name(when);
  }
  if (summary_pattern_) {
    window.summary = json_summary(session, result, "", run_.of_run, &run_);
    window.summary_name = summary_pattern_->name_at(when);
  }
  if (window.model || summary_pattern_) writer_.add(std::move(window));
}

void WindowFiles::take(const std::vector<WindowOutcome>& outcomes, Console& console) {
  using What = WindowOutcome::What;
  for (const WindowOutcome& one : outcomes) {
    if (one.what == What::kWaiting) {
      ++run_.windows.waiting;
    } else if (one.what == What::kWrittenAtLast || one.what == What::kUnwrittenAtLast) {
      --run_.windows.waiting;
    }
    if (one.what == What::kWritten || one.what == What::kWrittenAtLast) {
      ++run_.windows.written;
      last_written_ = one.path;
      trouble_told_.clear();
      console.line("wrote " + one.path + " (" +
                   human_duration(std::chrono::nanoseconds(one.gpu_time_ns)) + " of GPU time in " +
                   grouped(one.executions) + " executions)");
      continue;
    }
    if (one.what == What::kUnwritten || one.what == What::kUnwrittenAtLast) {
      ++run_.windows.unwritten;
      run_.windows.unwritten_executions += one.executions;
      run_.windows.unwritten_gpu_time_ns += one.gpu_time_ns;
      console.line("window " + std::to_string(one.index) + " is lost, " + grouped(one.executions) +
                   " executions: " + one.error);
      continue;
    }
    if (one.what == What::kSummaryFailed) ++run_.windows.summaries_unwritten;
    // A full disk fails every window, each with its own name.
    const std::string trouble = one.error.substr(one.error.find(": ") + 1);
    if (trouble == trouble_told_) continue;
    trouble_told_ = trouble;
    console.line(one.error + (one.what == What::kWaiting
                                  ? "; it is kept, and tried again with the next window"
                                  : ""));
  }
}

bool WindowFiles::finish(Session& session, const join::JoinResult& result, Console& console) {
  add_window(session, result, session.recorder().stacks(), session.ended_ns(), [] {});
  take(writer_.finish(), console);
  return run_.windows.unwritten == 0 && run_.windows.summaries_unwritten == 0;
}

}  // namespace gpuprof::cli
