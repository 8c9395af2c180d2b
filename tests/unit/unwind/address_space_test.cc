// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/address_space.h"

#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/jit_step.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::unwind {
namespace {

TEST(MapsLine, FileMapping) {
  const auto line = parse_maps_line(
      "7f0123456000-7f0123458000 r-xp 00026000 fe:01 1234                       /usr/lib/lib a.so");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->start, 0x7f0123456000u);
  EXPECT_EQ(line->end, 0x7f0123458000u);
  EXPECT_EQ(line->file_offset, 0x26000u);
  EXPECT_EQ(line->dev, makedev(0xfe, 1));
  EXPECT_EQ(line->inode, 1234u);
  EXPECT_TRUE(line->executable);
  EXPECT_FALSE(line->deleted);
  EXPECT_EQ(line->path, "/usr/lib/lib a.so");
}

TEST(MapsLine, DeletedEscapedAndAnonymous) {
  const auto deleted = parse_maps_line("1000-2000 r-xp 0 8:1 5 /tmp/a\\012b.so (deleted)");
  ASSERT_TRUE(deleted.has_value());
  EXPECT_TRUE(deleted->deleted);
  EXPECT_EQ(deleted->path, "/tmp/a\nb.so");
  EXPECT_EQ(printable(deleted->path), "/tmp/a?b.so");
  const auto anonymous = parse_maps_line("1000-2000 rw-p 00000000 00:00 0 ");
  ASSERT_TRUE(anonymous.has_value());
  EXPECT_FALSE(anonymous->executable);
  EXPECT_EQ(anonymous->path, "");
}

TEST(MapsLine, MalformedLinesAreNothing) {
  for (const char* bad : {"", "1000", "1000-", "2000-1000 r-xp 0 8:1 5", "1000-2000 r-x",
                          "x-y r-xp 0 0:0 0", "1000-2000 r-xp 0 8 5", "1000-2000 r-xp"}) {
    EXPECT_FALSE(parse_maps_line(bad).has_value()) << bad;
  }
}

TEST(Printable, OnlyUtf8WithoutControlBytes) {
  EXPECT_EQ(printable("a\tb\x7f"
                      "c"),
            "a?b?c");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(printable("\xff\xc3(\xed\xa0\x80\xc0\x80"),
            std::string(2, '?') + "(" + std::string(5, '?'));
  EXPECT_EQ(printable("cut \xe2\x82"), "cut ??");
}

TEST(JitStep, EpiloguesThatReturn) {
  const uint8_t plain[] = {0x48, 0x83, 0xc4, 0x08, 0xc3};
  JitStep step = decode_epilogue(plain);
#if defined(__x86_64__)
  ASSERT_TRUE(step.known);
  EXPECT_EQ(step.return_offset, 8u);
  const uint8_t pops[] = {0x48, 0x81, 0xc4, 0x00, 0x01, 0x00, 0x00, 0x5b, 0x41, 0x5c, 0x5d, 0xc3};
  step = decode_epilogue(pops);  // add $256,%rsp; pop %rbx; pop %r12; pop %rbp; ret
  ASSERT_TRUE(step.known);
  ASSERT_EQ(step.pop_count, 3);
  EXPECT_EQ(step.pops[0].reg, 3);
  EXPECT_EQ(step.pops[0].offset, 256u);
  EXPECT_EQ(step.pops[1].reg, 12);
  EXPECT_EQ(step.pops[2].reg, 6);
  EXPECT_EQ(step.return_offset, 280u);
#endif
}

TEST(JitStep, AnythingElseIsUnknown) {
  const uint8_t call[] = {0xff, 0xd0, 0xc3};
  const uint8_t shrink[] = {0x48, 0x83, 0xc4, 0xf8, 0xc3};
  const uint8_t cut[] = {0x48, 0x83, 0xc4, 0x08};
  const uint8_t pop_sp[] = {0x5c, 0xc3};
  EXPECT_FALSE(decode_epilogue(call).known);
  EXPECT_FALSE(decode_epilogue(shrink).known);
  EXPECT_FALSE(decode_epilogue(cut).known);
  EXPECT_FALSE(decode_epilogue(pop_sp).known);
  EXPECT_FALSE(decode_epilogue({}).known);
}

TEST(AddressSpace, NoSuchProcessOrAnotherOne) {
  FileCache files;
  EXPECT_EQ(AddressSpace::open({0x7ffffff0, 0}, files).error().code, Code::kNotFound);
  const auto self = static_cast<uint32_t>(getpid());
  EXPECT_EQ(AddressSpace::open({self, 12345}, files).error().code, Code::kNotFound);
  const auto space = AddressSpace::open({self, 0}, files);
  ASSERT_TRUE(space.has_value());
  EXPECT_NE((*space)->process().start_ticks, 0u);
  EXPECT_TRUE(AddressSpace::open((*space)->process(), files).has_value());
  EXPECT_EQ((*space)->uid(), geteuid());
}

