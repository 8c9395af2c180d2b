// SPDX-License-Identifier: Apache-2.0
// Where debug information is looked for, and files that are not what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "daemon/symbolize/debug_info.h"
#include "daemon/symbolize/debug_search.h"
#include "daemon/symbolize/file_symbols.h"
#include "daemon/symbolize/mini_debug.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/file_cache.h"
#include "tests/unit/unwind/elf_builder.h"

namespace gpuprof::symbolize {
namespace {

namespace fs = std::filesystem;
using unwind::ElfFile;
using unwind::test::Bytes;
using unwind::test::elf_file;
using unwind::test::put;
using unwind::test::Section;

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes((std::istreambuf_iterator<char>(in)), {});
}

void write_file(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

Bytes text(std::string_view value) { return {value.begin(), value.end()}; }

Bytes xz(const Bytes& in) {
  Bytes out(lzma_stream_buffer_bound(in.size()));
  size_t used = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr, in.data(), in.size(), out.data(),
                                    &used, out.size()),
            LZMA_OK);
  out.resize(used);
  return out;
}

Section build_id(uint8_t fill) {
  Bytes note;
  put(note, 4, 4);
  put(note, 20, 4);
  put(note, 3, 4);  // NT_GNU_BUILD_ID
  const Bytes name = text(std::string_view("GNU\0", 4));
  note.insert(note.end(), name.begin(), name.end());
  note.insert(note.end(), 20, fill);
  return {".note.gnu.build-id", note, SHT_NOTE};
}

Section debug_link(const std::string& name, const Bytes& target) {
  Bytes bytes = text(name);
  bytes.push_back(0);
  while (bytes.size() % 4 != 0) bytes.push_back(0);
  put(bytes, ::crc32(0, target.data(), static_cast<uInt>(target.size())), 4);
  return {".gnu_debuglink", bytes, SHT_PROGBITS, 0};
}

Section alternate_link(const std::string& name, uint8_t fill) {
  Bytes bytes = text(name);
  bytes.push_back(0);
  bytes.insert(bytes.end(), 20, fill);
  return {".gnu_debugaltlink", bytes, SHT_PROGBITS, 0};
}

std::shared_ptr<ElfFile> file_of(std::vector<Section> sections) {
  auto file = ElfFile::from_memory(elf_file(EM_X86_64, std::move(sections)));
  return file ? *file : nullptr;
}

class DebugFilesTest : public testing::Test {
 protected:
  DebugFilesTest() {
    auto space = unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files_);
    EXPECT_TRUE(space.has_value());
    space_ = *space;
    char pattern[] = "/tmp/debug_files.XXXXXX";
    dir_ = mkdtemp(pattern);
  }
  ~DebugFilesTest() override { fs::remove_all(dir_); }
  DebugSearch search() { return DebugSearch(*space_, dir_ / "program"); }
  static uint64_t count(const DebugSearch& search, DebugTrouble trouble) {
    return search.troubles()[static_cast<size_t>(trouble)];
  }

  unwind::FileCache files_;
  std::shared_ptr<unwind::AddressSpace> space_;
  fs::path dir_;
};

TEST_F(DebugFilesTest, ALinkIsFollowedBesideTheFileAndInDotDebugIfTheChecksumFits) {
  const Bytes target = elf_file(EM_X86_64, std::vector<Section>{build_id(1)});
  const auto object = file_of({debug_link("it.debug", target)});
  for (const char* place : {"it.debug", ".debug/it.debug"}) {
    write_file(dir_ / place, target);
    DebugSearch found = search();
    EXPECT_EQ(found.find(*object).path, dir_ / place);
    Bytes other = target;
    other.push_back(0);
    write_file(dir_ / place, other);
    DebugSearch refused = search();
    EXPECT_EQ(refused.find(*object).file, nullptr);
    EXPECT_EQ(count(refused, DebugTrouble::kMismatch), 1u);
    fs::remove(dir_ / place);
  }
  DebugSearch nothing = search();
  EXPECT_EQ(nothing.find(*object).file, nullptr);
  EXPECT_EQ(count(nothing, DebugTrouble::kMismatch), 0u) << "what is not there is no trouble";
}

TEST_F(DebugFilesTest, AnotherBuildIdIsRefusedThoughTheChecksumFits) {
  const Bytes target = elf_file(EM_X86_64, std::vector<Section>{build_id(1)});
  write_file(dir_ / "it.debug", target);
  const auto object = file_of({build_id(2), debug_link("it.debug", target)});
  DebugSearch refused = search();
  EXPECT_EQ(refused.find(*object).file, nullptr);
  EXPECT_EQ(count(refused, DebugTrouble::kMismatch), 1u);
}

TEST_F(DebugFilesTest, ALinkNamesNoPathAndNoDevice) {
  const Bytes target = elf_file(EM_X86_64, std::vector<Section>{build_id(1)});
  write_file(dir_ / "sub/it.debug", target);
  EXPECT_EQ(search().find(*file_of({debug_link("sub/it.debug", target)})).file, nullptr);
  EXPECT_EQ(search().find(*file_of({debug_link("..", target)})).file, nullptr);
  EXPECT_EQ(search().find(*file_of({debug_link("", target)})).file, nullptr);
  ASSERT_EQ(mkfifo((dir_ / "fifo").c_str(), 0600), 0);  // would block whoever opens it
  EXPECT_EQ(search().find(*file_of({debug_link("fifo", target)})).file, nullptr);
}

