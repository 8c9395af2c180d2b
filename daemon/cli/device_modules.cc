// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/device_modules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/cli/session.h"

namespace gpuprof::cli {
namespace {

using target::ModuleFailure;

constexpr const char* kTooManyKeys = "too-many-keys";

// May another try end better? The table's entry may be half-written, the image on its way.
bool may_heal(ModuleFailure failure) {
  return failure == ModuleFailure::kForeignKey || failure == ModuleFailure::kHashMismatch ||
         failure == ModuleFailure::kUnreadable;
}

}  // namespace

DeviceModules::DeviceModules(const cubin::StoreLimits& limits, uint64_t patience_ns)
    : store_(std::make_shared<cubin::Store>(limits)), thread_(store_, patience_ns) {}

void DeviceModules::add_process(ProcessId id, UniqueFd memfd) {
  if (!enabled_) return;
  Process& process = processes_[id];
  if (process.reader || process.exited || process.stuck) return;
  process.reader = std::make_shared<target::ModuleReader>(std::move(memfd), id);
  hand_out(id, process, monotonic_ns());
}

DeviceModules::Key* DeviceModules::key_of(Process& process, uint64_t key) {
  const auto it = process.keys.find(key);
  if (it != process.keys.end()) return &it->second;
  const size_t limit =
      process.keys.size() < kReservedKeys ? 2 * kMaxKeysInAll : size_t{kMaxKeysInAll};
  if (process.keys.size() >= kMaxKeys || keys_ >= limit) return nullptr;
  ++keys_;
  return &process.keys[key];
}

void DeviceModules::want(ProcessId id, uint64_t key) {
  if (!enabled_ || (has_last_ && last_key_ == key && last_process_ == id)) return;
  has_last_ = true;
  last_process_ = id;
  last_key_ = key;
  Process& process = processes_[id];
  const bool known = process.keys.contains(key);
  Key* const entry = key_of(process, key);
  if (entry == nullptr) {
    ++process.counts.keys_refused;
    return;
  }
  if (entry->sampled) return;
  entry->sampled = true;
  ++process.counts.sampled;
  if (known && entry->state != State::kFailed) return;
  // Read early it may have failed for want of a budget that a sample is not held to.
  if (known) {
    entry->state = State::kWaiting;
    entry->tries = 0;
  }
  process.waiting.push_front(key);
  hand_out(id, process, monotonic_ns());
}

void DeviceModules::note(ProcessId id, const gpuprof_module_v1& module) {
  if (!enabled_) return;
  Process& process = processes_[id];
  if (process.exited || process.stuck) return;
  if (const auto known = process.keys.find(module.hash); known != process.keys.end()) {
    // The same image again, after it went before it could be read.
    Key& entry = known->second;
    const bool again = module.event == GPUPROF_MODULE_LOADED && entry.state == State::kFailed &&
                       entry.failure != ModuleFailure::kTooLarge;
    if (!again) return;
    entry.state = State::kWaiting;
    entry.tries = 0;
    process.waiting.push_back(module.hash);
    hand_out(id, process, monotonic_ns());
    return;
  }
  if (module.size_bytes == 0 || module.size_bytes > kEarlyBytes - process.early_bytes ||
      module.size_bytes > kEarlyBytesInAll - early_bytes_)
    return;
  Key* const entry = key_of(process, module.hash);
  if (entry == nullptr) return;
  entry->early_bytes = module.size_bytes;
  process.early_bytes += module.size_bytes;
  early_bytes_ += module.size_bytes;
  // What goes comes before what has just come.
  if (module.event == GPUPROF_MODULE_UNLOADING) {
    process.waiting.push_front(module.hash);
  } else {
    process.waiting.push_back(module.hash);
  }
  hand_out(id, process, monotonic_ns());
}

void DeviceModules::memory_gone(ProcessId id) {
  const auto it = processes_.find(id);
  if (it != processes_.end() && it->second.reader) it->second.reader->process_gone();
}

void DeviceModules::process_exited(ProcessId id) {
  const auto it = processes_.find(id);
  if (it == processes_.end()) return;
  it->second.exited = true;
  if (it->second.reader) it->second.reader->process_gone();
  hand_out(id, it->second, monotonic_ns());
  // Without a reader nothing is read any more, and nobody else gives the budget back.
  if (!it->second.reader) early_bytes_ -= std::exchange(it->second.early_bytes, 0);
  close_if_done(it->second);
}

void DeviceModules::hand_out(ProcessId id, Process& process, uint64_t now_ns) {
  if (!process.reader && !process.exited && !process.stuck) return;
  for (size_t left = process.waiting.size(); left > 0 && process.in_flight < kMaxInFlight; --left) {
    const uint64_t key = process.waiting.front();
    process.waiting.pop_front();
    Key& entry = process.keys[key];
    if (!process.reader) {  // or it ended before its memfd was found
      entry.state = State::kFailed;
      entry.failure = process.stuck ? ModuleFailure::kUnreadable : ModuleFailure::kGone;
      continue;
    }
    if (now_ns < entry.next_try_ns && !process.exited) {
      process.waiting.push_back(key);
      continue;
    }
    entry.state = State::kInFlight;
    ++entry.tries;
    ++process.in_flight;
    thread_.add({id, process.reader, key, !entry.sampled}, entry.sampled);
  }
}

void DeviceModules::take(const ModuleOutcome& outcome, uint64_t now_ns) {
  const auto it = processes_.find(outcome.process);
  if (it == processes_.end()) return;
  Process& process = it->second;
  --process.in_flight;
  if (outcome.stuck && !std::exchange(process.stuck, true)) close(process);
  Key& entry = process.keys[outcome.key];
  if (outcome.skipped) {
    const uint64_t unused = std::exchange(entry.early_bytes, 0);
    if (process.reader) {  // else the whole budget was given back
      process.early_bytes -= unused;
      early_bytes_ -= unused;
    }
    if (entry.sampled) {  // meanwhile
      entry.state = State::kWaiting;
      process.waiting.push_front(outcome.key);
    } else {
      process.keys.erase(outcome.key);
      --keys_;
    }
    return;
  }
  if (outcome.failure == ModuleFailure::kNone) {
    entry.state = State::kRead;
    entry.sha256 = outcome.sha256;
    return;
  }
  entry.failure = outcome.failure;
  if (may_heal(outcome.failure) && !process.stuck && entry.tries < kMaxTries) {
    entry.state = State::kWaiting;
    entry.next_try_ns = now_ns + kRetryNs;
    ++process.counts.retries;
    process.waiting.push_back(outcome.key);
  } else {
    entry.state = State::kFailed;
  }
}

// Thousands of processes may end before the profile is written, and the memfd is the last holder of
// their shims' pages.
void DeviceModules::close_if_done(Process& process) {
  if (!process.exited || !process.reader || process.in_flight != 0 || !process.waiting.empty())
    return;
  close(process);
}

void DeviceModules::close(Process& process) {
  process.counts.in_table = process.reader->claimed();
  process.counts.bytes_read = process.reader->bytes_read();
  process.reader.reset();
  early_bytes_ -= std::exchange(process.early_bytes, 0);
}

void DeviceModules::advance(uint64_t now_ns) {
  for (const ModuleOutcome& outcome : thread_.collect(now_ns)) take(outcome, now_ns);
  for (auto& [id, process] : processes_) {
    if (!process.waiting.empty()) hand_out(id, process, now_ns);
    close_if_done(process);
  }
}

bool DeviceModules::pending() const {
  return std::ranges::any_of(processes_, [](const auto& entry) {
    const Process& process = entry.second;
    return process.in_flight != 0 || (!process.waiting.empty() && process.reader);
  });
}

void DeviceModules::settle(std::chrono::milliseconds patience, const std::function<bool()>& hurry) {
  constexpr uint64_t kWaitNs = 20'000'000;
  const uint64_t deadline = monotonic_ns() + static_cast<uint64_t>(patience.count()) * 1'000'000;
  for (;;) {
    const uint64_t now = monotonic_ns();
    advance(now);
    if (!pending() || now >= deadline || hurry()) return;
    for (const ModuleOutcome& outcome : thread_.collect(now, kWaitNs)) take(outcome, now);
  }
}

const join::DeviceModule& DeviceModules::module(ProcessId id, uint64_t key) {
  current_ = {};
  const auto process = processes_.find(id);
  if (process == processes_.end()) {
    current_.missing = target::module_failure_name(ModuleFailure::kUnreadable);
    return current_;
  }
  const auto it = process->second.keys.find(key);
  if (it == process->second.keys.end()) {
    current_.missing = kTooManyKeys;
    return current_;
  }
  const Key& entry = it->second;
  if (entry.state != State::kRead) {
    // Not read in time: its process was not found, or the end came first.
    const ModuleFailure why =
        entry.failure == ModuleFailure::kNone ? ModuleFailure::kUnreadable : entry.failure;
    current_.missing = target::module_failure_name(why);
    return current_;
  }
  current_.sha256 = entry.sha256;
  auto image = store_->image(entry.sha256);
  if (image) {
    current_.image = std::move(*image);
  } else {
    current_.missing = image.error().code == Code::kNotFound ? "evicted" : "malformed";
  }
  return current_;
}

std::vector<std::string> DeviceModules::sampled() const {
  std::set<std::string> out;
  for (const auto& [id, process] : processes_) {
    for (const auto& [key, entry] : process.keys) {
      if (entry.sampled && entry.state == State::kRead) out.insert(entry.sha256);
    }
  }
  return {out.begin(), out.end()};
}

ModuleCounts DeviceModules::counts(ProcessId id) const {
  const auto it = processes_.find(id);
  if (it == processes_.end()) return {};
  const Process& process = it->second;
  ModuleCounts out = process.counts;
  if (process.reader) {
    out.in_table = process.reader->claimed();
    out.bytes_read = process.reader->bytes_read();
  }
  for (const auto& [key, entry] : process.keys) {
    if (!entry.sampled) {
      out.read_early += entry.state == State::kRead ? 1 : 0;
    } else if (entry.state == State::kRead) {
      ++out.read;
    } else if (entry.state == State::kFailed) {
      ++out.failed[static_cast<size_t>(entry.failure)];
    } else {
      ++out.pending;
    }
  }
  return out;
}

}  // namespace gpuprof::cli
