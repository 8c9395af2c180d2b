// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/node_scan.h"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

namespace gpuprof::target {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

}  // namespace

void NodeScan::plan(uint32_t pid, Process& process, uint64_t due_ns) {
  process.due_ns = due_ns;
  turns_.push({due_ns, pid});
}

bool NodeScan::list(uint64_t now_ns) {
  if (now_ns < next_list_ns_) return true;
  next_list_ns_ = now_ns + kListNs;
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(proc_.c_str()));
  if (!dir) return false;
  ++listing_;
  refused_ = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    uint32_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    if (known_.size() >= kMaxProcesses && !known_.contains(pid)) {
      ++refused_;
      continue;
    }
    const auto [at, is_new] = known_.try_emplace(pid);
    at->second.listing = listing_;
    if (is_new) plan(pid, at->second, now_ns);
  }
  std::erase_if(known_, [&](const auto& entry) { return entry.second.listing != listing_; });
  return true;
}

std::optional<uint32_t> NodeScan::next(uint64_t now_ns) {
  while (!turns_.empty() && turns_.top().due_ns <= now_ns) {
    const Turn turn = turns_.top();
    turns_.pop();
    const auto at = known_.find(turn.pid);
    if (at == known_.end() || at->second.due_ns != turn.due_ns) continue;
    Process& process = at->second;
    plan(turn.pid, process, now_ns + process.interval_ns);
    process.interval_ns = std::min(2 * process.interval_ns, kMostNs);
    return turn.pid;
  }
  return {};
}

void NodeScan::look_again(uint32_t pid, uint64_t at_ns) {
  if (known_.size() >= kMaxProcesses && !known_.contains(pid)) return;
  const auto [at, is_new] = known_.try_emplace(pid);
  if (is_new) at->second.listing = listing_;
  at->second.interval_ns = kFirstNs;
  plan(pid, at->second, at_ns);
}

}  // namespace gpuprof::target
