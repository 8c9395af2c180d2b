// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/gpu_arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace gpuprof::target {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr ProcessId kA{100, 1}, kB{200, 2}, kC{300, 3};

GpuUuid gpu(uint8_t number) {
  GpuUuid out{};
  out.fill(static_cast<uint8_t>(number + 1));
  return out;
}

// A shim that does what it is told, when the test lets it look.
struct Shim {
  PcGrant grant;
  PcClaims claims;

  explicit Shim(uint8_t first_gpu = 0) {
    claims.heeds_grants = true;
    for (uint8_t i = 0; i < claims.gpus.size(); ++i)
      claims.gpus[i] = gpu(static_cast<uint8_t>(first_gpu + i));
  }
  [[nodiscard]] bool may(uint32_t device) const {
    return grant.mode == GPUPROF_PC_GRANT_ALL ||
           std::find(grant.gpus.begin(), grant.gpus.end(), claims.gpus[device]) != grant.gpus.end();
  }
  void look(const PcGrant* told) {
    grant = *told;
    claims.serial = told->serial;
  }
  // A launch on the device: the context is switched on or off, as the grant says.
  void launch(uint32_t device) {
    const uint32_t bit = 1u << device;
    const bool on = claims.serial != 0 && may(device);
    claims.held = on ? claims.held | bit : claims.held & ~bit;
    claims.wanted = on ? claims.wanted & ~bit : claims.wanted | bit;
  }
};

struct World {
  GpuArbiter arbiter{1000};
  std::map<ProcessId, Shim> shims;
  uint64_t now_ns = 1;

  Shim& add(ProcessId id, uint8_t first_gpu = 0) {
    Shim& shim = shims.emplace(id, Shim(first_gpu)).first->second;
    arbiter.add(id, shim.claims, now_ns);
    return shim;
  }
  // The daemon looks at every page.
  void settle(uint64_t passed_ms = 100) {
    now_ns += passed_ms * kMs;
    for (auto& [id, shim] : shims) arbiter.update(id, shim.claims, now_ns);
    (void)arbiter.settle(now_ns);
  }
  void look(ProcessId id) { shims.at(id).look(arbiter.grant_of(id)); }
  // Everybody looks and launches on its first device, the daemon looks; a few times.
  void run(int rounds = 6) {
    for (int i = 0; i < rounds; ++i) {
      for (auto& [id, shim] : shims) {
        look(id);
        shim.launch(0);
      }
      settle();
    }
  }
  [[nodiscard]] std::vector<GpuUuid> listed(ProcessId id) const {
    return arbiter.grant_of(id)->gpus;
  }
  void end(ProcessId id) {
    shims.erase(id);
    (void)arbiter.remove(id, now_ns);
  }
};

using Gpus = std::vector<GpuUuid>;

TEST(GpuArbiter, AloneATargetHasEveryGpuAtOnce) {
  World world;
  world.add(kA);
  EXPECT_EQ(world.arbiter.grant_of(kA)->mode, GPUPROF_PC_GRANT_ALL);
  EXPECT_GT(world.arbiter.grant_of(kA)->serial, 1000u);
  EXPECT_EQ(world.arbiter.grant_of(kB), nullptr);
  EXPECT_EQ(world.arbiter.settle(2), std::vector{kA}) << "new";
  EXPECT_TRUE(world.arbiter.settle(3).empty()) << "told";
}

TEST(GpuArbiter, NobodyIsGrantedAGpuBeforeTheFirstHasSeenItsList) {
  World world;
  Shim& a = world.add(kA);
  world.look(kA);
  a.launch(0);
  world.settle();
  Shim& b = world.add(kB);
  EXPECT_EQ(world.arbiter.grant_of(kB)->mode, GPUPROF_PC_GRANT_LISTED);
  EXPECT_EQ(world.listed(kB), Gpus{});
  EXPECT_EQ(world.listed(kA), Gpus{gpu(0)}) << "what it held";
  EXPECT_EQ(world.arbiter.settle(world.now_ns), (std::vector{kA, kB}));
  world.look(kB);
  b.launch(1);
  for (int i = 0; i < 10; ++i) world.settle();
  EXPECT_EQ(world.listed(kB), Gpus{}) << "the first one may be about to begin there";
  world.look(kA);
  world.settle();
  EXPECT_EQ(world.listed(kB), Gpus{gpu(1)});
}

