// SPDX-License-Identifier: Apache-2.0
// Names and lines of generated code, as V8 and CPython write them for perf.
#include "daemon/symbolize/jit_dump.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "daemon/base/unique_fd.h"
#include "daemon/symbolize/symbolizer.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "tests/unit/unwind/elf_builder.h"

namespace gpuprof::symbolize {
namespace {

using unwind::test::Bytes;
using unwind::test::put;

Bytes header(uint32_t version = 1) {
  Bytes out;
  for (const uint32_t word : {0x4A695444u, version, 40u, 62u, 0u, 1u}) put(out, word, 4);
  put(out, 0, 16);
  return out;
}

void put_text(Bytes& out, std::string_view text) {
  out.insert(out.end(), text.begin(), text.end());
  out.push_back(0);
}

Bytes record(uint32_t id, const Bytes& body) {
  Bytes out;
  put(out, id, 4);
  put(out, 16 + body.size(), 4);
  put(out, 7, 8);  // a time
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

Bytes load(uint64_t address, uint64_t size, uint64_t index, std::string_view name) {
  Bytes body;
  put(body, 1, 8);
  for (const uint64_t word : {address, address, size, index}) put(body, word, 8);
  put_text(body, name);
  body.insert(body.end(), std::min<uint64_t>(size, 256), 0x90);
  return record(0, body);
}

Bytes move(uint64_t from, uint64_t to, uint64_t size, uint64_t index) {
  Bytes body;
  put(body, 1, 8);
  for (const uint64_t word : {to, from, to, size, index}) put(body, word, 8);
  return record(1, body);
}

struct LineAt {
  uint64_t address;
  uint32_t line;
  std::string file;
};
Bytes lines(uint64_t address, const std::vector<LineAt>& entries) {
  Bytes body;
  put(body, address, 8);
  put(body, entries.size(), 8);
  for (const LineAt& entry : entries) {
    put(body, entry.address, 8);
    put(body, entry.line, 4);
    put(body, 0, 4);
    put_text(body, entry.file);
  }
  return record(2, body);
}

Bytes joined(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

std::span<const std::byte> view(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

class JitDumpTest : public testing::Test {
 protected:
  JitDumpTest() {
    auto space = unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files_);
    EXPECT_TRUE(space.has_value());
    space_ = *space;
  }
  static void expect(JitDump& dump, uint64_t pc, const char* name, const char* file,
                     uint32_t line) {
    const auto code = dump.find(pc);
    ASSERT_TRUE(code.has_value()) << std::hex << pc;
    EXPECT_EQ(code->name, name);
    EXPECT_EQ(code->file, file);
    EXPECT_EQ(code->line, line);
  }

  unwind::FileCache files_;
  std::shared_ptr<unwind::AddressSpace> space_;
};

TEST_F(JitDumpTest, LoadsMovesAndLines) {
  JitDump dump(*space_);
  const Bytes bytes =
      joined({header(), load(0x1000, 0x100, 1, "plain"),
              lines(0x2000, {{0x2010, 7, "/a.js"}, {0x2040, 9, "\xff"}, {0x2080, 3, "/b.js"}}),
              load(0x2000, 0x100, 2, "JS:*with lines /a.js:5"), record(9, {1, 2, 3}),
              move(0x2000, 0x5000, 0x100, 2), load(0x1000, 0x80, 3, "replaced")});
  EXPECT_EQ(dump.parse(view(bytes)), bytes.size());
  expect(dump, 0x1000, "replaced", "", 0);
  expect(dump, 0x1080, "plain", "", 0);
  expect(dump, 0x2000, "JS:*with lines /a.js:5", "", 0);
  expect(dump, 0x2010, "JS:*with lines /a.js:5", "/a.js", 7);
  expect(dump, 0x204f, "JS:*with lines /a.js:5", "/a.js", 9);
  expect(dump, 0x20ff, "JS:*with lines /a.js:5", "/b.js", 3);
  expect(dump, 0x5011, "JS:*with lines /a.js:5", "/a.js", 7);
  EXPECT_FALSE(dump.find(0x1100).has_value());
}

TEST_F(JitDumpTest, ARecordThatIsHalfWrittenIsTakenLater) {
  const Bytes bytes =
      joined({header(), load(0x1000, 0x100, 1, "first"), lines(0x2000, {{0x2000, 4, "/a.py"}}),
              load(0x2000, 0x10, 2, "second")});
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    JitDump dump(*space_);
    const uint64_t done = dump.parse(view(bytes).first(cut));
    ASSERT_LE(done, bytes.size());
    if (done < bytes.size()) dump.parse(view(bytes).subspan(done));
    expect(dump, 0x1000, "first", "", 0);
    expect(dump, 0x2008, "second", "/a.py", 4);
    EXPECT_EQ(dump.size(), 2u);
  }
}

TEST_F(JitDumpTest, OtherFilesAndBrokenRecordsGiveNothing) {
  Bytes big_endian = header();
  std::swap(big_endian[0], big_endian[3]);
  for (const Bytes& bytes :
       {Bytes{}, Bytes(100), big_endian, header(2), joined({header(), Bytes(64)}),
        joined({header(), record(0, {})}), joined({header(), record(1, Bytes(48))}),
        joined({header(), load(0x1000, 0, 1, "empty")}),
        joined({header(), load(~uint64_t{0} - 8, 0x100, 1, "wraps")}),
        joined({header(), load(0x1000, 0x10, 1, "")})}) {
    JitDump dump(*space_);
    dump.parse(view(bytes));
    EXPECT_EQ(dump.size(), 0u);
  }
}

TEST_F(JitDumpTest, DamagedDumpsDoNotCrash) {
  const Bytes good = joined({header(), load(0x1000, 0x100, 1, "first"),
                             lines(0x2000, {{0x2000, 4, "/a.py"}, {0x2004, 5, "\xff"}}),
                             load(0x2000, 0x10, 2, "second"), move(0x2000, 0x3000, 0x10, 2)});
  std::mt19937_64 random(5);
  for (int round = 0; round < 20'000; ++round) {
    Bytes bad = good;
    for (size_t i = random() % 8 + 1; i > 0; --i)
      bad[random() % bad.size()] = static_cast<uint8_t>(random());
    JitDump dump(*space_);
    dump.parse(view(bad));
    for (uint64_t pc = 0x1000; pc < 0x4000; pc += 0x800) (void)dump.find(pc);
  }
}

// The file is found by the mapping that its writer makes, and read on as it grows.
TEST_F(JitDumpTest, OfThisProcess) {
  char pattern[] = "/tmp/jit_dump.XXXXXX";
  const std::filesystem::path folder = mkdtemp(pattern);
  const std::filesystem::path path = folder / ("jit-" + std::to_string(getpid()) + ".dump");
  const auto append = [&](const Bytes& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::app)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  };
  append(header());
  const UniqueFd fd(open(path.c_str(), O_RDONLY));
  void* marker = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(marker, MAP_FAILED);
  void* memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_TRUE(space_->refresh());
  SymbolCache cache;
  Symbolizer symbolizer(space_, cache);
  const auto address = reinterpret_cast<uint64_t>(memory);
  EXPECT_TRUE(symbolizer.resolve(address).frames.empty());
  append(lines(address, {{address, 42, "/srv/model.py"}}));
  append(load(address, 64, 1, "py::forward:/srv/model.py"));
  usleep(150'000);  // it is looked at every 100 ms
  const SymbolizedPc named = symbolizer.resolve(address + 4);
  ASSERT_EQ(named.frames.size(), 1u);
  EXPECT_EQ(named.frames[0].function, "forward");
  EXPECT_EQ(named.frames[0].file, "/srv/model.py");
  EXPECT_EQ(named.frames[0].line, 42u);
  munmap(marker, 4096);
  munmap(memory, 4096);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gpuprof::symbolize
