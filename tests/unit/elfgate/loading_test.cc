// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Loading, Textrel) {
  EXPECT_THAT(violations_of(Fixture(), "textrel forbid"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().add_dynamic("DT_TEXTREL", 0), "textrel forbid"),
              ElementsAre("textrel: has relocations in read-only segments (DT_TEXTREL)"));
  EXPECT_THAT(violations_of(Fixture().set("FLAGS", "0xc"), "textrel forbid"),
              ElementsAre(HasSubstr("textrel")));
}

TEST(Loading, ExecutableStack) {
  EXPECT_THAT(violations_of(Fixture(), "exec-stack forbid"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().set("STACK_FLAGS", "PF_R, PF_W, PF_X"), "exec-stack forbid"),
              ElementsAre("exec-stack: asks for an executable stack (PT_GNU_STACK)"));
  EXPECT_THAT(violations_of(Fixture().set("STACK", "PT_NULL"), "exec-stack forbid"),
              ElementsAre(HasSubstr("PT_GNU_STACK is missing")));
}

TEST(Loading, Relro) {
  EXPECT_THAT(violations_of(Fixture(), "relro full"), IsEmpty());
  Fixture lazy;
  lazy.set("FLAGS", "0").set("FLAGS_1", "0x8");
  EXPECT_THAT(violations_of(lazy, "relro partial"), IsEmpty());
  EXPECT_THAT(violations_of(lazy, "relro full"), ElementsAre(HasSubstr("relro: binds lazily")));
  EXPECT_THAT(violations_of(Fixture().set("RELRO", "PT_NULL"), "relro partial"),
              ElementsAre(HasSubstr("relro: has no PT_GNU_RELRO")));
  EXPECT_THAT(violations_of(lazy, "relro full\nrelro any"), IsEmpty());
}

TEST(Loading, StaticTls) {
  const std::string policy = "static-tls forbid";
  EXPECT_THAT(violations_of(Fixture(), policy), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().set("FLAGS", "0x18"), policy),
              ElementsAre("static-tls: its thread-local variables must lie in the static TLS block "
                          "(DF_STATIC_TLS)"));
  EXPECT_THAT(violations_of(Fixture().set("RELOCATION", "18").set("RELOCATION2", "18"), policy),
              ElementsAre(HasSubstr("(2 initial-exec relocations)")));
  EXPECT_THAT(violations_of(Fixture().set("RELOCATION", "18").set("FLAGS", "0x18"), policy),
              ElementsAre(HasSubstr("(DF_STATIC_TLS, 1 initial-exec relocations)")));
  EXPECT_THAT(
      violations_of(Fixture().set("MACHINE", "EM_AARCH64").set("RELOCATION", "1030"), policy),
      ElementsAre(HasSubstr("1 initial-exec")));
  // A program's are there in any case.
  EXPECT_THAT(violations_of(Fixture().set("FLAGS", "0x18").set("FLAGS_1", "0x08000001"), policy),
              IsEmpty());
}

TEST(Loading, TlsDescriptors) {
  const std::string policy = "tls-descriptors forbid\nstatic-tls forbid";
  EXPECT_THAT(violations_of(Fixture().set("RELOCATION", "36"), policy),
              ElementsAre("tls-descriptors: uses TLS descriptors (1 TLSDESC relocations)"));
  EXPECT_THAT(
      violations_of(Fixture().set("MACHINE", "EM_AARCH64").set("RELOCATION", "1031"), policy),
      ElementsAre(HasSubstr("1 TLSDESC")));
  EXPECT_THAT(violations_of(Fixture().set("RELOCATION", "16"), policy),
              IsEmpty());  // R_X86_64_DTPMOD64
  EXPECT_THAT(violations_of(Fixture().set("RELOCATION", "36"), "static-tls forbid"), IsEmpty());
}

TEST(Loading, HashTables) {
  EXPECT_THAT(violations_of(Fixture(), "gnu-hash require"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "sysv-hash require"),
              ElementsAre("hash: has no DT_HASH (PT_DYNAMIC)"));
  EXPECT_THAT(violations_of(Fixture(), "gnu-hash forbid"),
              ElementsAre("hash: has DT_GNU_HASH (PT_DYNAMIC)"));
  Fixture none;
  none.set("HASH_TAG", "DT_DEBUG");
  EXPECT_THAT(violations_of(none, "gnu-hash require\nsysv-hash require"),
              ElementsAre(HasSubstr("has no DT_GNU_HASH"), HasSubstr("has no DT_HASH")));
}

TEST(Loading, PackedRelocations) {
  EXPECT_THAT(violations_of(Fixture(), "packed-relocations forbid"), IsEmpty());
  Fixture packed;
  packed.add_dynamic("DT_RELRSZ", 16);
  EXPECT_THAT(violations_of(packed, "packed-relocations forbid"),
              ElementsAre("packed-relocations: has 16 bytes of packed relocations (DT_RELR)"));
  EXPECT_THAT(violations_of(packed, ""), IsEmpty());
}

TEST(Loading, Nodelete) {
  EXPECT_THAT(violations_of(Fixture(), "nodelete require"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "nodelete forbid"),
              ElementsAre("nodelete: cannot be unloaded (DF_1_NODELETE)"));
  Fixture goes;
  goes.set("FLAGS_1", "0x1");
  EXPECT_THAT(violations_of(goes, "nodelete require"),
              ElementsAre("nodelete: can be unloaded (DF_1_NODELETE is not set)"));
  EXPECT_THAT(violations_of(goes, "nodelete forbid"), IsEmpty());
}

TEST(Loading, Alignment) {
  EXPECT_THAT(violations_of(Fixture(), "min-load-align 4096"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "min-load-align 65536"),
              ElementsAre("load-align: segments are aligned to 4096 bytes, not 65536 (PT_LOAD)"));
  EXPECT_THAT(violations_of(Fixture().set("ALIGN", "0x10000"), "min-load-align 65536"), IsEmpty());
}

TEST(Loading, BuildId) {
  EXPECT_THAT(violations_of(Fixture(), "build-id require"), IsEmpty());
  EXPECT_THAT(
      violations_of(Fixture(), "build-id forbid"),
      ElementsAre(
          "build-id: has the build id 0102030405060708090a0b0c0d0e0f1011121314 (NT_GNU_BUILD_ID)"));
  EXPECT_THAT(violations_of(Fixture().set("BUILD_ID", "0x7f"), "build-id require"),
              ElementsAre("build-id: has no build id (NT_GNU_BUILD_ID)"));
}

}  // namespace
}  // namespace gpuprof::elfgate