TEST(GpuArbiter, FirstComeFirstServedAndTheNextWhenTheHolderEnds) {
  World world;
  world.add(kA);
  world.run();
  world.add(kB);
  world.run();
  world.add(kC);
  world.run();
  EXPECT_EQ(world.shims.at(kA).claims.held, 1u);
  EXPECT_EQ(world.listed(kB), Gpus{});
  EXPECT_EQ(world.listed(kC), Gpus{});
  world.end(kA);
  world.settle();
  EXPECT_EQ(world.listed(kB), Gpus{gpu(0)}) << "within one look after the exit";
  world.run();
  EXPECT_EQ(world.shims.at(kB).claims.held, 1u);
  EXPECT_EQ(world.listed(kC), Gpus{});
  world.end(kB);
  world.run();
  EXPECT_EQ(world.shims.at(kC).claims.held, 1u);
}

// Numbers of devices say nothing: what is 0 here is 1 there.
TEST(GpuArbiter, GpusAreToldByTheirUuids) {
  World world;
  world.add(kA, 0);
  world.add(kB, 1);
  world.add(kC, 1);
  world.run();
  EXPECT_EQ(world.shims.at(kA).claims.held, 1u);
  EXPECT_EQ(world.shims.at(kB).claims.held, 1u);
  EXPECT_EQ(world.shims.at(kC).claims.held, 0u);
  const auto uses = world.arbiter.uses_of(kC);
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].gpu, gpu(1));
  EXPECT_EQ(uses[0].device, 0u);
  EXPECT_EQ(uses[0].taken_by, kB.pid);
  EXPECT_EQ(uses[0].sampled_ns, 0u);
  EXPECT_GT(uses[0].waited_ns, 0u);
  EXPECT_LE(uses[0].waited_ns, world.now_ns);
  EXPECT_GT(world.arbiter.remove(kB, world.now_ns).at(0).sampled_ns, 0u);
}

// A refused or a destroyed context: the GPU is free once the list without it is in force.
TEST(GpuArbiter, WhatIsNeitherWantedNorHeldGoesOnInTwoSteps) {
  World world;
  Shim& a = world.add(kA);
  world.add(kB);
  world.run();
  ASSERT_EQ(world.listed(kA), Gpus{gpu(0)});
  a.claims.held = a.claims.wanted = 0;
  world.settle();
  EXPECT_EQ(world.listed(kA), Gpus{});
  for (int i = 0; i < 10; ++i) world.settle();
  EXPECT_EQ(world.listed(kB), Gpus{}) << "the first one has not seen yet that it may not";
  a.claims.held = 1;  // it began at the last moment
  world.look(kA);
  world.settle();
  EXPECT_EQ(world.listed(kB), Gpus{});
  a.launch(0);
  world.settle();
  EXPECT_EQ(world.listed(kB), Gpus{gpu(0)});
  EXPECT_EQ(world.listed(kA), Gpus{});
}

