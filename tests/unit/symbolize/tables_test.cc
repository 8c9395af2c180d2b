// SPDX-License-Identifier: Apache-2.0
// Symbol tables, perf maps and DWARF on their own, and damaged.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>

#include "daemon/symbolize/debug_info.h"
#include "daemon/symbolize/file_symbols.h"
#include "daemon/symbolize/perf_map.h"
#include "daemon/symbolize/symbol_table.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/file_cache.h"

namespace gpuprof::symbolize {
namespace {

using Bytes = std::vector<uint8_t>;
using unwind::ElfFile;

Bytes read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes((std::istreambuf_iterator<char>(in)), {});
}

class TablesTest : public testing::Test {
 protected:
  TablesTest() {
    auto space = unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files_);
    EXPECT_TRUE(space.has_value());
    space_ = *space;
  }
  unwind::FileCache files_;
  std::shared_ptr<unwind::AddressSpace> space_;
};

// Its names stay as they are in the line program. Where that defines a file there are none: libdw
// takes the length of the directory's name then.
TEST_F(TablesTest, AUnitWithoutADirectoryHasTheLinesOfItsTable) {
  auto file = ElfFile::from_memory(read_file(NO_DIRECTORY));
  ASSERT_TRUE(file.has_value());
  const auto debug = DebugInfo::open((*file)->elf());
  ASSERT_NE(debug, nullptr);
  using Line = std::pair<std::string, uint32_t>;
  std::vector<Line> lines;  // of each byte of code
  for (const ElfFile::Segment& segment : (*file)->segments()) {
    for (uint64_t at = 0; at < segment.memory_size; ++at) {
      const auto found = debug->find(segment.address + at);
      if (found) lines.emplace_back(found->frames.at(0).file, found->frames.at(0).line);
    }
  }
  const std::vector<Line> expected = {{"", 0},
                                      {"", 0},
                                      {"relative.c", 3},
                                      {"/absolute/file.c", 500},
                                      {"/include/included.h", 9},
                                      {"/recorded/first.c", 11},
                                      {"/recorded/second.c", 12}};
  EXPECT_EQ(lines, expected);
}

TEST_F(TablesTest, NoSymbolBeyondTheEndOfOne) {
  auto file = ElfFile::from_memory(read_file(FIXTURE));
  ASSERT_TRUE(file.has_value());
  const SymbolTable table((*file)->elf());
  const ElfFile::Segment text = (*file)->segments()[0];
  int inside = 0;
  int gaps = 0;
  for (uint64_t at = text.address; at < text.address + text.memory_size; ++at) {
    const auto symbol = table.find(at);
    if (!symbol) {
      ++gaps;
      continue;
    }
    ++inside;
    ASSERT_LE(symbol->address, at);
    ASSERT_LT(at, symbol->end);
  }
  EXPECT_GT(inside, 50);
  EXPECT_GE(gaps, 16);  // the first .plt entry, at least, has no symbol
  EXPECT_FALSE(table.find(0).has_value());
  EXPECT_FALSE(table.find(~uint64_t{0}).has_value());
}

TEST_F(TablesTest, PerfMapKeepsGoodLinesAndTheLastWordOnAnAddress) {
  PerfMap map(*space_);
  map.parse(
      "1000 100 first\n"
      "1000 100 replaced\n"
      "0x2000 0x10 with prefix\n"
      "3000 0 empty\n"
      "4000 ffffffffffffffff endless\n"
      "ffffffffffffff00 200 wraps\n"
      "5000\n"
      "5000 10\n"
      "nonsense\n"
      "6000 10 con\ttrol\xff\n"
      "1040 10 inner\n");
  EXPECT_EQ(map.size(), 5u);
  EXPECT_EQ(map.find(0x1000), "replaced");
  EXPECT_EQ(map.find(0x1045), "inner");
  EXPECT_EQ(map.find(0x1050), "replaced");
  EXPECT_EQ(map.find(0x10ff), "replaced");
  EXPECT_EQ(map.find(0x1100), "");
  EXPECT_EQ(map.find(0x200f), "with prefix");
  EXPECT_EQ(map.find(0x6000), "con?trol?");
  EXPECT_EQ(map.find(0x4000), "");
}

TEST_F(TablesTest, PerfMapIsBounded) {
  PerfMap map(*space_);
  std::string text = "1000 10 " + std::string(100'000, 'n') + "\n";
  for (int i = 0; i < 300'000; ++i) text += "2000 10 x\n";
  map.parse(text);
  EXPECT_EQ(map.size(), PerfMap::kMaxEntries);
  EXPECT_EQ(map.find(0x1000).size(), PerfMap::kMaxNameBytes);
}

// As in a container: process numbers of its own, and a /tmp that is not ours.
TEST_F(TablesTest, PerfMapIsOfTheTargetsOwnNumberInTheTargetsRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "name spaces need root";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) _exit(1);
    const pid_t target = fork();
    if (target == 0) {
      if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          mount("none", "/tmp", "tmpfs", 0, "size=64k") != 0)
        _exit(1);
      std::ofstream("/tmp/perf-" + std::to_string(getpid()) + ".map") << "1000 100 theirs\n";
      close(ready[1]);  // the last writer: what is written is told
      for (;;) pause();
    }
    const bool told = write(ready[1], &target, sizeof target) == sizeof target;
    close(ready[1]);
    waitpid(target, nullptr, 0);
    _exit(told ? 0 : 1);
  }
  close(ready[1]);
  pid_t target = 0;
  char end = 0;
  EXPECT_EQ(read(ready[0], &target, sizeof target), ssize_t{sizeof target});
  EXPECT_EQ(read(ready[0], &end, 1), 0);
  close(ready[0]);
  if (target > 0) {
    auto space = unwind::AddressSpace::open({static_cast<uint32_t>(target), 0}, files_);
    EXPECT_TRUE(space.has_value());
    if (space) {
      EXPECT_EQ((*space)->namespace_pid(), 1u);
      EXPECT_EQ(PerfMap(**space).find(0x1010), "theirs");
    }
    kill(target, SIGKILL);
  }
  waitpid(holder, nullptr, 0);
}

// Symbols, strings, abbreviations, DIEs and line programs damaged at random: nothing may crash or
// run without end (run under ASan too).
TEST_F(TablesTest, DamagedFilesDoNotCrash) {
  const Bytes good = read_file(FIXTURE);
  ASSERT_GT(good.size(), 10'000u);
  std::mt19937_64 random(7);
  int parsed = 0;
  int named = 0;
  for (int round = 0; round < 400; ++round) {
    Bytes bad = good;
    const size_t changes = 1 + random() % 64;
    for (size_t i = 0; i < changes; ++i) bad[64 + random() % (bad.size() - 64)] = random() & 0xff;
    auto file = ElfFile::from_memory(std::move(bad));
    if (!file || (*file)->segments().empty()) continue;
    ++parsed;
    const ElfFile::Segment text = (*file)->segments()[0];
    FileSymbols symbols(*file, 64);
    for (uint64_t i = 0; i < 200; ++i) {
      named += !symbols.frames(text.address + i * 4, *space_, "")->empty();
    }
  }
  EXPECT_GT(parsed, 200);
  EXPECT_GT(named, 1000);
}

}  // namespace
}  // namespace gpuprof::symbolize
