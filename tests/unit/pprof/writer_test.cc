// SPDX-License-Identifier: Apache-2.0
#include "daemon/pprof/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/unit/pprof/read_back.h"

namespace gpuprof::pprof {
namespace {

using join::Model;
using join::ModelModule;
using perftools::profiles::Profile;

ModelModule module(const std::string& path, uint64_t start, uint64_t limit) {
  ModelModule made;
  made.path = path;
  made.start = start;
  made.limit = limit;
  return made;
}

// One function and one sample for each location.
Model model_of(std::vector<ModelModule> modules,
               const std::vector<std::pair<uint32_t, uint64_t>>& locations) {
  Model model;
  model.modules = std::move(modules);
  model.label_sets.emplace_back();
  for (const auto& [in, address] : locations) {
    const auto id = static_cast<uint32_t>(model.locations.size());
    const std::string name = "f" + std::to_string(id);
    model.functions.push_back({name, name, "", 0});
    model.locations.push_back({in, address, {{id, 0}}});
    model.stacks.push_back({id});
    model.samples.push_back({id, 0, {1, 1, 0, 0}});
  }
  return model;
}

Profile written(const Model& model) {
  Profile profile;
  const Result<std::string> bytes = serialize(model);
  EXPECT_TRUE(bytes.has_value());
  EXPECT_TRUE(testing::parse(bytes.value(), &profile));
  return profile;
}

// Every location in its mapping; mappings page-aligned, apart, in order, not adjacent.
void check_addresses(const Profile& profile) {
  uint64_t last_limit = 0;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& mapping : profile.mapping()) {
    EXPECT_EQ(mapping.memory_start() % 4096, 0u);
    EXPECT_EQ(mapping.memory_limit() % 4096, 0u);
    EXPECT_GT(mapping.memory_start(), last_limit);
    EXPECT_GT(mapping.memory_limit(), mapping.memory_start());
    EXPECT_TRUE(mapping.has_functions());
    last_limit = mapping.memory_limit();
    ranges[mapping.id()] = {mapping.memory_start(), mapping.memory_limit()};
  }
  for (const auto& location : profile.location()) {
    const auto& [start, limit] = ranges.at(location.mapping_id());
    EXPECT_GE(location.address(), start);
    EXPECT_LT(location.address(), limit);
  }
}

TEST(Writer, EqualAddressesOfTwoModulesBecomeDifferent) {
  const Profile profile =
      written(model_of({module("/bin/a", 0x1000, 0x5000), module("/bin/b", 0x1000, 0x5000)},
                       {{0, 0x1234}, {1, 0x1234}}));
  check_addresses(profile);
  EXPECT_NE(profile.location(0).address(), profile.location(1).address());
  EXPECT_EQ(profile.location(0).address() % 4096, 0x234u);
}

TEST(Writer, DistancesInsideAModuleStay) {
  const Profile profile =
      written(model_of({module("/bin/a", 0x1000, 0x5000)}, {{0, 0x1010}, {0, 0x3fff}}));
  EXPECT_EQ(profile.location(1).address() - profile.location(0).address(), 0x3fffu - 0x1010);
  // What mapping start stands for in the ELF file: pprof subtracts it to disassemble.
  EXPECT_EQ(profile.mapping(0).file_offset(), 0x1000u);
}

TEST(Writer, HostileExtentsStayDisjoint) {
  const Profile profile = written(
      model_of({module("[jit]", 0, UINT64_MAX), module("[unknown]", 5, 2), module("/empty", 0, 0),
                module("/bin/a", 0x1000, 0x2000), module("/top", UINT64_MAX - 10, UINT64_MAX)},
               {{0, 1},
                {0, UINT64_MAX},
                {0, uint64_t{1} << 50},
                {1, 77},
                {3, 0},
                {3, 0x99999},
                {4, UINT64_MAX - 3},
                {2, UINT64_MAX - 1},
                {0, 1}}));
  check_addresses(profile);
  EXPECT_LT(profile.location(0).address(), profile.location(2).address());
  EXPECT_LT(profile.location(2).address(), profile.location(1).address());
}

TEST(Writer, RandomModulesStayDisjoint) {
  std::mt19937_64 random(20261129);
  for (int round = 0; round < 200; ++round) {
    std::vector<ModelModule> modules;
    std::vector<std::pair<uint32_t, uint64_t>> locations;
    for (uint32_t m = 0; m < 20; ++m) {
      const int shift = static_cast<int>(random() % 64);
      const uint64_t start = random() >> shift;
      modules.push_back(
          module("/m" + std::to_string(m), start, start + (random() >> (random() % 64))));
      for (int l = 0; l < 5; ++l)
        locations.emplace_back(m, random() % 3 ? start + random() % 9999 : random());
    }
    check_addresses(written(model_of(modules, locations)));
  }
}

TEST(Writer, ValuesTypesAndTimesAreThere) {
  Model model = model_of({module("/bin/a", 0x1000, 0x5000)}, {{0, 0x1010}});
  model.samples[0] = {0, 0, {INT64_MAX, 7, 3, 2}};
  model.time_unix_ns = 1'700'000'000'000'000'000;
  model.duration_ns = 5'000'000'000;
  model.comments = {"gpu-profiled 0.1.0", "app --flag"};
  const Profile profile = written(model);
  const auto text = [&](int64_t i) { return profile.string_table(static_cast<int>(i)); };
  ASSERT_EQ(profile.sample_type_size(), 4);
  EXPECT_EQ(text(profile.sample_type(0).type()), "gpu_time");
  EXPECT_EQ(text(profile.sample_type(0).unit()), "nanoseconds");
  EXPECT_EQ(text(profile.sample_type(1).type()), "gpu_executions");
  EXPECT_EQ(text(profile.sample_type(2).type()), "gpu_pc_samples");
  EXPECT_EQ(text(profile.sample_type(3).type()), "gpu_stall_samples");
  EXPECT_EQ(text(profile.default_sample_type()), "gpu_time");
  EXPECT_THAT(profile.sample(0).value(), ::testing::ElementsAre(INT64_MAX, 7, 3, 2));
  EXPECT_EQ(profile.time_nanos(), model.time_unix_ns);
  EXPECT_EQ(profile.duration_nanos(), model.duration_ns);
  ASSERT_EQ(profile.comment_size(), 2);
  EXPECT_EQ(text(profile.comment(1)), "app --flag");
  EXPECT_EQ(profile.drop_frames(), 0);
  EXPECT_EQ(profile.string_table(0), "");
}

TEST(Writer, HostileStringsBecomePrintableUtf8) {
  Model model = model_of({module("/bin/\xff\x1b[31m", 0x1000, 0x5000)}, {{0, 0x1010}});
  model.functions[0].name = std::string("a\0b\n\xc3\xa9\xed\xa0\x80\xf0\x9f\x98\x80\xc0\xaf", 15);
  const Profile profile = written(model);
  const auto text = [&](int64_t i) { return profile.string_table(static_cast<int>(i)); };
  EXPECT_EQ(text(profile.function(0).name()), "a?b?\xc3\xa9???\xf0\x9f\x98\x80??");
  EXPECT_EQ(text(profile.mapping(0).filename()), "/bin/??[31m");
}

TEST(Writer, ManyEntriesSurviveTheParts) {
  std::vector<std::pair<uint32_t, uint64_t>> locations;
  for (uint64_t i = 0; i < 20'000; ++i) locations.emplace_back(0, 0x1000 + i);
  Model model = model_of({module("/bin/a", 0x1000, 0x50000)}, locations);
  for (size_t i = 0; i < model.samples.size(); ++i) {
    model.label_sets.push_back({{"k" + std::to_string(i % 7), "v" + std::to_string(i), 0, ""},
                                {"n", "", static_cast<int64_t>(i), "bytes"}});
    model.samples[i].label_set = static_cast<uint32_t>(i + 1);
  }
  const Profile profile = written(model);
  ASSERT_EQ(profile.sample_size(), 20'000);
  ASSERT_EQ(profile.location_size(), 20'000);
  ASSERT_EQ(profile.function_size(), 20'000);
  for (int i = 0; i < 20'000; i += 777) {
    const auto& sample = profile.sample(i);
    const auto& location = profile.location(static_cast<int>(sample.location_id(0)) - 1);
    const auto& function = profile.function(static_cast<int>(location.line(0).function_id()) - 1);
    ASSERT_EQ(profile.string_table(static_cast<int>(function.name())), "f" + std::to_string(i));
    ASSERT_EQ(profile.string_table(static_cast<int>(sample.label(0).str())),
              "v" + std::to_string(i));
    ASSERT_EQ(sample.label(1).num(), i);
  }
}

TEST(Writer, BrokenIndicesAreAnErrorNotARead) {
  const Model good = model_of({module("/bin/a", 0x1000, 0x5000)}, {{0, 0x1010}});
  ASSERT_TRUE(serialize(good).has_value());
  std::vector<Model> broken(6, good);
  broken[0].locations[0].module = 1;
  broken[1].locations[0].lines[0].function = 1;
  broken[2].locations[0].lines.clear();
  broken[3].stacks[0][0] = 1;
  broken[4].samples[0].stack = 1;
  broken[5].samples[0].label_set = 1;
  for (const Model& model : broken) {
    const Result<std::string> bytes = serialize(model);
    ASSERT_FALSE(bytes.has_value());
    EXPECT_EQ(bytes.error().code, Code::kInternal);
  }
}

TEST(Writer, EmptyModelIsAValidProfile) {
  const Profile profile = written(Model{});
  EXPECT_EQ(profile.sample_type_size(), 4);
  EXPECT_EQ(profile.sample_size(), 0);
}

}  // namespace
}  // namespace gpuprof::pprof
