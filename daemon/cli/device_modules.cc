// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/device_modules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/base/clock.h"

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

bool DeviceModules::Process::is_waiting() const {
  return !retries.empty() ||
         std::ranges::any_of(lines, [](const auto& line) { return !line.empty(); });
}

DeviceModules::Process& DeviceModules::process_of(ProcessId id) {
  Process& process = processes_[id];
  if (process.owner == 0) process.owner = ++owners_;
  return process;
}

void DeviceModules::add_process(ProcessId id, UniqueFd memfd) {
  if (!enabled_) return;
  Process& process = process_of(id);
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

// Sets aside what reading `entry` early may cost. False: that is not there.
bool DeviceModules::reserve(Process& process, Key& entry) {
  const uint64_t bytes = entry.announced_bytes;
  if (bytes == 0 || bytes > kEarlyBytes - process.early_bytes ||
      bytes > kEarlyBytesInAll - early_bytes_)
    return false;
  entry.reserved_bytes = bytes;
  process.early_bytes += bytes;
  early_bytes_ += bytes;
  return true;
}

// Gives back what was not read.
void DeviceModules::settle_reserve(Process& process, Key& entry, uint64_t used) {
  const uint64_t reserved = std::exchange(entry.reserved_bytes, 0);
  if (!process.reader) return;  // then the whole budget was given back
  const uint64_t unused = reserved - std::min(reserved, used);
  process.early_bytes -= unused;
  early_bytes_ -= unused;
}

void DeviceModules::enqueue(Process& process, uint64_t key, Key& entry, Line line) {
  entry.state = State::kWaiting;
  entry.line = line;
  (line == kRetry ? process.retries : process.lines[line]).push_back(key);
}

void DeviceModules::want(ProcessId id, uint64_t key) {
  if (!enabled_ || (has_last_ && last_key_ == key && last_process_ == id)) return;
  has_last_ = true;
  last_process_ = id;
  last_key_ = key;
  Process& process = process_of(id);
  const bool known = process.keys.contains(key);
  Key* const entry = key_of(process, key);
  if (entry == nullptr) {
    ++process.counts.keys_refused;
    return;
  }
  if (entry->sampled) return;
  entry->sampled = true;
  ++process.counts.sampled;
  if (known && entry->state == State::kRead) store_->name(entry->sha256, process.owner);
  if (known && (entry->state == State::kRead || entry->state == State::kInFlight)) return;
  if (known && entry->state == State::kWaiting && entry->line == kRetry) return;
  // It no longer waits in another line, nor did it fail for want of a budget that a sample is not
  // held to.
  settle_reserve(process, *entry, 0);
  entry->tries = 0;
  enqueue(process, key, *entry, kSampled);
  hand_out(id, process, monotonic_ns());
}

void DeviceModules::note(ProcessId id, const gpuprof_module_v1& module) {
  if (!enabled_) return;
  Process& process = process_of(id);
  if (process.exited || process.stuck) return;
  const bool known = process.keys.contains(module.hash);
  Key* const entry = key_of(process, module.hash);
  if (entry == nullptr) return;
  if (known) {
    // The same image again, after it went before it could be read?
    if (module.event != GPUPROF_MODULE_LOADED || entry->state != State::kFailed ||
        entry->failure == ModuleFailure::kTooLarge)
      return;
  }
  entry->announced_bytes = module.size_bytes;
  if (!entry->sampled && !reserve(process, *entry)) {
    if (known) return;
    process.keys.erase(module.hash);
    --keys_;
    return;
  }
  entry->tries = 0;
  const Line early = module.event == GPUPROF_MODULE_UNLOADING ? kUnloading : kLoaded;
  enqueue(process, module.hash, *entry, entry->sampled ? kSampled : early);
  hand_out(id, process, monotonic_ns());
}

void DeviceModules::memory_gone(ProcessId id) {
  const auto it = processes_.find(id);
  if (it == processes_.end() || !it->second.reader) return;
  it->second.reader->process_gone();
  if (it->second.gone_ns == 0) it->second.gone_ns = monotonic_ns();
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

void DeviceModules::forget(ProcessId id) {
  const auto it = processes_.find(id);
  if (it == processes_.end()) return;
  Process& process = it->second;
  process.forgotten = true;
  if (process.in_flight != 0) return;  // what is read now is put in the store yet
  if (process.reader) close(process);
  early_bytes_ -= process.early_bytes;
  keys_ -= process.keys.size();
  store_->forget(process.owner);
  processes_.erase(it);
  has_last_ = false;
}

// The next key that waits; null: none.
DeviceModules::Key* DeviceModules::next_of(Process& process, uint64_t now_ns, uint64_t& key) {
  while (!process.retries.empty()) {
    const uint64_t first = process.retries.front();
    const auto it = process.keys.find(first);
    const bool is_valid = it != process.keys.end() && it->second.state == State::kWaiting &&
                          it->second.line == kRetry;
    if (is_valid && now_ns < it->second.next_try_ns && !process.exited && process.reader) break;
    process.retries.pop_front();
    if (is_valid) enqueue(process, first, it->second, it->second.sampled ? kSampled : kLoaded);
  }
  for (size_t i = 0; i < kLines; ++i) {
    const auto line = static_cast<Line>((process.turn + i) % kLines);
    while (!process.lines[line].empty()) {
      key = process.lines[line].front();
      process.lines[line].pop_front();
      const auto it = process.keys.find(key);
      if (it == process.keys.end() || it->second.state != State::kWaiting ||
          it->second.line != line)
        continue;
      process.turn = (line + 1) % kLines;
      return &it->second;
    }
  }
  return nullptr;
}

void DeviceModules::hand_out(ProcessId id, Process& process, uint64_t now_ns) {
  if (!process.reader && !process.exited && !process.stuck) return;
  while (process.in_flight < kMaxInFlight) {
    uint64_t key = 0;
    Key* const entry = next_of(process, now_ns, key);
    if (entry == nullptr) return;
    if (!process.reader) {  // or it ended before its memfd was found
      entry->state = State::kFailed;
      entry->failure = process.stuck ? ModuleFailure::kUnreadable : ModuleFailure::kGone;
      continue;
    }
    entry->state = State::kInFlight;
    ++entry->tries;
    ++process.in_flight;
    const uint64_t most = entry->sampled ? UINT64_MAX : entry->reserved_bytes;
    thread_.add({id, process.reader, key, !entry->sampled, most, process.owner});
  }
}

void DeviceModules::take(const ModuleOutcome& outcome, uint64_t now_ns) {
  const auto it = processes_.find(outcome.process);
  if (it == processes_.end()) return;
  Process& process = it->second;
  --process.in_flight;
  if (outcome.stuck && !std::exchange(process.stuck, true)) close(process);
  Key& entry = process.keys[outcome.key];
  settle_reserve(process, entry, outcome.bytes);
  // A sample named it meanwhile, and is not held to what the early read was.
  const bool is_outdated = outcome.is_early && entry.sampled;
  if (outcome.skipped && !is_outdated) {
    process.keys.erase(outcome.key);
    --keys_;
  } else if (outcome.skipped || (is_outdated && outcome.failure == ModuleFailure::kOverBudget)) {
    enqueue(process, outcome.key, entry, kSampled);
  } else if (outcome.failure == ModuleFailure::kNone) {
    entry.state = State::kRead;
    entry.sha256 = outcome.sha256;
    if (is_outdated) store_->name(entry.sha256, process.owner);
  } else {
    fail_or_retry(process, outcome, entry, now_ns);
  }
}

void DeviceModules::fail_or_retry(Process& process, const ModuleOutcome& outcome, Key& entry,
                                  uint64_t now_ns) {
  entry.failure = outcome.failure;
  const bool again = may_heal(outcome.failure) && !process.stuck && entry.tries < kMaxTries &&
                     (entry.sampled || reserve(process, entry));
  if (!again) {
    entry.state = State::kFailed;
    return;
  }
  entry.next_try_ns = now_ns + kRetryNs;
  ++process.counts.retries;
  enqueue(process, outcome.key, entry, kRetry);
}

// Thousands of processes may end before the profile is written, and the memfd is the last holder of
// their shims' pages.
void DeviceModules::close_if_done(Process& process) {
  if (!process.exited || !process.reader || process.in_flight != 0 || process.is_waiting()) return;
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
  std::vector<ProcessId> forgotten;
  for (auto& [id, process] : processes_) {
    if (process.forgotten) forgotten.push_back(id);
    if (process.gone_ns != 0 && now_ns >= process.gone_ns + kLastWordsNs) process.exited = true;
    if (process.is_waiting()) hand_out(id, process, now_ns);
    close_if_done(process);
  }
  for (const ProcessId id : forgotten) forget(id);
}

bool DeviceModules::pending() const {
  return std::ranges::any_of(processes_, [](const auto& entry) {
    const Process& process = entry.second;
    return process.in_flight != 0 || (process.is_waiting() && process.reader);
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
  Key& entry = it->second;
  if (entry.state != State::kRead) {
    // Not read in time: its process was not found, or the end came first.
    const ModuleFailure why =
        entry.failure == ModuleFailure::kNone ? ModuleFailure::kUnreadable : entry.failure;
    current_.missing = target::module_failure_name(why);
    return current_;
  }
  current_.sha256 = entry.sha256;
  auto image = store_->image(entry.sha256);
  if (!image && image.error().code == Code::kNotFound && reread(id, process->second, key, entry))
    image = store_->image(entry.sha256);
  if (image) {
    current_.image = std::move(*image);
  } else {
    current_.missing = image.error().code == Code::kNotFound ? "evicted" : "malformed";
  }
  return current_;
}

void DeviceModules::release_parsed() {
  current_ = {};
  store_->release_parsed();
}

// Reads an evicted image again, and waits for it.
bool DeviceModules::reread(ProcessId id, Process& process, uint64_t key, Key& entry) {
  constexpr uint64_t kWaitNs = 20'000'000;
  if (!process.reader || process.stuck || entry.is_lost || reread_ns_ == 0) return false;
  const std::string sha256 = entry.sha256;
  const uint64_t begin = monotonic_ns();
  entry.state = State::kInFlight;
  entry.tries = kMaxTries;
  ++process.in_flight;
  thread_.add({id, process.reader, key, false, UINT64_MAX, process.owner});
  uint64_t now = begin;
  while (entry.state == State::kInFlight && now < begin + reread_ns_) {
    for (const ModuleOutcome& outcome : thread_.collect(now, kWaitNs)) take(outcome, now);
    now = monotonic_ns();
  }
  reread_ns_ -= std::min(reread_ns_, now - begin);
  entry.is_lost = entry.state != State::kRead || entry.sha256 != sha256;
  entry.state = State::kRead;  // it was
  entry.sha256 = sha256;
  if (!entry.is_lost) ++process.counts.reread;
  return !entry.is_lost;
}

Result<std::vector<std::byte>> DeviceModules::bytes(const std::string& sha256) {
  auto out = store_->bytes(sha256);
  if (out || out.error().code != Code::kNotFound) return out;
  for (auto& [id, process] : processes_) {
    for (auto& [key, entry] : process.keys) {
      if (entry.state == State::kRead && entry.sha256 == sha256 && reread(id, process, key, entry))
        return store_->bytes(sha256);
    }
  }
  return out;
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
