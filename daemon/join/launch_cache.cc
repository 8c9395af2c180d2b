// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/launch_cache.h"

namespace gpuprof::join {
namespace {

// A kernel or copy launch has one execution; after it the launch is of no more use, save for a
// record that repeats.
bool is_done(const Launch& launch) { return launch.executed && !launch.is_graph; }

}  // namespace

void LaunchCache::expire(uint64_t now_ns, uint64_t age_ns, uint64_t executed_age_ns,
                         LaunchCacheCounts& counts) {
  launches_.retain([&](const Index::Entry& entry) {
    const Launch& launch = entry.value;
    const uint64_t idle_ns = now_ns > launch.last_use_ns ? now_ns - launch.last_use_ns : 0;
    if (idle_ns < (is_done(launch) ? executed_age_ns : age_ns)) return true;
    ++(launch.executed ? counts.retired : counts.never_executed);
    return false;
  });
}

void LaunchCache::make_room(size_t keep, LaunchCacheCounts& counts) {
  if (size() > keep) {
    launches_.retain([&](const Index::Entry& entry) {
      if (!is_done(entry.value)) return true;
      ++counts.retired;
      return false;
    });
  }
  if (size() <= keep) return;
  size_t excess = size() - keep;  // entries lie in the order of their arrival
  launches_.retain([&](const Index::Entry& entry) {
    if (excess == 0) return true;
    --excess;
    ++(entry.value.executed ? counts.retired : counts.evicted);
    return false;
  });
}

void LaunchCache::append_stacks(std::vector<StackId>& out) const {
  for (const Index::Entry& entry : launches_.entries()) {
    if (entry.value.stack != kNoStack) out.push_back(entry.value.stack);
  }
}

}  // namespace gpuprof::join
