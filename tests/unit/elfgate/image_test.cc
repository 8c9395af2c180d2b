// SPDX-License-Identifier: Apache-2.0
//
// What elfgate reads from, and the files that it refuses.
#include "tools/elfgate/elf_image.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/unit/elfgate/fixture.h"
#include "tools/elfgate/read_facts.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Image = std::vector<uint8_t>;

template <class T>
void put(Image& image, size_t offset, T value) {
  ASSERT_LE(offset + sizeof(value), image.size());
  std::memcpy(image.data() + offset, &value, sizeof(value));
}

std::vector<std::string> names_of(const Image& image) {
  const auto elf = ElfImage::from_memory(image);
  EXPECT_TRUE(elf) << elf.error();
  const auto facts = read_facts(*elf);
  EXPECT_TRUE(facts) << facts.error();
  std::vector<std::string> names;
  for (const Symbol& symbol : facts->symbols) names.push_back(symbol.spelled());
  return names;
}

TEST(Image, OtherMachinesAreRefusedInOneLine) {
  Image narrow = Fixture().build();
  narrow[EI_CLASS] = ELFCLASS32;
  EXPECT_EQ(error_of(narrow), "a 32-bit file; only 64-bit ones are supported");
  Image big_endian = Fixture().build();
  big_endian[EI_DATA] = ELFDATA2MSB;
  EXPECT_EQ(error_of(big_endian), "a big-endian file; only x86-64 and aarch64 are supported");
  Image riscv = Fixture().build();
  put<uint16_t>(riscv, offsetof(Elf64_Ehdr, e_machine), EM_RISCV);
  EXPECT_EQ(error_of(riscv), "machine 243; only x86-64 and aarch64 are supported");
}

TEST(Image, WhatIsNoProgramAndNoLibraryIsRefused) {
  const Image image = Fixture().build();
  Image object = image;
  put<uint16_t>(object, offsetof(Elf64_Ehdr, e_type), ET_REL);
  EXPECT_EQ(error_of(object), "an object file; check what is linked from it");
  Image core = image;
  put<uint16_t>(core, offsetof(Elf64_Ehdr, e_type), ET_CORE);
  EXPECT_EQ(error_of(core), "neither a program nor a shared library");
  EXPECT_THAT(error_of({}), HasSubstr("not an ELF file"));
  EXPECT_THAT(error_of(Image(100, 'x')), HasSubstr("not an ELF file"));
}

TEST(Image, ReadsWhatTheLoaderReadsNotTheSections) {
  const Image image = Fixture().build();
  EXPECT_THAT(names_of(image),
              ElementsAre("dlopen@GLIBC_2.17", "__cxa_atexit@GLIBC_2.17", "start"));
  Image stripped = image;
  put<uint64_t>(stripped, offsetof(Elf64_Ehdr, e_shoff), 0);
  put<uint16_t>(stripped, offsetof(Elf64_Ehdr, e_shnum), 0);
  put<uint16_t>(stripped, offsetof(Elf64_Ehdr, e_shstrndx), 0);
  EXPECT_EQ(names_of(stripped), names_of(image));
  // Without a hash table the relocations alone know how many symbols there are.
  Image bare = Fixture().set("HASH_TAG", "DT_DEBUG").build();
  put<uint64_t>(bare, offsetof(Elf64_Ehdr, e_shoff), 0);
  put<uint16_t>(bare, offsetof(Elf64_Ehdr, e_shnum), 0);
  put<uint16_t>(bare, offsetof(Elf64_Ehdr, e_shstrndx), 0);
  EXPECT_EQ(names_of(bare), names_of(image));
}

TEST(Image, TablesBeyondTheFileAreErrors) {
  for (const char* tag : {"DT_SYMTAB", "DT_VERSYM", "DT_VERNEED", "DT_VERDEF", "DT_GNU_HASH",
                          "DT_HASH", "DT_RELA", "DT_STRTAB"}) {
    EXPECT_THAT(error_of(Fixture().add_dynamic(tag, 0x7fffffff0000).build()),
                HasSubstr("lies in no loaded segment"))
        << tag;
  }
  EXPECT_THAT(error_of(Fixture().add_dynamic("DT_RELASZ", 0xffffffffffff).build()),
              HasSubstr("lies in no loaded segment"));
  EXPECT_THAT(error_of(Fixture().add_dynamic("DT_NEEDED", 0xffff).build()),
              HasSubstr("outside the dynamic string table"));
}

