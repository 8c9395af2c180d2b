// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Object, Machine) {
  EXPECT_THAT(violations_of(Fixture(), "machine x86-64"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "machine aarch64"),
              ElementsAre("machine: is made for x86-64, not aarch64 (e_machine)"));
  EXPECT_THAT(violations_of(Fixture().set("MACHINE", "EM_AARCH64"), "machine aarch64"), IsEmpty());
}

TEST(Object, Kind) {
  EXPECT_THAT(violations_of(Fixture(), "kind library"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "kind executable"),
              ElementsAre(HasSubstr("kind: is made as library, not executable")));
  EXPECT_THAT(violations_of(Fixture().set("FLAGS_1", "0x08000001"), "kind library"),  // DF_1_PIE
              ElementsAre(HasSubstr("kind: is made as executable, not library")));
  EXPECT_THAT(violations_of(Fixture().set("TYPE", "ET_EXEC"), "kind executable"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().set("FLAGS_1", "0x49"), "kind library"),
              ElementsAre("kind: may not be dlopened (DF_1_NOOPEN)"));
}

TEST(Object, OsAbi) {
  EXPECT_THAT(violations_of(Fixture(), "os-abi none"), IsEmpty());
  Fixture gnu;
  gnu.set("OSABI", "ELFOSABI_GNU");
  EXPECT_THAT(violations_of(gnu, "os-abi none"),
              ElementsAre("os-abi: OS ABI is 3, not none (EI_OSABI)"));
  EXPECT_THAT(violations_of(gnu, "os-abi gnu"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().set("OSABI", "ELFOSABI_FREEBSD"), "os-abi gnu"),
              ElementsAre("os-abi: OS ABI is 9, not gnu (EI_OSABI)"));
}

TEST(Object, Identification) {
  EXPECT_THAT(violations_of(Fixture().set("ABI_VERSION", "9"), "os-abi gnu"),
              ElementsAre("os-abi: the ABI version is 9, not 0 (EI_ABIVERSION)"));
  auto image = Fixture().build();
  image[EI_PAD + 2] = 1;
  EXPECT_THAT(violations_of(image, "os-abi none"),
              ElementsAre("os-abi: the identification's padding is not 0 (EI_PAD)"));
  image = Fixture().build();
  image[offsetof(Elf64_Ehdr, e_version)] = 2;
  EXPECT_THAT(violations_of(image, "os-abi none"),
              ElementsAre("os-abi: the ELF version is 2, not 1 (e_version)"));
  EXPECT_THAT(violations_of(image, ""), IsEmpty());
  image[offsetof(Elf64_Ehdr, e_phentsize)] = 57;
  EXPECT_EQ(error_of(image), "program headers of 57 bytes, not 56");
}

// pr_type, pr_datasz and pr_data as they lie in the file.
constexpr const char* kNeedsV3 = "028000c00400000004000000";
constexpr const char* kIbtAndShstk = "020000c00400000003000000";
constexpr const char* kBtiAndPac = "000000c00400000003000000";

TEST(Object, IsaLevel) {
  EXPECT_THAT(violations_of(Fixture(), "max-isa-level 1"), IsEmpty());
  Fixture v3;
  v3.set("PROPERTY", kNeedsV3);
  EXPECT_THAT(
      violations_of(v3, "max-isa-level 2"),
      ElementsAre("isa-level: needs x86-64-v3, more than v2 (GNU_PROPERTY_X86_ISA_1_NEEDED)"));
  EXPECT_THAT(violations_of(v3, "max-isa-level 3"), IsEmpty());
  EXPECT_THAT(violations_of(v3, ""), IsEmpty());
}

TEST(Object, Cet) {
  Fixture marked;
  marked.set("PROPERTY", kIbtAndShstk);
  EXPECT_THAT(violations_of(marked, "ibt require\nshstk require"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "ibt require\nshstk require"),
              ElementsAre("cet: is not marked for IBT (NT_GNU_PROPERTY_TYPE_0)",
                          "cet: is not marked for SHSTK (NT_GNU_PROPERTY_TYPE_0)"));
  EXPECT_THAT(violations_of(marked, "shstk forbid"),
              ElementsAre("cet: is marked for SHSTK (NT_GNU_PROPERTY_TYPE_0)"));
  EXPECT_THAT(violations_of(Fixture(), "ibt forbid\nshstk forbid"), IsEmpty());
  // Marks of another machine.
  EXPECT_THAT(violations_of(Fixture(), "bti require\npac require"), IsEmpty());
}

TEST(Object, BtiAndPac) {
  Fixture marked;
  marked.set("MACHINE", "EM_AARCH64").set("PROPERTY", kBtiAndPac);
  EXPECT_THAT(violations_of(marked, "bti require\npac require"), IsEmpty());
  EXPECT_THAT(violations_of(marked, "bti forbid"),
              ElementsAre(HasSubstr("bti-pac: is marked for BTI")));
  EXPECT_THAT(violations_of(Fixture().set("MACHINE", "EM_AARCH64"), "pac require"),
              ElementsAre(HasSubstr("bti-pac: is not marked for PAC")));
}

}  // namespace
}  // namespace gpuprof::elfgate