TEST(AddressSpace, ForkedChildrenShareFiles) {
  FileCache files;
  auto mine = AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
  ASSERT_TRUE(mine.has_value());
  const size_t before = files.size();
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  auto theirs = AddressSpace::open({static_cast<uint32_t>(child), 0}, files);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(theirs.has_value());
  EXPECT_EQ(files.size(), before);
  const auto here = reinterpret_cast<uint64_t>(&parse_maps_line);
  ASSERT_NE((*mine)->find(here), nullptr);
  ASSERT_NE((*theirs)->find(here), nullptr);  // although it is gone
  EXPECT_EQ((*mine)->find(here)->file, (*theirs)->find(here)->file);
  EXPECT_FALSE((*theirs)->refresh());
  EXPECT_NE((*theirs)->find(here), nullptr);
  EXPECT_EQ((*theirs)->find(0x1000), nullptr);
}

// Unknown pcs make the maps be read again, but not without end.
TEST(AddressSpace, AnExitedProcessHoldsItsRootOnly) {
  auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    close(gate[1]);
    _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(gate[0]);
  FileCache files;
  const auto before = descriptors();
  auto space = AddressSpace::open({static_cast<uint32_t>(child), 0}, files);
  ASSERT_TRUE(space);
  const auto pc = reinterpret_cast<uint64_t>(&::getpid);
  close(gate[1]);
  waitpid(child, nullptr, 0);
  (*space)->process_exited();
  EXPECT_EQ(descriptors(), before);  // plus the root, less the gate
  const Mapping* known = (*space)->find(pc);
  ASSERT_NE(known, nullptr);
  EXPECT_NE(known->file, nullptr);
  EXPECT_EQ((*space)->find(5000), nullptr) << "and an unknown pc looks at nothing";
  EXPECT_TRUE((*space)->open_in_root("/etc/passwd").has_value());
}

TEST(AddressSpace, UnknownPcsCostABoundedTime) {
  FileCache files;
  auto space = AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
  ASSERT_TRUE(space.has_value());
  const uint64_t before = (*space)->generation();
  for (uint64_t i = 0; i < 100'000; ++i) (void)(*space)->find(0x10000 + i * 4096);
  const uint64_t refreshes = (*space)->generation() - before;
  EXPECT_GT(refreshes, 0u);
  EXPECT_LT(refreshes, 20'000u);
}

// A child that does a step each time `go` is told to.
class Steps {
 public:
  explicit Steps(const std::vector<std::function<void()>>& steps) {
    int go[2], done[2];
    if (pipe(go) != 0 || pipe(done) != 0) abort();
    child_ = fork();
    if (child_ == 0) {
      fcntl(done[1], F_SETFD, FD_CLOEXEC);  // an exec is done when it has happened
      close(go[1]);
      close(done[0]);
      for (const auto& step : steps) {
        char byte = 0;
        if (read(go[0], &byte, 1) != 1) _exit(0);
        step();
        if (write(done[1], &byte, 1) != 1) _exit(0);
      }
      for (;;) pause();
    }
    close(go[0]);
    close(done[1]);
    go_ = UniqueFd(go[1]);
    done_ = UniqueFd(done[0]);
  }
  ~Steps() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  void step() const {
    char byte = 0;
    if (write(go_.get(), &byte, 1) != 1) abort();
    (void)!read(done_.get(), &byte, 1);
  }
  [[nodiscard]] uint32_t pid() const { return static_cast<uint32_t>(child_); }

 private:
  pid_t child_ = 0;
  UniqueFd go_, done_;
};

// Where the first executable segment of an ELF file lies in it; -1 if it has none.
off_t text_offset(int fd) {
  Elf64_Ehdr header;
  if (pread(fd, &header, sizeof header, 0) != sizeof header) return -1;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const auto at = static_cast<off_t>(header.e_phoff + i * sizeof segment);
    if (pread(fd, &segment, sizeof segment, at) != sizeof segment) return -1;
    if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0)
      return static_cast<off_t>(segment.p_offset) & ~(sysconf(_SC_PAGESIZE) - 1);
  }
  return -1;
}

void map_text(const char* path, void* where) {
  const int fd = open(path, O_RDONLY);
  const off_t text = text_offset(fd);
  if (text < 0 ||
      mmap(where, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, text) == MAP_FAILED)
    _exit(9);
  close(fd);
}

