// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/window_writer.h"

#include <pthread.h>

#include <new>
#include <utility>

#include "daemon/cli/report.h"
#include "daemon/pprof/writer.h"

namespace gpuprof::cli {

WindowWriter::~WindowWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
}

bool WindowWriter::full() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() >= kMaxQueued;
}

void WindowWriter::add(FinishedWindow window) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(window));
  }
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::jthread([this] { work(); });
}

std::vector<WindowOutcome> WindowWriter::collect() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

std::vector<WindowOutcome> WindowWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  return collect();
}

void WindowWriter::work() {
  ::pthread_setname_np(::pthread_self(), "gpu-prof-writer");
  for (;;) {
    FinishedWindow window;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) break;
      window = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      write_window(window);
    } catch (const std::bad_alloc&) {
      tell(WindowOutcome::What::kUnwritten, window, "", "out of memory");
    }
  }
  try_waiting(true);
}

void WindowWriter::tell(WindowOutcome::What what, const FinishedWindow& window, std::string path,
                        std::string error) {
  const std::lock_guard lock(mutex_);
  outcomes_.push_back({what, window.index, window.executions, window.gpu_time_ns, std::move(path),
                       std::move(error)});
}

void WindowWriter::write_window(FinishedWindow& window) {
  try_waiting(false);
  if (!window.model) {
    write_summary(window, "");
    return;
  }
  auto bytes = pprof::serialize(*window.model);
  window.model.reset();
  if (!bytes) {
    tell(WindowOutcome::What::kUnwritten, window, "", bytes.error().message);
    write_summary(window, "");
    return;
  }
  Waiting made{std::move(window), std::move(*bytes)};
  auto path = write_(kProfiles, made.window.profile_name, made.bytes);
  if (!path) {
    keep(std::move(made), path.error().message);
    return;
  }
  tell(WindowOutcome::What::kWritten, made.window, *path, "");
  write_summary(made.window, *path);
}

void WindowWriter::keep(Waiting made, const std::string& error) {
  tell(WindowOutcome::What::kWaiting, made.window, "", error);
  waiting_bytes_ += made.bytes.size();
  waiting_.push_back(std::move(made));
  while (waiting_.size() > kMaxWaiting || waiting_bytes_ > kMaxWaitingBytes) {
    const Waiting& oldest = waiting_.front();
    tell(WindowOutcome::What::kUnwrittenAtLast, oldest.window, "", error);
    write_summary(oldest.window, "");
    waiting_bytes_ -= oldest.bytes.size();
    waiting_.pop_front();
  }
}

void WindowWriter::try_waiting(bool is_last) {
  for (size_t left = waiting_.size(); left > 0; --left) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    auto path = write_(kProfiles, next.window.profile_name, next.bytes);
    if (!path && !is_last) {
      waiting_.push_back(std::move(next));  // all of them once, in their order
      continue;
    }
    waiting_bytes_ -= next.bytes.size();
    if (path) {
      tell(WindowOutcome::What::kWrittenAtLast, next.window, *path, "");
    } else {
      tell(WindowOutcome::What::kUnwrittenAtLast, next.window, "", path.error().message);
    }
    write_summary(next.window, path ? *path : "");
  }
}

void WindowWriter::write_summary(const FinishedWindow& window, const std::string& path) {
  if (window.summary.empty()) return;
  auto written = write_(kSummaries, window.summary_name, name_profile(window.summary, path));
  if (!written) tell(WindowOutcome::What::kSummaryFailed, window, "", written.error().message);
}

}  // namespace gpuprof::cli
