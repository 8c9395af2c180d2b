// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kArguments = "8@%rdi 4@%esi";
const std::string kPolicy =
    "usdt-provider small\nusdt-semaphores .probes\nusdt-duplicates forbid\n"
    "usdt-probe small begin 8@%rdi 4@%esi\nusdt-probe small end 8@%rdi 4@%esi\n";

Fixture both() {
  Fixture fixture;
  return fixture.add_probe("begin", kArguments, 0x2000, 0x3802)
      .add_probe("end", kArguments, 0x2002, 0x3804);
}

TEST(Probes, ExactlyTheListed) {
  EXPECT_THAT(violations_of(both(), kPolicy), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().add_probe("begin", kArguments, 0x2000, 0x3802), kPolicy),
              ElementsAre("usdt: has no probe small:end (.note.stapsdt)"));
  EXPECT_THAT(violations_of(both().add_probe("more", kArguments, 0x2004, 0x3806), kPolicy),
              ElementsAre("usdt: has the probe small:more, which the policy does not list "
                          "(.note.stapsdt, site 0x2004)"));
  EXPECT_THAT(violations_of(Fixture(), kPolicy).size(), 2U);
  EXPECT_THAT(violations_of(Fixture(), ""), IsEmpty());
}

TEST(Probes, OtherProvidersAreNotAsked) {
  EXPECT_THAT(violations_of(both().add_probe("more", kArguments, 0x2004, 0),
                            "usdt-provider other\nusdt-semaphores .probes"),
              IsEmpty());
}

TEST(Probes, Arguments) {
  EXPECT_THAT(violations_of(Fixture()
                                .add_probe("begin", "8@%rsi 4@%esi", 0x2000, 0x3802)
                                .add_probe("end", kArguments, 0x2002, 0x3804),
                            kPolicy),
              ElementsAre("usdt: small:begin has the arguments '8@%rsi 4@%esi', not '8@%rdi "
                          "4@%esi' (.note.stapsdt, site 0x2000)"));
}

TEST(Probes, ASiteLiesInCode) {
  EXPECT_THAT(
      violations_of(Fixture()
                        .add_probe("begin", kArguments, 0x3000, 0x3802)
                        .add_probe("end", kArguments, 0x2002, 0x3804),
                    kPolicy),
      ElementsAre("usdt: small:begin has a site outside the code (.note.stapsdt, site 0x3000)"));
}

TEST(Probes, NoneTwice) {
  const Fixture fixture = both().add_probe("end", kArguments, 0x2004, 0x3804);
  EXPECT_THAT(violations_of(fixture, kPolicy),
              ElementsAre("usdt-duplicates: small:end has 2 sites (.note.stapsdt)"));
  EXPECT_THAT(violations_of(fixture, kPolicy + "usdt-duplicates any"), IsEmpty());
}

TEST(Probes, EverySiteIsChecked) {
  const std::string policy = kPolicy + "usdt-duplicates any";
  EXPECT_THAT(violations_of(both().add_probe("end", "4@%rdi 4@%esi", 0x2004, 0x3804), policy),
              ElementsAre("usdt: small:end has the arguments '4@%rdi 4@%esi', not '8@%rdi 4@%esi' "
                          "(.note.stapsdt, site 0x2004)"));
  EXPECT_THAT(violations_of(both().add_probe("end", kArguments, 0x3000, 0x3804), policy),
              ElementsAre(HasSubstr("small:end has a site outside the code")));
}

TEST(Probes, EachHasASemaphoreOfItsOwn) {
  const auto with_semaphore = [](uint64_t semaphore) {
    return Fixture()
        .add_probe("begin", kArguments, 0x2000, 0x3802)
        .add_probe("end", kArguments, 0x2002, semaphore);
  };
  EXPECT_THAT(violations_of(with_semaphore(0), kPolicy),
              ElementsAre("usdt-semaphores: small:end has no semaphore (.note.stapsdt)"));
  EXPECT_THAT(violations_of(with_semaphore(0x2002), kPolicy),
              ElementsAre("usdt-semaphores: small:end's semaphore is no word in .probes "
                          "(.note.stapsdt, semaphore 0x2002)"));
  EXPECT_THAT(violations_of(with_semaphore(0x3805), kPolicy),
              ElementsAre(HasSubstr("is no word in .probes")));
  EXPECT_THAT(violations_of(with_semaphore(0x383f), kPolicy),
              ElementsAre(HasSubstr("is no word in .probes")));
  EXPECT_THAT(violations_of(with_semaphore(0x3802), kPolicy),
              ElementsAre("usdt-semaphores: small:end shares its semaphore with small:begin "
                          "(.note.stapsdt, semaphore 0x3802)"));
  EXPECT_THAT(violations_of(with_semaphore(0), kPolicy + "usdt-semaphores any"), IsEmpty());
}

}  // namespace
}  // namespace gpuprof::elfgate
