// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Libraries, OnlyTheAllowedAreNeeded) {
  Fixture fixture;
  fixture.add_dynamic_text("DT_NEEDED", "libstdc++.so.6");
  EXPECT_THAT(violations_of(fixture, "allow-needed libc.so.6 libdl.so.2"),
              ElementsAre("needed: needs libstdc++.so.6, which is not allowed (DT_NEEDED)"));
  EXPECT_THAT(violations_of(fixture, "allow-needed libc.so.6 libstdc++.so.*"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, "allow-needed none"),
              ElementsAre(HasSubstr("needs libc.so.6"), HasSubstr("needs libstdc++.so.6")));
}

TEST(Libraries, TheDeniedAreNotNeeded) {
  Fixture fixture;
  fixture.add_dynamic_text("DT_NEEDED", "libcuda.so.1");
  const std::string policy = "deny-needed libcuda.so*";
  EXPECT_THAT(violations_of(fixture, policy),
              ElementsAre("needed: needs libcuda.so.1, which is denied (DT_NEEDED)"));
  EXPECT_THAT(violations_of(Fixture(), policy), IsEmpty());
}

TEST(Libraries, FilteesAreLoadedToo) {
  for (const std::string tag : {"DT_FILTER", "DT_AUXILIARY"}) {
    Fixture fixture;
    fixture.add_dynamic_text(tag, "libcuda.so.1");
    EXPECT_THAT(violations_of(fixture, "deny-needed libcuda.so*"),
                ElementsAre("needed: needs libcuda.so.1, which is denied (" + tag + ")"));
    EXPECT_THAT(violations_of(fixture, "allow-needed libc.so.6"),
                ElementsAre("needed: needs libcuda.so.1, which is not allowed (" + tag + ")"));
    EXPECT_THAT(violations_of(fixture, "allow-needed libc.so.6 libcuda.so.1"), IsEmpty());
  }
}

TEST(Libraries, CudaCompatItselfIsExempt) {
  Fixture fixture;
  fixture.add_dynamic_text("DT_NEEDED", "libcuda.so.1").set("SONAME", "libcudadebugger.so.1");
  const std::string policy = "deny-needed libcuda.so*\nexempt needed libcudadebugger.so.*";
  EXPECT_THAT(violations_of(fixture, policy), IsEmpty());
  fixture.set("SONAME", "libother.so.1");
  EXPECT_THAT(violations_of(fixture, policy), ElementsAre(HasSubstr("needs libcuda.so.1")));
  // By the file's name too.
  EXPECT_THAT(violations_of(fixture.build(), policy, "libcudadebugger.so.580.95"), IsEmpty());
}

TEST(Libraries, Soname) {
  Fixture fixture;
  EXPECT_THAT(violations_of(fixture, "soname libsmall.so.?"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, "soname libbig.so"),
              ElementsAre("soname: SONAME is libsmall.so.1, not libbig.so (DT_SONAME)"));
  EXPECT_THAT(violations_of(fixture, "soname none"), ElementsAre(HasSubstr("it should have none")));
  fixture.set("SONAME_TAG", "DT_DEBUG");
  EXPECT_THAT(violations_of(fixture, "soname libsmall.so.1"),
              ElementsAre("soname: has no SONAME, not libsmall.so.1 (DT_SONAME)"));
  EXPECT_THAT(violations_of(fixture, "soname none"), IsEmpty());
}

TEST(Libraries, Interpreter) {
  Fixture fixture;
  EXPECT_THAT(violations_of(fixture, "interpreter none"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, "interpreter /lib64/ld-linux-x86-64.so.2"),
              ElementsAre(HasSubstr("interpreter: the interpreter is none")));
  fixture.add(
      "segments",
      "- { Type: PT_INTERP, Flags: [ PF_R ], VAddr: 0x2000, FirstSec: .interp, LastSec: .interp }");
  fixture.add("sections", "- { Name: .interp, Type: SHT_PROGBITS, Content: " +
                              hex_of(std::string("/lib/ld-musl.so.1\0", 18)) + " }");
  EXPECT_THAT(
      violations_of(fixture, "interpreter none"),
      ElementsAre("interpreter: the interpreter is /lib/ld-musl.so.1, not none (PT_INTERP)"));
  EXPECT_THAT(violations_of(fixture, "interpreter /lib/ld-*"), IsEmpty());
}

}  // namespace
}  // namespace gpuprof::elfgate