TEST_F(DebugFilesTest, AnAlternateIsFoundFromTheFileThatALinkLeadsTo) {
  const Bytes alternate = elf_file(EM_X86_64, std::vector<Section>{build_id(3)});
  write_file(dir_ / "dwz/common", alternate);
  const Bytes debug =
      elf_file(EM_X86_64, std::vector<Section>{build_id(1), alternate_link("../dwz/common", 3)});
  write_file(dir_ / "real/it.debug", debug);
  fs::create_symlink("real/it.debug", dir_ / "it.debug");
  DebugSearch found = search();
  const DebugFile file = found.find(*file_of({debug_link("it.debug", debug)}));
  EXPECT_EQ(file.path, dir_ / "real/it.debug");
  EXPECT_EQ(found.find_alternate(file).path, dir_ / "dwz/common");
  EXPECT_EQ(found.troubles(), DebugTroubles());
}

TEST_F(DebugFilesTest, AnAlternateOfAnotherBuildOrWithOneOfItsOwnIsRefused) {
  write_file(dir_ / "other", elf_file(EM_X86_64, std::vector<Section>{build_id(4)}));
  write_file(dir_ / "chained",
             elf_file(EM_X86_64, std::vector<Section>{build_id(3), alternate_link("other", 4)}));
  for (const char* name : {"other", "chained", "missing"}) {
    DebugSearch refused = search();
    const DebugFile object{file_of({alternate_link(name, 3)}), dir_ / "program", false};
    EXPECT_EQ(refused.find_alternate(object).file, nullptr) << name;
    EXPECT_EQ(count(refused, DebugTrouble::kNoAlternate), 1u) << name;
  }
}

TEST_F(DebugFilesTest, MiniDebugInfoIsUnpackedWholeOrNotAtAll) {
  const Bytes image = read_file(FIXTURE);
  const Bytes packed = xz(image);
  const auto unpack = [](Bytes bytes) {
    const auto file = file_of({{".gnu_debugdata", std::move(bytes), SHT_PROGBITS, 0}});
    MiniDebug out = read_mini_debug(file->elf());
    EXPECT_TRUE(out.has_section);
    return out.image;
  };
  EXPECT_EQ(unpack(packed), image);
  EXPECT_EQ(unpack({packed.begin(), packed.end() - 1}), Bytes());
  EXPECT_EQ(unpack({}), Bytes());
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Bytes bad = packed;
    bad[random() % bad.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    const Bytes out = unpack(bad);
    EXPECT_TRUE(out.empty() || out == image);  // the stream has a checksum
  }
  EXPECT_FALSE(read_mini_debug(file_of({build_id(1)})->elf()).has_section);
}

TEST_F(DebugFilesTest, MiniDebugInfoIsBounded) {
  const Bytes bomb = xz(Bytes(kMaxMiniDebugBytes + 1));
  EXPECT_LT(bomb.size(), 100'000u);
  const auto file = file_of({{".gnu_debugdata", bomb, SHT_PROGBITS, 0}});
  const MiniDebug out = read_mini_debug(file->elf());
  EXPECT_TRUE(out.has_section);
  EXPECT_TRUE(out.image.empty());
  FileSymbols symbols(file, 16);
  EXPECT_TRUE(symbols.frames(0x100, *space_, "")->empty());
  EXPECT_EQ(symbols.counts().troubles[static_cast<size_t>(DebugTrouble::kMiniDebug)], 1u);
}

// Both halves of what dwz splits, damaged at random: nothing may crash or run without end.
TEST_F(DebugFilesTest, DamagedPairsDoNotCrash) {
  const fs::path one = dir_ / "one", two = dir_ / "two", common = dir_ / "common";
  fs::copy_file(FIXTURE, one);
  fs::copy_file(FIXTURE, two);
  const std::string command = "dwz -m " + common.string() + " " + one.string() + " " + two.string();
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const Bytes good = read_file(one), good_common = read_file(common);
  std::mt19937_64 random(11);
  int inlined = 0;
  for (int round = 0; round < 300; ++round) {
    Bytes first = good, second = good_common;
    for (Bytes* bytes : {&first, &second}) {
      const size_t changes = round == 0 ? 0 : random() % 32;
      for (size_t i = 0; i < changes; ++i)
        (*bytes)[64 + random() % (bytes->size() - 64)] = random() & 0xff;
    }
    auto file = ElfFile::from_memory(std::move(first));
    auto alternate = ElfFile::from_memory(std::move(second));
    if (!file || (*file)->segments().empty()) continue;
    const auto debug = DebugInfo::open((*file)->elf(), alternate ? (*alternate)->elf() : nullptr);
    if (debug == nullptr) continue;
    const ElfFile::Segment code = (*file)->segments()[0];
    for (uint64_t i = 0; i < std::min<uint64_t>(code.memory_size, 512); ++i) {
      const auto found = debug->find(code.address + i);
      inlined += found && found->frames.size() > 1 && !found->frames[0].function.empty();
    }
    if (round == 0) {
      EXPECT_GT(inlined, 0) << "the names of the good pair";
    }
  }
}

}  // namespace
}  // namespace gpuprof::symbolize
