// SPDX-License-Identifier: Apache-2.0
#include "shim/core/name_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "shim/core/owner.h"
#include "shim/core/status.h"
#include "shim/core/xxh3.h"
#include "tests/unit/shim/core_site_hook.h"

namespace gpuprof::shim {
namespace {

using Recorder = testing::SiteRecorder<GPUPROF_PROBE_NAME, gpuprof_name_v1>;

// Puts chunks together; fails on a chunk out of order or of another shape.
std::map<uint64_t, std::string> assemble(const std::vector<gpuprof_name_v1>& chunks) {
  std::map<uint64_t, std::string> names;
  for (const auto& chunk : chunks) {
    std::string& name = names[chunk.id];
    if (chunk.offset == 0) name.clear();
    EXPECT_EQ(chunk.offset, name.size());
    EXPECT_LE(chunk.chunk_bytes, GPUPROF_NAME_CHUNK_BYTES);
    name.append(chunk.bytes, chunk.chunk_bytes);
    EXPECT_LE(name.size(), chunk.total_bytes);
    EXPECT_TRUE(chunk.chunk_bytes == GPUPROF_NAME_CHUNK_BYTES || name.size() == chunk.total_bytes);
  }
  return names;
}

class Names : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)own_process();
    ASSERT_EQ(table.create(), Status::kOk);
  }
  NameTable table;
};

TEST_F(Names, WithoutATableEverythingIsZero) {
  NameTable none;
  EXPECT_EQ(none.intern("kernel"), 0u);
}

TEST_F(Names, IdIsTheHashAndTheNameGoesOutOnce) {
  Recorder recorder(gpuprof_fire_name_v1);
  const std::string name = "_Z6kernelPfi";
  const uint64_t id = table.intern(name.c_str());
  EXPECT_EQ(id, xxh3_64(name.data(), name.size()));
  EXPECT_EQ(table.intern(std::string(name).c_str()), id);
  ASSERT_EQ(recorder.records().size(), 1u);
  EXPECT_EQ(assemble(recorder.records())[id], name);
  EXPECT_EQ(recorder.records()[0].kind, uint32_t{GPUPROF_NAME_FUNCTION});
  EXPECT_EQ(table.intern(nullptr), 0u);
  EXPECT_EQ(table.intern(""), 0u);
}

TEST_F(Names, LongNamesAreChunkedAndLongerOnesCut) {
  Recorder recorder(gpuprof_fire_name_v1);
  std::string name;
  for (int i = 0; name.size() < 3000; ++i) name += "Template<" + std::to_string(i) + ">::";
  const uint64_t id = table.intern(name.c_str());
  EXPECT_EQ(assemble(recorder.records())[id], name);
  const uint64_t cut = drop_total(GPUPROF_DROP_NAME_CUT);
  const std::string a(20'000, 'k'), b = a + "x";
  const uint64_t id_a = table.intern(a.c_str()), id_b = table.intern(b.c_str());
  EXPECT_NE(id_a, id_b);  // the cut text is the same, the names are not
  EXPECT_EQ(assemble(recorder.records())[id_a], a.substr(0, GPUPROF_NAME_MAX_BYTES));
  EXPECT_EQ(drop_total(GPUPROF_DROP_NAME_CUT) - cut, 2u);
  EXPECT_EQ(table.intern(a.c_str()), id_a);
  EXPECT_EQ(drop_total(GPUPROF_DROP_NAME_CUT) - cut, 2u);
}

TEST_F(Names, ReplayTellsALateReaderEverything) {
  std::map<uint64_t, std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = std::string(static_cast<size_t>(i % 700) + 1, 'n') + std::to_string(i);
    expected[table.intern(name.c_str())] = name;
  }
  EXPECT_TRUE(table.put(GPUPROF_NAME_STALL, 0, "barrier", 7));
  EXPECT_TRUE(table.put(GPUPROF_NAME_STALL, 1, "wait", 4));
  expected[0] = "barrier";
  expected[1] = "wait";
  Recorder recorder(gpuprof_fire_name_v1);
  table.replay();
  EXPECT_EQ(assemble(recorder.records()), expected);
}

TEST_F(Names, ConcurrentFirstSightsEmitEachNameOnce) {
  Recorder recorder(gpuprof_fire_name_v1);
  constexpr int kThreads = 4, kNames = 2000;
  std::vector<std::vector<uint64_t>> ids(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kNames; ++i)
        ids[t].push_back(table.intern(("k" + std::to_string(i)).c_str()));
    });
  }
  for (int i = 0; i < 20; ++i) table.replay();  // races with the insertions
  for (auto& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(ids[t], ids[0]);
  EXPECT_EQ(table.size(), static_cast<uint32_t>(kNames));
  const auto names = assemble(recorder.records());
  ASSERT_EQ(names.size(), static_cast<size_t>(kNames));
  for (int i = 0; i < kNames; ++i) EXPECT_EQ(names.at(ids[0][i]), "k" + std::to_string(i));
}

TEST_F(Names, FullTableKeepsWhatItKnows) {
  const uint64_t first = table.intern("first");
  uint32_t refused = 0;
  for (int i = 0; i < 60'000; ++i) refused += table.intern(std::to_string(i).c_str()) == 0;
  EXPECT_EQ(table.size(), NameTable::kSlots / 8 * 7);
  EXPECT_EQ(refused, 60'000 + 1 - table.size());
  EXPECT_EQ(table.intern("first"), first);
  EXPECT_EQ(table.intern("brand new"), 0u);
}

TEST_F(Names, FullArenaRefusesForGood) {
  uint64_t accepted = 0;
  std::string name(GPUPROF_NAME_MAX_BYTES, 'a');
  for (int i = 0; i < 600; ++i) {  // 9.4 MiB into 8
    const std::string number = std::to_string(i);
    std::copy(number.begin(), number.end(), name.begin());
    accepted += table.intern(name.c_str()) != 0;
  }
  EXPECT_EQ(accepted, NameTable::kArenaBytes / GPUPROF_NAME_MAX_BYTES);
  EXPECT_EQ(table.intern(name.c_str()), 0u);  // the last one, seen again
}

}  // namespace
}  // namespace gpuprof::shim