// dlclose and dlopen of another library at the same address: old stacks keep the old one.
TEST(AddressSpace, AnotherFileInItsPlaceAsksForANewSpace) {
  FileCache files;
  void* where = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(where, MAP_FAILED);
  const auto pc = reinterpret_cast<uint64_t>(where) + 16;
  const Steps child(
      {[&] { map_text("/bin/true", where); }, [&] { map_text("/bin/false", where); }});
  child.step();
  auto before = AddressSpace::open({child.pid(), 0}, files);
  ASSERT_TRUE(before.has_value());
  EXPECT_TRUE((*before)->refresh());
  child.step();
  EXPECT_FALSE((*before)->refresh());
  EXPECT_TRUE((*before)->replaced());
  ASSERT_NE((*before)->find(pc), nullptr);
  EXPECT_TRUE((*before)->find(pc)->path.ends_with("/true"));
  auto after = AddressSpace::open({child.pid(), 0}, files);
  ASSERT_TRUE(after.has_value());
  ASSERT_NE((*after)->find(pc), nullptr);
  EXPECT_TRUE((*after)->find(pc)->path.ends_with("/false"));
  EXPECT_FALSE((*after)->replaced());
  munmap(where, 4096);
}

// What the test below execs: this very file, as another process image.
[[gnu::constructor]] void sleep_if_asked() {
  if (getenv("GPUPROF_TEST_SLEEP") != nullptr) sleep(60);
}

// Also of the same file, which lies elsewhere then.
TEST(AddressSpace, ExecEndsIt) {
  for (const char* program : {"/bin/sleep", "/proc/self/exe"}) {
    FileCache files;
    const Steps child({[&] {
      setenv("GPUPROF_TEST_SLEEP", "1", 1);
      execl(program, "sleep", "60", nullptr);
    }});
    auto space = AddressSpace::open({child.pid(), 0}, files);
    ASSERT_TRUE(space.has_value());
    const auto here = reinterpret_cast<uint64_t>(&parse_maps_line);
    EXPECT_TRUE((*space)->refresh());
    child.step();
    EXPECT_FALSE((*space)->refresh()) << program;
    EXPECT_FALSE((*space)->replaced());
    ASSERT_NE((*space)->find(here), nullptr) << program;
    EXPECT_NE((*space)->find(here)->file, nullptr);
  }
}

TEST(AddressSpace, ExitedProcessesOfOneRootHoldOneDescriptor) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  FileCache files;
  std::vector<std::shared_ptr<AddressSpace>> spaces;
  const auto before = descriptors();
  for (int i = 0; i < 20; ++i) {
    const Steps child({[] {}});
    auto space = AddressSpace::open({child.pid(), 0}, files);
    ASSERT_TRUE(space.has_value());
    spaces.push_back(*space);
    spaces.back()->process_exited();
  }
  EXPECT_EQ(descriptors(), before + 1);
  EXPECT_TRUE(spaces[7]->open_in_root("/bin/true").has_value());
  spaces.clear();
  EXPECT_EQ(descriptors(), before);
}

TEST(AddressSpace, OpensInTheTargetsRootRegularFilesOnly) {
  FileCache files;
  auto space = AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
  ASSERT_TRUE(space.has_value());
  const auto dir =
      std::filesystem::temp_directory_path() / ("space_test." + std::to_string(getpid()));
  std::filesystem::create_directory(dir);
  std::ofstream(dir / "file") << "x";
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("/proc/self/maps", dir / "magic");
  EXPECT_TRUE((*space)->open_in_root(dir / "file").has_value());
  EXPECT_FALSE((*space)->open_in_root(dir / "fifo").has_value());  // and does not hang
  EXPECT_FALSE((*space)->open_in_root("/dev/null").has_value());
  EXPECT_FALSE((*space)->open_in_root(dir / "absent").has_value());
  EXPECT_FALSE((*space)->open_in_root(dir).has_value());
  std::filesystem::remove_all(dir);
}

// What libelf notes in the headers stays, everything else is the file's again.
TEST(ElfFile, ReleasedPagesAreReadAgain) {
  const UniqueFd fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  auto mapped = MappedFile::map(fd.get());
  ASSERT_TRUE(mapped.has_value());
  const std::span<uint8_t> bytes = mapped->bytes();
  auto file = ElfFile::from_file(std::move(*mapped));
  ASSERT_TRUE(file.has_value());
  Elf64_Shdr* const header = elf64_getshdr(elf_getscn((*file)->elf(), 1));
  ASSERT_NE(header, nullptr);
  const ElfFile::Segment code = (*file)->segments().front();
  const uint64_t at = code.file_offset + code.file_size / 2;
  const uint8_t original = bytes[at];
  header->sh_info = 77;
  bytes[at] = static_cast<uint8_t>(~original);
  (*file)->release_pages();
  EXPECT_EQ(header->sh_info, 77u);
  EXPECT_EQ(bytes[at], original);
}

}  // namespace
}  // namespace gpuprof::unwind
