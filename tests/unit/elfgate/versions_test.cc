// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Versions, TellsANeedAboveTheLimit) {
  Fixture fixture;
  fixture.add("versions", "- { Name: GLIBC_2.34, Hash: 0, Flags: 0, Other: 3 }");
  fixture.set("VERSION_OF_DLOPEN", "3");
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17"),
              ElementsAre("versions: needs GLIBC_2.34, more than GLIBC_2.17 (libc.so.6: dlopen)"));
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.34"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, ""), IsEmpty());
}

TEST(Versions, ComparesNumbersNotTexts) {
  Fixture fixture;
  fixture.add("versions", "- { Name: GLIBC_2.2.5, Hash: 0, Flags: 0, Other: 3 }");
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.9"),
              ElementsAre(HasSubstr("needs GLIBC_2.17")));
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17.0"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 3"), IsEmpty());
}

TEST(Versions, AMarkerIsNoNumber) {
  Fixture fixture;
  fixture.add("versions", "- { Name: GLIBC_ABI_GNU2_TLS, Hash: 0, Flags: 0, Other: 3 }");
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.99"),
              ElementsAre("versions: needs the marker GLIBC_ABI_GNU2_TLS (libc.so.6)"));
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.99\nallow-version GLIBC_ABI_*"),
              IsEmpty());
}

TEST(Versions, EveryNamespaceHasItsLimit) {
  for (const std::string name : {"GLIBCXX_3.4.30", "CXXABI_1.3.13", "GCC_7.0.0"}) {
    Fixture fixture;
    fixture.add("versions", "- { Name: " + name + ", Hash: 0, Flags: 0, Other: 3 }");
    const std::string space = name.substr(0, name.find('_'));
    std::string what = "needs " + name;
    what.append(", more than ").append(space).append("_1");
    EXPECT_THAT(violations_of(fixture, "max-version " + space + " 1"),
                ElementsAre(HasSubstr(what)));
    EXPECT_THAT(violations_of(fixture, "max-version " + space + " 99"), IsEmpty());
    // The limit of one says nothing of another.
    EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17"), IsEmpty());
    EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17\nunlisted-versions forbid"),
                ElementsAre(HasSubstr(name + ", which the policy does not list")));
  }
}

TEST(Versions, TheLongerNamespaceCounts) {
  Fixture fixture;
  fixture.add("versions", "- { Name: CXXABI_TM_1, Hash: 0, Flags: 0, Other: 3 }");
  EXPECT_THAT(violations_of(fixture, "max-version CXXABI 1.3"),
              ElementsAre(HasSubstr("the marker CXXABI_TM_1")));
  EXPECT_THAT(violations_of(fixture, "max-version CXXABI 1.3\nmax-version CXXABI_TM 1"), IsEmpty());
}

TEST(Versions, DeniedOnesAreToldThoughTheyAreLow) {
  const Fixture fixture;
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.34\ndeny-version GLIBC_2.1?"),
              ElementsAre(HasSubstr("needs GLIBC_2.17, which is denied")));
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.34\ndeny-version GLIBC_2.3?"), IsEmpty());
}

TEST(Versions, AWeakNeedMayBeMissing) {
  Fixture fixture;
  fixture.add("versions", "- { Name: GLIBC_2.34, Hash: 0, Flags: 2, Other: 3 }");
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17"), IsEmpty());
}

// The loader goes on without the version, and then does not find the symbol.
TEST(Versions, AStrongSymbolsWeakNeedMayNot) {
  Fixture fixture;
  fixture.add("versions", "- { Name: GLIBC_2.34, Hash: 0, Flags: 2, Other: 3 }");
  fixture.set("VERSION_OF_DLOPEN", "3");
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17"),
              ElementsAre("versions: needs GLIBC_2.34, more than GLIBC_2.17 (libc.so.6: dlopen)"));
  fixture.set("BINDING_OF_DLOPEN", "STB_WEAK");
  EXPECT_THAT(violations_of(fixture, "max-version GLIBC 2.17"), IsEmpty());
}

}  // namespace
}  // namespace gpuprof::elfgate
