// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/module_thread.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "daemon/base/clock.h"

namespace gpuprof::cli {
namespace {

// A target may answer each of its page faults just in time: beyond the patience an image must come
// at 1 MB/s at least, which a machine with 25 times its load still does.
constexpr uint64_t kMostNsPerByte = 1000;

}  // namespace

// Lives as long as either side needs it: a thread that was given up may return much later.
struct ModuleThread::Shared {
  explicit Shared(std::shared_ptr<cubin::Store> images) : store(std::move(images)) {}

  const std::shared_ptr<cubin::Store> store;
  // Of the job in work; 0: none.
  std::atomic<uint64_t> started_ns{0}, progress_ns{0}, bytes{0};

  std::mutex mutex;  // of what follows
  std::condition_variable has_job, has_outcome;
  std::deque<ModuleJob> jobs[2];  // for samples, early
  size_t turn = 0;                // whose turn it is, of those
  size_t done_in_turn = 0;
  ModuleJob current;  // no reader: none
  std::vector<ModuleOutcome> outcomes;
  bool stop = false;

  [[nodiscard]] bool has_jobs() const { return !jobs[0].empty() || !jobs[1].empty(); }
  // There is one.
  std::deque<ModuleJob>& next() {
    if (jobs[turn].empty() || (done_in_turn >= kTurn && !jobs[1 - turn].empty())) {
      turn = 1 - turn;
      done_in_turn = 0;
    }
    return jobs[turn];
  }
};

namespace {

// Hands an image on to the store and tells that there is progress.
class StoreSink final : public target::ImageSink {
 public:
  StoreSink(cubin::Store& store, std::atomic<uint64_t>& progress_ns, std::atomic<uint64_t>& bytes)
      : writer_(store), progress_ns_(progress_ns), bytes_(bytes) {}
  void restart() override { writer_.restart(); }
  bool add(std::span<const std::byte> bytes) override {
    progress_ns_.store(monotonic_ns(), std::memory_order_relaxed);
    bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
    return writer_.add(bytes).has_value();
  }
  Result<std::string> finish(uint64_t owner, bool named) { return writer_.finish(owner, named); }

 private:
  cubin::Store::Writer writer_;
  std::atomic<uint64_t>& progress_ns_;
  std::atomic<uint64_t>& bytes_;
};

ModuleOutcome failed(const ModuleJob& job) {
  ModuleOutcome out;
  out.process = job.process;
  out.key = job.key;
  out.is_early = job.is_early;
  out.stuck = true;
  out.failure = target::ModuleFailure::kUnreadable;
  return out;
}

ModuleOutcome carry_out(const ModuleJob& job, StoreSink& sink) {
  ModuleOutcome out;
  out.process = job.process;
  out.key = job.key;
  out.is_early = job.is_early;
  if (job.is_early && !job.reader->lies_in_process_only(job.key)) {
    out.skipped = true;
    return out;
  }
  const uint64_t before = job.reader->bytes_read();
  out.failure = job.reader->read(job.key, sink, job.most_bytes);
  out.bytes = job.reader->bytes_read() - before;
  if (out.failure != target::ModuleFailure::kNone) return out;
  auto sha256 = sink.finish(job.owner, !job.is_early);
  if (sha256) {
    out.sha256 = std::move(*sha256);
  } else {
    out.failure = target::ModuleFailure::kTooLarge;
  }
  return out;
}

}  // namespace

ModuleThread::ModuleThread(std::shared_ptr<cubin::Store> store, uint64_t patience_ns)
    : store_(std::move(store)), patience_ns_(patience_ns) {}

// The thread is not joined: it may be the one that never returns.
ModuleThread::~ModuleThread() {
  if (!shared_) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->stop = true;
  for (auto& jobs : shared_->jobs) jobs.clear();
  shared_->has_job.notify_all();
}

void ModuleThread::work(const std::shared_ptr<Shared>& shared) {
  StoreSink sink(*shared->store, shared->progress_ns, shared->bytes);
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->has_job.wait(lock, [&] { return shared->stop || shared->has_jobs(); });
    if (shared->stop) return;
    std::deque<ModuleJob>& jobs = shared->next();
    ++shared->done_in_turn;
    shared->current = std::move(jobs.front());
    jobs.pop_front();
    const ModuleJob job = shared->current;
    const uint64_t started_ns = monotonic_ns();
    shared->bytes.store(0, std::memory_order_relaxed);
    shared->started_ns.store(started_ns, std::memory_order_relaxed);
    shared->progress_ns.store(started_ns, std::memory_order_relaxed);
    lock.unlock();
    ModuleOutcome outcome = carry_out(job, sink);
    lock.lock();
    if (!shared->has_jobs() || shared->next().front().reader != job.reader)
      job.reader->forget_table();
    shared->progress_ns.store(0, std::memory_order_relaxed);
    shared->current = {};
    if (shared->stop) return;  // given up: it was told as unreadable
    shared->outcomes.push_back(std::move(outcome));
    shared->has_outcome.notify_all();
  }
}

