// SPDX-License-Identifier: Apache-2.0
//
// The shim core linked as the shim is linked (GPUPROF_CORE_OBJECT, with --gc-sections): what the
// linked file exports, needs and says in its notes.
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <elf.h>
#include <gtest/gtest.h>

#include "proto/usdt_abi.h"

namespace {

struct Note {
  uint64_t pc, base, semaphore;
  std::string provider, args;
};

class CoreObject : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(GPUPROF_CORE_OBJECT, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    ASSERT_GT(bytes_.size(), sizeof(Elf64_Ehdr));
    const auto& head = at<Elf64_Ehdr>(0);
    for (int i = 0; i < head.e_shnum; ++i) {
      const auto& section = at<Elf64_Shdr>(head.e_shoff + i * sizeof(Elf64_Shdr));
      const auto& names = at<Elf64_Shdr>(head.e_shoff + head.e_shstrndx * sizeof(Elf64_Shdr));
      sections_[&bytes_[names.sh_offset + section.sh_name]] = section;
    }
  }
  template <typename T>
  const T& at(size_t offset) const {
    return *reinterpret_cast<const T*>(&bytes_.at(offset));
  }
  std::vector<uint64_t> dynamic(int64_t tag) const {
    std::vector<uint64_t> values;
    const auto& section = sections_.at(".dynamic");
    for (size_t i = 0; i < section.sh_size; i += sizeof(Elf64_Dyn)) {
      const auto& entry = at<Elf64_Dyn>(section.sh_offset + i);
      if (entry.d_tag == tag) values.push_back(entry.d_un.d_val);
    }
    return values;
  }
  std::string dynamic_string(uint64_t offset) const {
    return &bytes_.at(sections_.at(".dynstr").sh_offset + offset);
  }
  std::map<std::string, Note> notes() const {
    std::map<std::string, Note> found;
    const auto& section = sections_.at(".note.stapsdt");
    size_t offset = section.sh_offset;
    while (offset < section.sh_offset + section.sh_size) {
      const auto& head = at<Elf64_Nhdr>(offset);
      offset += sizeof head;
      EXPECT_STREQ(&bytes_.at(offset), "stapsdt");
      EXPECT_EQ(head.n_type, 3u);
      offset += (head.n_namesz + 3) & ~3u;
      Note note{at<uint64_t>(offset), at<uint64_t>(offset + 8), at<uint64_t>(offset + 16), {}, {}};
      const char* text = &bytes_.at(offset + 24);
      note.provider = text;
      const std::string name = text + note.provider.size() + 1;
      note.args = text + note.provider.size() + name.size() + 2;
      EXPECT_EQ(head.n_descsz, 24 + note.provider.size() + name.size() + note.args.size() + 3);
      offset += (head.n_descsz + 3) & ~3u;
      EXPECT_TRUE(found.emplace(name, note).second) << name << " has two notes";
    }
    return found;
  }
  // File offset of an address in .text.
  size_t text_offset(uint64_t address) const {
    const auto& text = sections_.at(".text");
    EXPECT_GE(address, text.sh_addr);
    return address - text.sh_addr + text.sh_offset;
  }

  std::vector<char> bytes_;
  std::map<std::string, Elf64_Shdr> sections_;
};

TEST_F(CoreObject, EveryProbeHasOneNoteWithItsRegistersAndSemaphore) {
  const std::pair<const char*, int> expected[] = {
      {"process_v1", GPUPROF_PROBE_PROCESS}, {"launch_v1", GPUPROF_PROBE_LAUNCH},
      {"exec_v1", GPUPROF_PROBE_EXEC},       {"pc_sample_v1", GPUPROF_PROBE_PC_SAMPLE},
      {"name_v1", GPUPROF_PROBE_NAME},       {"module_v1", GPUPROF_PROBE_MODULE},
      {"device_v1", GPUPROF_PROBE_DEVICE},   {"window_v1", GPUPROF_PROBE_WINDOW},
      {"drop_v1", GPUPROF_PROBE_DROP},       {"autoarm", GPUPROF_PROBE_AUTOARM}};
  const auto found = notes();
  EXPECT_EQ(found.size(), std::size(expected));
  const auto& probes = sections_.at(".probes");
  EXPECT_EQ(probes.sh_flags, uint64_t{SHF_ALLOC | SHF_WRITE});
  for (const auto& [name, probe] : expected) {
    ASSERT_TRUE(found.count(name)) << name;
    const Note& note = found.at(name);
    EXPECT_EQ(note.provider, GPUPROF_USDT_PROVIDER);
#if defined(__x86_64__)
    EXPECT_EQ(note.args, "8@%rdi 4@%esi 8@%rdx");
#else
    EXPECT_EQ(note.args, "8@x0 4@x1 8@x2");
#endif
    EXPECT_EQ(note.base, sections_.at(".stapsdt.base").sh_addr);
    EXPECT_EQ(note.semaphore, probes.sh_addr + 2 * probe) << name;
  }
  EXPECT_EQ(probes.sh_size, 2u * GPUPROF_PROBE_COUNT);
}

#if defined(__x86_64__)
TEST_F(CoreObject, SiteIsNopNop5RetWithinOnePage) {
  constexpr unsigned char kSite[] = {0x90, 0x0f, 0x1f, 0x44, 0, 0, 0xc3};
  for (const auto& [name, note] : notes()) {
    EXPECT_EQ(memcmp(&bytes_.at(text_offset(note.pc)), kSite, sizeof kSite), 0) << name;
    EXPECT_EQ(note.pc / 4096, (note.pc + 5) / 4096) << name;
    EXPECT_EQ(note.pc % 16, 0u) << name;
  }
}
#endif

TEST_F(CoreObject, ExportsOneSymbolWithoutAVersion) {
  std::set<std::string> exported;
  const auto& section = sections_.at(".dynsym");
  for (size_t i = 0; i < section.sh_size; i += sizeof(Elf64_Sym)) {
    const auto& symbol = at<Elf64_Sym>(section.sh_offset + i);
    if (symbol.st_shndx != SHN_UNDEF) exported.insert(dynamic_string(symbol.st_name));
  }
  EXPECT_EQ(exported, std::set<std::string>{"InitializeInjection"});
  EXPECT_TRUE(dynamic(DT_VERDEF).empty());
}

TEST_F(CoreObject, NeedsNoRuntimeButLibcAndNoStaticTls) {
  for (const uint64_t offset : dynamic(DT_NEEDED)) {
    const std::string needed = dynamic_string(offset);
    EXPECT_TRUE(needed.starts_with("libc.so") || needed.starts_with("libpthread.so") ||
                needed.starts_with("ld-linux"))
        << needed;
  }
  for (const uint64_t flags : dynamic(DT_FLAGS)) EXPECT_EQ(flags & DF_STATIC_TLS, 0u);
  // It does have thread-local state, or the check above proves nothing.
  EXPECT_TRUE(sections_.count(".tbss"));
  // No global constructors or destructors: the classic TLS, no relocations of either kind either.
  EXPECT_FALSE(sections_.count(".ctors"));
}

TEST_F(CoreObject, HasNoConstructorsOrDestructorsOfItsOwn) {
  // crtbeginS.o brings frame_dummy and __do_global_dtors_aux, one pointer each.
  if (sections_.count(".init_array")) {
    EXPECT_EQ(sections_.at(".init_array").sh_size, sizeof(void*));
  }
  if (sections_.count(".fini_array")) {
    EXPECT_EQ(sections_.at(".fini_array").sh_size, sizeof(void*));
  }
}

}  // namespace
