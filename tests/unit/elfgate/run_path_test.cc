// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<uint8_t> with_path(const std::string& tag, const std::string& path) {
  return Fixture().add_dynamic_text(tag, path).build();
}

TEST(RunPath, Absent) {
  const auto image = with_path("DT_RUNPATH", "/opt/lib");
  EXPECT_THAT(violations_of(image, "runpath forbid\nrpath forbid"),
              ElementsAre("runpath: has the run path /opt/lib (DT_RUNPATH)"));
  EXPECT_THAT(violations_of(Fixture(), "runpath forbid\nrpath forbid"), IsEmpty());
  EXPECT_THAT(violations_of(image, "runpath require"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "runpath require"),
              ElementsAre(HasSubstr("has no run path")));
}

TEST(RunPath, TheOldTagHasAKeyOfItsOwn) {
  const auto image = with_path("DT_RPATH", "/opt/lib");
  EXPECT_THAT(violations_of(image, "runpath forbid"), IsEmpty());
  EXPECT_THAT(violations_of(image, "rpath forbid"),
              ElementsAre("rpath: has the run path /opt/lib (DT_RPATH)"));
}

// What a packager asks: the compat libcuda is found before the driver's.
constexpr std::string_view kCompatFirst = "include " POLICIES "/cuda-compat.policy";

TEST(RunPath, CompatBeforeTheDriver) {
  EXPECT_THAT(
      violations_of(
          with_path("DT_RUNPATH",
                    "/nix/store/x-cuda_compat-12/compat:/run/opengl-driver/lib:/nix/store/y/lib"),
          kCompatFirst),
      IsEmpty());
  EXPECT_THAT(
      violations_of(
          with_path("DT_RUNPATH",
                    "/nix/store/x-cuda_compat-12/compat/:/nix/store/y/lib:/run/opengl-driver/lib/"),
          kCompatFirst),
      IsEmpty());
}

TEST(RunPath, CompatAppendedIsAViolation) {
  const auto image =
      with_path("DT_RUNPATH", "/run/opengl-driver/lib:/nix/store/x-cuda_compat-12/compat");
  EXPECT_THAT(violations_of(image, kCompatFirst),
              ElementsAre("runpath: the first entry is /run/opengl-driver/lib, not "
                          "*cuda_compat*/compat (DT_RUNPATH)"));
  EXPECT_THAT(
      violations_of(image, "runpath-order */compat /run/opengl-driver/lib"),
      ElementsAre("runpath: /nix/store/x-cuda_compat-12/compat comes after /run/opengl-driver/lib "
                  "(DT_RUNPATH entries 2 and 1)"));
}

TEST(RunPath, NotPrependedIsAViolation) {
  const auto image = with_path("DT_RUNPATH", "/lib/a:/x/cuda_compat/compat:/run/opengl-driver/lib");
  EXPECT_THAT(violations_of(image, kCompatFirst),
              ElementsAre(HasSubstr("the first entry is /lib/a")));
  EXPECT_THAT(violations_of(image, "runpath-order */compat /run/opengl-driver/lib"), IsEmpty());
}

TEST(RunPath, AMissingEntryIsAViolation) {
  EXPECT_THAT(violations_of(with_path("DT_RUNPATH", "/x/cuda_compat/compat:/y"), kCompatFirst),
              ElementsAre("runpath: no entry matches /run/opengl-driver/lib (DT_RUNPATH)"));
  EXPECT_THAT(violations_of(Fixture(), kCompatFirst), ElementsAre(HasSubstr("has no run path")));
  EXPECT_THAT(violations_of(Fixture(), "runpath-first /x"),
              ElementsAre(HasSubstr("the first entry is missing")));
}

TEST(RunPath, CompatAndTheDriverThemselvesAreExempt) {
  Fixture driver;
  driver.set("SONAME", "libcuda.so.1").add_dynamic_text("DT_NEEDED", "libcuda.so.1");
  EXPECT_THAT(violations_of(driver, kCompatFirst), IsEmpty());
  driver.set("SONAME", "libplugin.so");
  EXPECT_THAT(violations_of(driver, kCompatFirst),
              ElementsAre(HasSubstr("needs libcuda.so.1"), HasSubstr("has no run path")));
}

TEST(RunPath, TheLoaderIgnoresTheOldTagBesideTheNew) {
  Fixture fixture;
  fixture.add_dynamic_text("DT_RPATH", "/a:/b").add_dynamic_text("DT_RUNPATH", "/b:/a");
  EXPECT_THAT(violations_of(fixture, "runpath-order /b /a"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, "runpath-order /a /b"),
              ElementsAre(HasSubstr("/a comes after /b")));
  EXPECT_THAT(violations_of(with_path("DT_RPATH", "/a:/b"), "runpath-order /a /b"), IsEmpty());
}

TEST(RunPath, RelativeAndDeniedEntries) {
  const auto image = with_path("DT_RUNPATH", "$ORIGIN/../lib::lib:/home/me/lib");
  EXPECT_THAT(
      violations_of(image, "runpath-relative forbid"),
      ElementsAre("runpath: searches the current directory (an empty entry) (DT_RUNPATH entry 2)",
                  "runpath: searches lib in the current directory (DT_RUNPATH entry 3)"));
  EXPECT_THAT(violations_of(image, "deny-runpath /home/*"),
              ElementsAre("runpath: searches /home/me/lib, which is denied (DT_RUNPATH entry 4)"));
  EXPECT_THAT(violations_of(with_path("DT_RUNPATH", "$ORIGIN:/usr/lib"),
                            "runpath-relative forbid\ndeny-runpath /home/*"),
              IsEmpty());
}

}  // namespace
}  // namespace gpuprof::elfgate
