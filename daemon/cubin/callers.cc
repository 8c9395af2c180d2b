// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/callers.h"

#include <algorithm>
#include <span>

namespace gpuprof::cubin {
namespace {

// Bits of Caller::without_line. CUB's and CUTLASS' chains have about 30.
constexpr size_t kMaxFrames = 64;
// Of calls that are not inlined.
constexpr uint8_t kMaxDepth = 16;
// A chain is walked once for each of its call sites, and again where a recursion's are. Real
// sections take less than one frame an instruction.
constexpr uint64_t kWorkPerInstruction = 3;
constexpr uint64_t kWorkFree = 1 << 12;
constexpr uint64_t kCodeBytesPerInstruction = 16;
constexpr uint32_t kMaxRounds = 64;

}  // namespace

// All start as not reached; each round lowers what was known of a function to what its call sites
// in reached functions agree on, until nothing changes. What is then not reached has callers that
// are not known.
class CallersBuilder {
 public:
  CallersBuilder(const CallSites& calls, const SiteChains& chains, uint64_t code_bytes)
      : calls_(calls),
        chains_(chains),
        work_left_(code_bytes / kCodeBytesPerInstruction * kWorkPerInstruction + kWorkFree),
        reached_(calls.has_others),
        changed_at_(calls.has_others.size()),
        merged_at_(calls.has_others.size()) {
    callers_.callers_.resize(calls.has_others.size());
    std::vector<bool> is_called(calls.has_others.size());
    for (const CallSite& site : calls.sites) is_called[site.callee] = true;
    for (size_t region = 0; region < reached_.size(); ++region)
      if (!is_called[region]) reached_[region] = true;
  }

  Callers run() {
    for (uint32_t round = 0; round < kMaxRounds; ++round) {
      if (!sweep()) break;
      if (!has_changed_ && !give_up_unreached()) return std::move(callers_);
    }
    std::ranges::fill(callers_.callers_, Callers::Caller{});
    return std::move(callers_);
  }

 private:
  // False: out of work.
  bool sweep() {
    has_changed_ = false;
    std::span<const CallSite> rest = calls_.sites;
    while (!rest.empty()) {
      const auto end = std::ranges::find_if(
          rest, [&](const CallSite& site) { return site.callee != rest.front().callee; });
      const auto count = static_cast<size_t>(end - rest.begin());
      if (!calls_.has_others[rest.front().callee] && !merge(rest.first(count))) return false;
      rest = rest.subspan(count);
    }
    return true;
  }

  // All call sites of one function.
  bool merge(std::span<const CallSite> sites) {
    const uint32_t callee = sites.front().callee;
    Callers::Caller& caller = callers_.callers_[callee];
    const auto is_newer = [&](uint32_t region) { return changed_at_[region] > merged_at_[callee]; };
    if (reached_[callee]) {
      // Nothing is below not knowing.
      if (caller.kept == 0 || std::ranges::none_of(sites, is_newer, &CallSite::caller)) return true;
    }
    const Callers::Caller before = caller;
    current_.clear();
    if (reached_[callee]) callers_.append(callee, chains_, current_);
    const bool is_moved = reached_[callee] && is_newer(before.region);
    merged_at_[callee] = ++clock_;
    for (const CallSite& site : sites) {
      if (!reached_[site.caller]) continue;
      if (!merge(site, caller)) return false;
      if (caller.kept == 0) break;
    }
    if (is_moved || caller.kept != before.kept || caller.without_line != before.without_line)
      change(callee);
    return true;
  }

  bool merge(const CallSite& site, Callers::Caller& caller) {
    full_.clear();
    chains_.append(site.offset, full_);
    const bool is_deep = full_.size() > kMaxFrames;
    if (site.caller != kKernelRegion) callers_.append(site.caller, chains_, full_);
    const uint64_t work = full_.size() + 1;
    if (work > work_left_) return false;
    work_left_ -= work;
    if (!reached_[site.callee]) {
      reached_[site.callee] = true;
      caller = first(site, is_deep);
      const auto kept = static_cast<std::ptrdiff_t>(caller.kept);
      current_.assign(full_.end() - kept, full_.end());
    } else {
      keep_common(caller);
    }
    return true;
  }

  Callers::Caller first(const CallSite& site, bool is_deep) const {
    Callers::Caller caller;
    caller.region = site.caller;
    caller.offset = site.offset;
    const Callers::Caller& above =
        callers_.callers_[site.caller];  // of the kernel's code it is empty
    caller.depth = static_cast<uint8_t>(above.kept == 0 ? 1 : above.depth + 1);
    if (caller.depth <= kMaxDepth && !is_deep)
      caller.kept = static_cast<uint8_t>(std::min(full_.size(), kMaxFrames));
    return caller;
  }

  // Of `current_`, the callee's frames so far, what is in `full_` too.
  void keep_common(Callers::Caller& caller) {
    const size_t most = std::min(current_.size(), full_.size());
    size_t kept = 0;
    for (; kept < most; ++kept) {
      SourceFrame& ours = current_[current_.size() - 1 - kept];
      const SourceFrame& theirs = full_[full_.size() - 1 - kept];
      if (ours.mangled.empty() || ours.mangled != theirs.mangled) break;
      if (ours.line == theirs.line && ours.file == theirs.file) continue;
      ours.file = {};
      ours.line = 0;
      caller.without_line |= uint64_t{1} << kept;
    }
    current_.erase(current_.begin(), current_.end() - static_cast<std::ptrdiff_t>(kept));
    caller.kept = static_cast<uint8_t>(kept);
  }

  bool give_up_unreached() {
    bool found = false;
    for (uint32_t region = 0; region < reached_.size(); ++region) {
      if (reached_[region]) continue;
      reached_[region] = true;
      changed_at_[region] = ++clock_;
      found = true;
    }
    return found;
  }

  void change(uint32_t region) {
    changed_at_[region] = ++clock_;
    has_changed_ = true;
  }

  const CallSites& calls_;
  const SiteChains& chains_;
  uint64_t work_left_;
  Callers callers_;
  std::vector<bool> reached_;
  std::vector<uint64_t> changed_at_, merged_at_;
  uint64_t clock_ = 0;
  std::vector<SourceFrame> current_, full_;
  bool has_changed_ = false;
};

Callers Callers::build(const CallSites& calls, const SiteChains& chains, uint64_t code_bytes) {
  return CallersBuilder(calls, chains, code_bytes).run();
}

void Callers::append(uint32_t region, const SiteChains& chains,
                     std::vector<SourceFrame>& frames) const {
  const Caller& caller = callers_[region];
  if (caller.kept == 0) {
    frames.push_back(chains.kernel());
    return;
  }
  const size_t first = frames.size();
  chains.append(caller.offset, frames);
  if (caller.region != kKernelRegion) append(caller.region, chains, frames);  // kMaxDepth at most
  const size_t kept = std::min<size_t>(caller.kept, frames.size() - first);
  frames.erase(frames.begin() + static_cast<std::ptrdiff_t>(first),
               frames.end() - static_cast<std::ptrdiff_t>(kept));
  for (size_t i = 0; i < kept; ++i) {
    if ((caller.without_line >> i & 1) == 0) continue;
    frames[frames.size() - 1 - i].file = {};
    frames[frames.size() - 1 - i].line = 0;
  }
}

}  // namespace gpuprof::cubin
