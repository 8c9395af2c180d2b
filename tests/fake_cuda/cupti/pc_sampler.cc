// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/cupti/pc_sampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/fake_cuda/cupti/gpu_lock.h"
#include "tests/fake_cuda/cupti/pc_truth.h"
#include "tests/fake_cuda/cupti/state.h"
#include "tests/fake_cuda/pc_spread.h"

namespace fakecuda {
namespace {

constexpr uint64_t kBytesPerSample = 4;  // 512 MB last for 0.5 s of a busy H200 at period 10
constexpr uint64_t kNsPerMs = 1'000'000;
constexpr size_t kPendingMost = 1 << 20;

bool blackwell() { return driver_interface()->setting(Key::kComputeCapability) / 10 == 12; }

}  // namespace

std::mutex& pc_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

PcTotals& pc_totals() {
  static auto* totals = new PcTotals;
  return *totals;
}

std::vector<PcSampler*>& pc_samplers() {
  static auto* all = new std::vector<PcSampler*>;
  return *all;
}

PcSampler* find_pc_sampler(CUcontext context) {
  for (PcSampler* sampler : pc_samplers()) {
    if (sampler->context() == context) return sampler;
  }
  return nullptr;
}

PcSampler& pc_sampler(CUcontext context) {
  if (PcSampler* known = find_pc_sampler(context)) return *known;
  const Interface* driver = driver_interface();
  auto* fresh = new PcSampler(context, driver->context_id(context), driver->device_id(context));
  pc_samplers().push_back(fresh);
  return *fresh;
}

void PcSampler::enable(uint64_t now) {
  enabled = true;
  started = wedged = running = stop_tried = false;
  enabled_ns_ = now;
  config = {};
  config.period = static_cast<uint32_t>(driver_interface()->setting(Key::kPcDefaultPeriod));
  update_serialized();
}

void PcSampler::disable() {
  for (const auto& [key, pc] : ready) {
    for (const auto& share : pc.shares) pc_totals().lost_disable += share.samples;
  }
  ready.clear();
  pending_.clear();
  cursors_.clear();
  enabled = started = false;
  release_gpu(device_);
  undrained_ = total_samples = dropped_samples = non_user_samples = 0;
  update_serialized();
}

void PcSampler::configured(uint64_t now) {
  pending_.clear();  // what ran before is sampled at a period that nobody asked for
  enabled_ns_ = now;
  update_serialized();
}

void PcSampler::start(uint64_t now) {
  started = true;
  stop_tried = false;
  enabled_ns_ = now;
  ++range;
  update_serialized();
}

void PcSampler::stop(uint64_t now) {
  decode(now, true);
  pending_.clear();
  started = false;
  update_serialized();
}

void PcSampler::update_serialized() const {
  const uint64_t bit = uint64_t{1} << (context_id_ % 64);
  auto& word = driver_interface()->serialized;
  const bool on = active() && config.mode == CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED;
  const uint64_t before = on ? word.fetch_or(bit) : word.fetch_and(~bit);
  if (on && (before & bit) == 0) driver_interface()->serialized_windows.fetch_add(1);
}

/// Not given back by a Stop: how soon another process may start then was not measured.
bool PcSampler::take_gpu() {
  if (acquire_gpu(device_)) return true;
  driver_interface()->violation("second-sampler", "GPU %u is sampled by another process", device_);
  cupti().deaf.store(true);
  return false;
}

void PcSampler::ran(const Execution& work, const char* label, bool instant) {
  running = true;
  if (!active() || wedged) return;
  if (!config.start_stop && !take_gpu()) return;
  if (work.code == nullptr && work.kind != CUPTI_ACTIVITY_KIND_MEMSET) return;
  const bool serialized = config.mode == CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED;
  if (serialized && work.graph_id != 0 && driver_interface()->setting(Key::kGraphPcData) == 0) {
    ++pc_totals().graph_skipped;
    return;
  }
  if (pending_.size() >= kPendingMost) return overflow();
  const uint64_t end = instant ? work.start_ns : work.end_ns;
  const uint64_t start = instant ? work.start_ns - (work.end_ns - work.start_ns) : work.start_ns;
  pending_.push_back({work.code, label, start, end, serialized ? work.correlation : 0});
}

void PcSampler::decode(uint64_t now, bool everything) {
  uint64_t until = now;
  if (!everything) {
    const uint64_t span = std::max<uint64_t>(config.sleep_ms, 1) * kNsPerMs;
    const uint64_t first = enabled_ns_ + span + span / 2;
    if (now < first) return;
    until = first + (now - first) / span * span;
  }
  size_t kept = 0;
  for (Pending& work : pending_) {
    const uint64_t to = std::min(work.end_ns, until);
    if (work.start_ns < to) {
      sample(work, work.start_ns, to);
      work.start_ns = to;
    }
    if (work.start_ns < work.end_ns) pending_[kept++] = work;
  }
  pending_.resize(kept);
  if (undrained_ * kBytesPerSample > config.hardware_bytes) overflow();
}

uint64_t PcSampler::period_cycles() const { return uint64_t{1} << config.period; }

/// Of recorded code, in the first `ns` of its time.
uint64_t PcSampler::recorded_samples(const KernelCode& code, uint64_t ns) const {
  const auto wide = static_cast<unsigned __int128>(ns) * code.total_weight << code.at_period;
  return static_cast<uint64_t>(wide /
                               (static_cast<unsigned __int128>(code.per_ns) << config.period));
}

void PcSampler::sample(const Pending& work, uint64_t from_ns, uint64_t to_ns) {
  if (blackwell() && config.period_set) return;  // "silently broke sampling"
  const Interface* driver = driver_interface();
  Cursor& cursor = cursors_[work.code];
  uint64_t samples = 0;
  if (work.code != nullptr && work.code->per_ns != 0) {
    samples = recorded_samples(*work.code, cursor.ns + to_ns - from_ns) -
              recorded_samples(*work.code, cursor.ns);
    cursor.ns += to_ns - from_ns;
  } else {
    cursor.cycles +=
        (to_ns - from_ns) * driver->setting(Key::kClockKhz) * driver->setting(Key::kSms);
    const uint64_t tick = period_cycles() * 1'000'000;
    samples = cursor.cycles / tick;
    cursor.cycles %= tick;
  }
  undrained_ += samples;
  total_samples += samples;
  PcTotals& totals = pc_totals();
  if (work.code == nullptr) {
    non_user_samples += samples;
    totals.non_user += samples;
    return;
  }
  totals.sampled += samples;
  if (const uint64_t every = driver->setting(Key::kPcDropEvery)) {
    const uint64_t lost = (totals.sampled / every) - ((totals.sampled - samples) / every);
    dropped_samples += lost;
    totals.dropped += lost;
    samples -= lost;
  }
  distribute(work, cursor.position, samples);
  cursor.position += samples;
}

void PcSampler::distribute(const Pending& work, uint64_t position, uint64_t samples) {
  const KernelCode& code = *work.code;
  const auto deliver = [&](const SampledPc& pc, uint64_t all, uint64_t not_issued) {
    PcTruth& truth = pc_truth({work.label, &code, pc.offset, pc.stall, config.mode, device_});
    truth.sampled += all;
    ReadyPc& record = ready[{&code, work.correlation, pc.offset}];
    record.counts[kSampleCount] += static_cast<uint32_t>(all);
    record.counts[place_of_stall(pc.stall)] += static_cast<uint32_t>(all);
    record.counts[place_of_not_issued(pc.stall)] += static_cast<uint32_t>(not_issued);
    if (!record.shares.empty() && record.shares.back().truth == &truth) {
      record.shares.back().samples += all;
      record.shares.back().not_issued += not_issued;
    } else {
      record.shares.push_back({&truth, all, not_issued});
    }
  };
  PcSpread(code).spread(position, samples, deliver);
}

void PcSampler::overflow() {
  wedged = true;
  ++pc_totals().oom;
  for (const auto& [key, pc] : ready) {
    for (const auto& share : pc.shares) pc_totals().lost_oom += share.samples;
  }
  ready.clear();
  pending_.clear();
}

size_t PcSampler::take(uint8_t* records, size_t stride, size_t most) {
  size_t taken = 0;
  for (auto at = ready.begin(); at != ready.end() && taken < most; ++taken) {
    const auto& [key, pc] = *at;
    CUpti_PCSamplingPCData record{};
    memcpy(&record, records + taken * stride, stride);
    record.cubinCrc = key.code->cubin_crc;
    record.pcOffset = key.offset;
    record.functionIndex = key.code->function_index;
    record.functionName = const_cast<char*>(key.code->name);
    record.correlationId = key.correlation;
    record.stallReasonCount = 0;
    for (uint32_t place = 0; place < kReasonCount; ++place) {
      if (pc.counts[place] == 0 || (config.reasons >> place & 1) == 0) continue;
      record.stallReason[record.stallReasonCount++] = {stall_index(place, device_),
                                                       pc.counts[place]};
    }
    memcpy(records + taken * stride, &record, stride);
    for (const auto& share : pc.shares) {
      share.truth->delivered += share.samples;
      share.truth->not_issued += share.not_issued;
      pc_totals().delivered += share.samples;
    }
    at = ready.erase(at);
  }
  if (ready.empty()) undrained_ = 0;
  return taken;
}

uint64_t PcSampler::undelivered(uint32_t module_id) const {
  uint64_t samples = 0;
  for (const auto& [key, pc] : ready) {
    if (key.code->module_id == module_id) samples += pc.counts[kSampleCount];
  }
  return samples;
}

uint64_t PcSampler::merge(uint32_t module_id, const KernelCode* heir) {
  uint64_t samples = 0;
  std::map<PcKey, ReadyPc> kept;
  for (auto& [key, pc] : ready) {
    if (key.code->module_id != module_id) {
      kept[key] = std::move(pc);
      continue;
    }
    samples += pc.counts[kSampleCount];
    auto* merged = new KernelCode(*key.code);
    merged->module_id = heir->module_id;
    merged->cubin_crc = heir->cubin_crc;
    kept[{merged, key.correlation, key.offset}] = std::move(pc);
  }
  ready = std::move(kept);
  pc_totals().merged += samples;
  return samples;
}

}  // namespace fakecuda