TEST(GpuArbiter, AGrantThatIsNotUsedGoesToTheNextWhoWaits) {
  World world;
  Shim& a = world.add(kA);
  world.add(kB);
  a.launch(0);  // wants it, and launches no more
  world.look(kB);
  for (int i = 0; i < 10; ++i) {
    world.look(kA);
    world.settle();
  }
  ASSERT_EQ(world.listed(kA), Gpus{gpu(0)});
  world.settle(10'000);
  EXPECT_EQ(world.listed(kA), Gpus{gpu(0)}) << "nobody else wants it";
  world.shims.at(kB).launch(0);
  for (int i = 0; i < 3; ++i) {
    world.settle();
    world.look(kA);
    world.look(kB);
  }
  EXPECT_EQ(world.listed(kA), Gpus{});
  EXPECT_EQ(world.listed(kB), Gpus{gpu(0)});
}

TEST(GpuArbiter, AStoppedTargetHoldsWhatItShowsAndNoMore) {
  World world;
  Shim& a = world.add(kA);
  world.look(kA);
  a.launch(0);
  world.settle();
  Shim& b = world.add(kB);  // from here on the first one looks at nothing
  world.look(kB);
  b.launch(0);
  b.launch(1);
  world.settle(GpuArbiter::kPatienceNs / kMs);
  EXPECT_EQ(world.listed(kB), Gpus{});
  world.settle(100);
  EXPECT_EQ(world.listed(kB), Gpus{gpu(1)});
  world.settle(3'600'000);
  EXPECT_EQ(world.listed(kB), Gpus{gpu(1)});
}

// An earlier controller may have left it with a grant.
TEST(GpuArbiter, ATargetThatCameWithAGrantIsOpenUntilItHasSeenOurs) {
  World world;
  world.add(kA);
  world.run();
  Shim& b = world.shims.emplace(kB, Shim()).first->second;
  b.claims.serial = 77;
  world.arbiter.add(kB, b.claims, world.now_ns);
  Shim& c = world.add(kC, 3);
  world.look(kA);
  world.look(kC);
  c.launch(0);
  world.settle();
  world.look(kA);
  world.settle();
  EXPECT_EQ(world.listed(kC), Gpus{});
  world.look(kB);
  world.settle();
  EXPECT_EQ(world.listed(kC), Gpus{gpu(3)});
}

TEST(GpuArbiter, ALyingPageGetsAtMostSixteenAndTakesNoneFromAHolder) {
  World world;
  world.add(kA);
  world.run();
  Shim& liar = world.add(kB);
  world.run();
  std::set<GpuUuid> seen;
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    for (auto& uuid : liar.claims.gpus) uuid = gpu(static_cast<uint8_t>(random() % 250));
    liar.claims.held = static_cast<uint32_t>(random());
    liar.claims.wanted = static_cast<uint32_t>(random());
    liar.claims.serial = random() % 2 == 0 ? UINT64_MAX : world.arbiter.grant_of(kB)->serial;
    world.look(kA);
    world.shims.at(kA).launch(0);
    world.settle();
    EXPECT_EQ(world.listed(kA), Gpus{gpu(0)});
    const Gpus listed = world.listed(kB);
    EXPECT_LE(listed.size(), size_t{GPUPROF_PC_GPUS_MAX});
    EXPECT_EQ(std::count(listed.begin(), listed.end(), gpu(0)), 0);
  }
  EXPECT_LE(world.arbiter.uses_of(kB).size(), size_t{GPUPROF_PC_GPUS_MAX});
  world.end(kB);
  world.add(kC, 5);
  world.run();
  EXPECT_EQ(world.shims.at(kC).claims.held, 1u) << "all of it is free again";
}

// Shims that look late, launch here and there, refuse, come and go: no GPU has two holders, and
// none that somebody wants stays without one.
TEST(GpuArbiter, NeverTwoHolders) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    World world;
    std::mt19937 random(seed);
    const auto chance = [&](uint32_t of) { return random() % of == 0; };
    uint32_t next_pid = 1;
    uint64_t held_in_all = 0;
    for (int step = 0; step < 3000; ++step) {
      if (world.shims.size() < 6 && chance(40))
        world.add({next_pid++, 1}, static_cast<uint8_t>(random() % 3));
      if (!world.shims.empty() && chance(80)) {
        auto gone = world.shims.begin();
        std::advance(gone, random() % world.shims.size());
        world.end(gone->first);
      }
      for (auto& [id, shim] : world.shims) {
        if (chance(3)) world.look(id);
        if (chance(2)) shim.launch(random() % 3);
        if (chance(50)) shim.claims.held = 0;  // its contexts are gone
        if (chance(50)) shim.claims.wanted = 0;
      }
      if (chance(2)) world.settle(20);
      std::map<GpuUuid, uint32_t> holders;
      for (const auto& [id, shim] : world.shims) {
        for (uint32_t i = 0; i < shim.claims.gpus.size(); ++i)
          if ((shim.claims.held >> i & 1) != 0) ++holders[shim.claims.gpus[i]];
      }
      for (const auto& [uuid, count] : holders)
        ASSERT_EQ(count, 1u) << "seed " << seed << ", step " << step;
      held_in_all += holders.size();
    }
    EXPECT_GT(held_in_all, 3000u) << "seed " << seed << ": hardly anything is sampled";
    if (world.shims.empty()) world.add({next_pid, 1});
    world.run(300);  // those that were granted and are launched on no more are handed on, too
    std::set<GpuUuid> held, wanted;
    for (const auto& [id, shim] : world.shims) {
      wanted.insert(shim.claims.gpus[0]);
      for (uint32_t i = 0; i < shim.claims.gpus.size(); ++i)
        if ((shim.claims.held >> i & 1) != 0) held.insert(shim.claims.gpus[i]);
    }
    for (const GpuUuid& uuid : wanted) EXPECT_TRUE(held.contains(uuid)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gpuprof::target
