// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/gpu_arbiter.h"

#include <algorithm>
#include <set>

namespace gpuprof::target {
namespace {

bool has(const PcClaims& claims, uint32_t bits, const GpuUuid& gpu) {
  for (uint32_t i = 0; i < claims.gpus.size(); ++i) {
    if ((bits >> i & 1) != 0 && claims.gpus[i] == gpu) return true;
  }
  return false;
}

template <class Entries>
auto find(Entries& entries, const GpuUuid& gpu) {
  return std::find_if(entries.begin(), entries.end(),
                      [&](const auto& entry) { return entry.gpu == gpu; });
}

template <class Entries>
bool contains(const Entries& entries, const GpuUuid& gpu) {
  return find(entries, gpu) != entries.end();
}

// The target says that grant `serial`, or a later one of ours, is in force.
bool in_force(const PcGrant& grant, const PcClaims& claims, uint64_t serial) {
  return claims.serial >= serial && claims.serial <= grant.serial;
}

}  // namespace

void GpuArbiter::change_grant(Target& target) {
  target.grant.serial = ++next_serial_;
  target.grant.gpus.clear();
  for (Granted& granted : target.granted) {
    if (granted.serial == 0) granted.serial = target.grant.serial;
    target.grant.gpus.push_back(granted.gpu);
  }
  for (Leaving& leaving : target.leaving) {
    if (leaving.serial == 0) leaving.serial = target.grant.serial;
  }
  target.is_new = true;
}

// No longer alone: it has what it holds or wants, and until it says that this list is in force it
// may enable any other GPU.
void GpuArbiter::list(Target& target, uint64_t now_ns) {
  target.grant.mode = GPUPROF_PC_GRANT_LISTED;
  const PcClaims& claims = target.claims;
  for (uint32_t i = 0; i < claims.gpus.size(); ++i) {
    const bool claimed = ((claims.held | claims.wanted) >> i & 1) != 0;
    if (claimed && !contains(target.granted, claims.gpus[i]))
      target.granted.push_back({claims.gpus[i], 0, now_ns});
  }
  change_grant(target);
  target.open_serial = target.grant.serial;
  target.open_since_ns = now_ns;
}

void GpuArbiter::add(ProcessId process, const PcClaims& claims, uint64_t now_ns) {
  for (auto& [id, other] : targets_) {
    if (id != process && other.grant.mode == GPUPROF_PC_GRANT_ALL) list(other, now_ns);
  }
  Target& target = targets_[process];
  target.claims = claims;
  target.counted_ns = now_ns;
  if (targets_.size() > 1) target.grant.mode = GPUPROF_PC_GRANT_LISTED;
  change_grant(target);
  // An earlier controller's grant may still be in force.
  const bool fresh = claims.serial == 0 && claims.held == 0;
  if (target.grant.mode == GPUPROF_PC_GRANT_LISTED && !fresh) {
    target.open_serial = target.grant.serial;
    target.open_since_ns = now_ns;
  }
}

// What was so since the last time, as it was seen then.
void GpuArbiter::count(Target& target, uint64_t now_ns) {
  const uint64_t passed_ns = now_ns > target.counted_ns ? now_ns - target.counted_ns : 0;
  target.counted_ns = std::max(now_ns, target.counted_ns);
  const PcClaims& claims = target.claims;
  for (uint32_t i = 0; i < claims.gpus.size(); ++i) {
    const bool held = (claims.held >> i & 1) != 0;
    const auto wait = find(target.waits, claims.gpus[i]);
    const bool waits = wait != target.waits.end() && wait->holder != 0;
    if (!held && !waits) continue;
    auto use = find(target.uses, claims.gpus[i]);
    if (use == target.uses.end()) {
      if (target.uses.size() >= GPUPROF_PC_GPUS_MAX) continue;
      use = target.uses.insert(use, {claims.gpus[i], i, 0, 0, 0});
    }
    if (held) {
      use->sampled_ns += passed_ns;
    } else {
      use->waited_ns += passed_ns;
      use->taken_by = wait->holder;
    }
  }
}

void GpuArbiter::update(ProcessId process, const PcClaims& claims, uint64_t now_ns) {
  const auto found = targets_.find(process);
  if (found == targets_.end()) return;
  count(found->second, now_ns);
  found->second.claims = claims;
}

std::vector<GpuUse> GpuArbiter::remove(ProcessId process, uint64_t now_ns) {
  const auto found = targets_.find(process);
  if (found == targets_.end()) return {};
  count(found->second, now_ns);
  std::vector<GpuUse> uses = std::move(found->second.uses);
  targets_.erase(found);
  return uses;
}

void GpuArbiter::confirm(Target& target, uint64_t now_ns) {
  const auto over = [&](uint64_t serial, uint64_t since_ns) {
    return in_force(target.grant, target.claims, serial) || now_ns > since_ns + kPatienceNs;
  };
  if (target.open_serial != 0 && over(target.open_serial, target.open_since_ns))
    target.open_serial = 0;
  std::erase_if(target.leaving, [&](const Leaving& leaving) {
    return over(leaving.serial, leaving.since_ns) &&
           !has(target.claims, target.claims.held, leaving.gpu);
  });
}

bool GpuArbiter::waited_for(const Target& by_other_than, const GpuUuid& gpu) const {
  return std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
    return &entry.second != &by_other_than && contains(entry.second.waits, gpu);
  });
}