// False: there is no memory or no process left for a thread.
bool ModuleThread::start() {
  shared_ = std::make_shared<Shared>(store_);
  try {
    std::thread thread([shared = shared_] {
      ::pthread_setname_np(::pthread_self(), "gpu-prof-module");
      try {
        work(shared);
      } catch (const std::bad_alloc&) {
        // Whoever waits for the image gives it up, as one that does not come.
      }
    });
    thread.detach();
  } catch (const std::system_error&) {
    shared_.reset();
    return false;
  }
  return true;
}

void ModuleThread::add(ModuleJob job) {
  if (stuck_ >= kMaxStuck || (!shared_ && !start())) {
    refused_.push_back(failed(job));
    return;
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->jobs[job.is_early ? 1 : 0].push_back(std::move(job));
  shared_->has_job.notify_one();
}

// Under the lock of the thread that is stuck.
void ModuleThread::give_up(std::vector<ModuleOutcome>& out) {
  Shared& old = *shared_;
  old.stop = true;
  ++stuck_;
  const ProcessId culprit = old.current.process;
  out.push_back(failed(old.current));
  std::deque<ModuleJob> rest[2];
  for (size_t i = 0; i < 2; ++i) {
    for (ModuleJob& job : old.jobs[i]) {
      if (job.process.process() == culprit.process() || stuck_ >= kMaxStuck) {
        out.push_back(failed(job));
      } else {
        rest[i].push_back(std::move(job));
      }
    }
    old.jobs[i].clear();
  }
  shared_.reset();
  if (stuck_ >= kMaxStuck) return;
  if (!start()) {
    for (const auto& jobs : rest) {
      for (const ModuleJob& job : jobs) out.push_back(failed(job));
    }
    return;
  }
  const std::lock_guard lock(shared_->mutex);
  for (size_t i = 0; i < 2; ++i) shared_->jobs[i] = std::move(rest[i]);
  shared_->has_job.notify_one();
}

std::vector<ModuleOutcome> ModuleThread::collect(uint64_t now, uint64_t wait_ns) {
  std::vector<ModuleOutcome> out = std::exchange(refused_, {});
  const std::shared_ptr<Shared> shared = shared_;
  if (!shared) return out;
  std::unique_lock lock(shared->mutex);
  if (wait_ns != 0)
    shared->has_outcome.wait_for(lock, std::chrono::nanoseconds(wait_ns),
                                 [&] { return !shared->outcomes.empty(); });
  std::move(shared->outcomes.begin(), shared->outcomes.end(), std::back_inserter(out));
  shared->outcomes.clear();
  const uint64_t progress = shared->progress_ns.load(std::memory_order_relaxed);
  if (progress == 0) return out;
  const uint64_t started = shared->started_ns.load(std::memory_order_relaxed);
  const uint64_t allowed =
      patience_ns_ + shared->bytes.load(std::memory_order_relaxed) * kMostNsPerByte;
  const bool idle = now > progress && now - progress > patience_ns_;
  const bool slow = now > started && now - started > allowed;
  if (idle || slow) give_up(out);
  return out;
}

}  // namespace gpuprof::cli