TEST(Image, ACutFileIsAnError) {
  const Image image = Fixture().build();
  size_t errors = 0;
  for (size_t size = 0; size < image.size(); size += 64) {
    if (error_of(Image(image.begin(), image.begin() + static_cast<ptrdiff_t>(size))) != "no error")
      ++errors;
  }
  // Section headers come last, so no cut file is whole.
  EXPECT_EQ(errors, (image.size() + 63) / 64);
}

TEST(Image, AHashChainWithoutEndIsAnError) {
  Image image = Fixture().build();
  // .gnu.hash: header 16, bloom 8, bucket 4, chain.
  std::fill(image.begin() + 0x1000 + 28, image.begin() + 0x2008, 0);
  EXPECT_NE(error_of(image), "no error");
}

TEST(Image, AnyByteMayBeWrong) {
  const Image image = Fixture().add_probe("begin", "8@%rdi", 0x2000, 0x3802).build();
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    Image broken = image;
    for (int k = 0; k < 3; ++k) {
      // Where something is, not in the zeros between.
      size_t at = random() % broken.size();
      while (broken[at] == 0 && at + 1 < broken.size()) ++at;
      broken[at] = static_cast<uint8_t>(random());
    }
    EXPECT_FALSE(error_of(broken).empty());
    EXPECT_EQ(error_of(broken).find('\n'), std::string::npos);
  }
}

// A library of `count` symbols that all have one name of `length` bytes.
Image one_name_library(uint32_t count, uint32_t length) {
  constexpr uint64_t kTables = 0x1000;
  const uint64_t hash = kTables;  // DT_HASH: only its second word, the count, is asked for
  const uint64_t strings = hash + 8;
  const uint64_t symbols = strings + 1 + length + 1;
  Image image(symbols + uint64_t{count} * sizeof(Elf64_Sym));
  const uint64_t size = image.size();
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = EM_X86_64;
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof(header);
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 2;
  put(image, 0, header);
  constexpr uint64_t kDynamic = 0x200;
  put(image, sizeof(header), Elf64_Phdr{PT_LOAD, PF_R, 0, 0, 0, size, size, 0x1000});
  put(image, sizeof(header) + sizeof(Elf64_Phdr),
      Elf64_Phdr{PT_DYNAMIC, PF_R, kDynamic, kDynamic, 0, 0x100, 0x100, 8});
  const uint64_t dynamic[] = {DT_HASH,   hash,   DT_STRTAB, strings, DT_STRSZ, uint64_t{length} + 2,
                              DT_SYMTAB, symbols};
  std::memcpy(image.data() + kDynamic, dynamic, sizeof(dynamic));
  put(image, hash + 4, count);
  std::fill_n(image.begin() + static_cast<ptrdiff_t>(strings) + 1, length, 'x');
  for (uint64_t i = 0; i < count; ++i)
    put(image, symbols + i * sizeof(Elf64_Sym), Elf64_Sym{1, 0x12, 0, 1, 0, 0});
  return image;
}

TEST(Image, ManySymbolsOfOneLongNameAreBounded) {
  EXPECT_EQ(error_of(one_name_library(1000, 50'000)), "no error");
  EXPECT_EQ(error_of(one_name_library(10'000, 50'000)),
            "the symbols' names are longer than 256 MiB together");
  EXPECT_EQ(error_of(one_name_library(10, 70'000)), "a symbol's name is longer than 64 KiB");
}

TEST(Image, FilesThatAreNone) {
  EXPECT_EQ(ElfImage::open("/proc/self/nonexistent").error(), "No such file or directory");
  EXPECT_EQ(ElfImage::open("/dev/null").error(), "not a regular file");
  EXPECT_EQ(ElfImage::open("/").error(), "not a regular file");
  EXPECT_TRUE(ElfImage::open("/proc/self/exe"));
}

}  // namespace
}  // namespace gpuprof::elfgate