void GpuArbiter::release_unused(Target& target, uint64_t now_ns) {
  if (target.grant.mode == GPUPROF_PC_GRANT_ALL || target.open_serial != 0) return;
  const PcClaims& claims = target.claims;
  const size_t before = target.granted.size();
  std::erase_if(target.granted, [&](const Granted& granted) {
    if (has(claims, claims.held, granted.gpu)) return false;
    const bool wanted =
        has(claims, claims.wanted, granted.gpu) || !in_force(target.grant, claims, granted.serial);
    if (wanted && (now_ns <= granted.since_ns + kUnusedNs || !waited_for(target, granted.gpu)))
      return false;
    target.leaving.push_back({granted.gpu, 0, now_ns});
    return true;
  });
  if (target.granted.size() != before) change_grant(target);
}

// What it holds without a grant it had begun with before the list came: it wants that, too.
void GpuArbiter::take_waits(Target& target) {
  if (target.grant.mode == GPUPROF_PC_GRANT_ALL) return;
  const PcClaims& claims = target.claims;
  const uint32_t bits = claims.wanted | claims.held;
  std::erase_if(target.waits, [&](const Wait& wait) {
    return !has(claims, bits, wait.gpu) || contains(target.granted, wait.gpu);
  });
  for (uint32_t i = 0; i < claims.gpus.size(); ++i) {
    const GpuUuid& gpu = claims.gpus[i];
    if ((bits >> i & 1) == 0 || contains(target.granted, gpu) || contains(target.waits, gpu))
      continue;
    target.waits.push_back({gpu, next_turn_++, 0});
  }
}

GpuArbiter::Holders GpuArbiter::holders() const {
  Holders out;
  const auto note = [&](const ProcessId& id, const Target& target, const GpuUuid& gpu) {
    Holder& holder = out[gpu];
    if (holder.target == nullptr) {
      holder = {id.pid, &target, nullptr};
    } else if (holder.target != &target) {
      holder.second = &target;
    }
  };
  for (const auto& [id, target] : targets_) {  // first, so that they are the ones that are named
    for (const Granted& granted : target.granted) note(id, target, granted.gpu);
  }
  for (const auto& [id, target] : targets_) {
    for (const Leaving& leaving : target.leaving) note(id, target, leaving.gpu);
    for (uint32_t i = 0; i < target.claims.gpus.size(); ++i) {
      if ((target.claims.held >> i & 1) != 0) note(id, target, target.claims.gpus[i]);
    }
  }
  return out;
}

void GpuArbiter::hand_out(uint64_t now_ns) {
  struct Turn {
    Target* target;
    Wait* wait;
  };
  std::vector<Turn> turns;
  size_t open = 0;
  for (auto& [id, target] : targets_) {
    if (target.open_serial != 0) ++open;
    for (Wait& wait : target.waits) turns.push_back({&target, &wait});
  }
  if (turns.empty()) return;
  std::sort(turns.begin(), turns.end(),
            [](const Turn& a, const Turn& b) { return a.wait->turn < b.wait->turn; });
  const Holders held = holders();
  std::set<GpuUuid> promised;  // to the first one that waits, also while it cannot have it yet
  std::set<Target*> changed;
  for (const auto& [target, wait] : turns) {
    const auto holder = held.find(wait->gpu);
    const bool others = holder != held.end() &&
                        (holder->second.target != target || holder->second.second != nullptr);
    wait->holder = others && holder->second.target != target ? holder->second.pid : 0;
    const bool first = promised.insert(wait->gpu).second;
    const bool open_elsewhere = open > (target->open_serial != 0 ? 1u : 0u);
    const bool room = target->granted.size() < GPUPROF_PC_GPUS_MAX &&
                      target->leaving.size() < GPUPROF_PC_GPUS_MAX;
    if (!first || others || open_elsewhere || !room) continue;
    const GpuUuid gpu = wait->gpu;
    target->granted.push_back({gpu, 0, now_ns});
    std::erase_if(target->leaving, [&gpu](const Leaving& leaving) { return leaving.gpu == gpu; });
    changed.insert(target);
  }
  for (Target* target : changed) {
    change_grant(*target);
    take_waits(*target);
  }
}

std::vector<ProcessId> GpuArbiter::settle(uint64_t now_ns) {
  for (auto& [id, target] : targets_) confirm(target, now_ns);
  for (auto& [id, target] : targets_) take_waits(target);
  for (auto& [id, target] : targets_) release_unused(target, now_ns);
  for (auto& [id, target] : targets_) take_waits(target);
  hand_out(now_ns);
  std::vector<ProcessId> out;
  for (auto& [id, target] : targets_) {
    if (target.is_new) out.push_back(id);
    target.is_new = false;
  }
  return out;
}

const PcGrant* GpuArbiter::grant_of(ProcessId process) const {
  const auto found = targets_.find(process);
  return found == targets_.end() ? nullptr : &found->second.grant;
}

std::vector<GpuUse> GpuArbiter::uses_of(ProcessId process) const {
  const auto found = targets_.find(process);
  return found == targets_.end() ? std::vector<GpuUse>() : found->second.uses;
}

}  // namespace gpuprof::target
