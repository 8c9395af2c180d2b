// SPDX-License-Identifier: Apache-2.0
// The fake GPU: in-order streams on which work starts when the stream is free and lasts as long as
// it was told to. Times are CUPTI's clock, so a record is complete once that clock has passed its
// end.
#include <ctime>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {
namespace {

constexpr uint64_t kLaunchLatencyNs = 2000;
constexpr uint64_t kGapNs = 500;

void raise_to(std::atomic<uint64_t>& mark, uint64_t value) {
  uint64_t seen = mark.load(std::memory_order_relaxed);
  while (seen < value && !mark.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

bool serialized(const Context* context) {
  return (interface().serialized.load(std::memory_order_relaxed) >> (context->id % 64) & 1) != 0;
}

/// Serialized PC sampling: a kernel starts when the one before has ended, whatever its stream, and
/// its launch returns when it has ended.
void run_alone(Context* context, Stream* stream, Execution& work, uint64_t duration_ns) {
  std::lock_guard lock(context->serial_mutex);
  const uint64_t now = fake_now();
  uint64_t start = now + kLaunchLatencyNs;
  if (context->serial_end_ns + kGapNs > start) start = context->serial_end_ns + kGapNs;
  {
    std::lock_guard in_order(stream->mutex);
    if (stream->last_end_ns + kGapNs > start) start = stream->last_end_ns + kGapNs;
    work.start_ns = start;
    work.end_ns = start + duration_ns;
    stream->last_end_ns = work.end_ns;
  }
  context->serial_end_ns = work.end_ns;
  raise_to(driver().last_gpu_end_ns, work.end_ns);
}

/// Assigns times. In instant mode work overlaps and never waits: the launch rate is the only limit.
uint64_t schedule(Stream* stream, Execution& work, uint64_t duration_ns) {
  const uint64_t now = fake_now();
  if (setting(Key::kInstant) != 0) {
    work.start_ns = now;
    work.end_ns = now + duration_ns;
    return 0;
  }
  std::lock_guard lock(stream->mutex);
  const uint64_t free_at = stream->last_end_ns + kGapNs;
  work.start_ns = now + kLaunchLatencyNs > free_at ? now + kLaunchLatencyNs : free_at;
  work.end_ns = work.start_ns + duration_ns;
  stream->last_end_ns = work.end_ns;
  raise_to(driver().last_gpu_end_ns, work.end_ns);
  // A real launch blocks when the queue is full.
  const uint64_t limit = now + setting(Key::kQueueNs);
  return work.start_ns > limit ? work.start_ns - limit : 0;
}

}  // namespace

void execute(Context* context, Stream* stream, Execution work, const Function* function,
             uint64_t duration_ns, bool in_graph) {
  work.device_id = context->device;
  work.context_id = context->id;
  work.stream_id = stream->id;
  if (!in_graph) {
    work.graph_id = 0;
    work.graph_node = 0;
  }
  const bool alone = work.code != nullptr && serialized(context);
  if (alone) run_alone(context, stream, work, duration_ns);
  const uint64_t wait_ns = alone ? 0 : schedule(stream, work, duration_ns);
  const CuptiHooks* hooks = interface().hooks.load(std::memory_order_acquire);
  const bool recorded = hooks != nullptr && hooks->execution(work);
  count_truth(work, function, recorded);
  if (alone) wait_gpu(work.end_ns);
  if (wait_ns != 0) {
    timespec pause{static_cast<time_t>(wait_ns / 1'000'000'000u),
                   static_cast<long>(wait_ns % 1'000'000'000u)};
    nanosleep(&pause, nullptr);
  }
}

void wait_gpu(uint64_t until_ns) {
  for (;;) {
    const uint64_t now = fake_now();
    if (now >= until_ns) return;
    const uint64_t left = until_ns - now < 1'000'000 ? until_ns - now : 1'000'000;
    timespec pause{0, static_cast<long>(left)};
    nanosleep(&pause, nullptr);
  }
}

Stream* stream_of(Context* context, CUstream stream, bool per_thread) {
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  if (handle == 2 || (handle == 0 && per_thread)) return &context->per_thread_stream;
  if (handle <= 1) return &context->default_stream;
  return reinterpret_cast<Stream*>(stream);
}

}  // namespace fakecuda

FAKE_EXPORT uint32_t fake_cuda_serialized(void) {
  const fakecuda::Interface& state = fakecuda::interface();
  return state.serialized.load() != 0 ? state.serialized_windows.load() : 0;
}

FAKE_EXPORT void fake_cuda_drain(void) {
  fakecuda::wait_gpu(fakecuda::driver().last_gpu_end_ns.load());
}
