// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string error_in(std::string_view text) {
  Policy policy;
  const Status added = add_policy_text(policy, text, "p", ".");
  return added ? "no error" : added.error();
}

TEST(PolicyText, CommentsAndEmptyLines) {
  EXPECT_EQ(error_in("# all\n\n  \t\n  soname a  \r\n# end"), "no error");
}

TEST(PolicyText, ErrorsNameFileLineAndKey) {
  EXPECT_EQ(error_in("\nsonam a"), "p:2: no key is called 'sonam'");
  EXPECT_EQ(error_in("max-version GLIBC"), "p:1: max-version takes NAMESPACE X.Y");
  EXPECT_EQ(error_in("max-version GLIBC two"),
            "p:1: max-version: 'two' is no version such as 2.17");
  EXPECT_EQ(error_in("relro most"), "p:1: relro: 'most' is none of any|partial|full");
  EXPECT_EQ(error_in("textrel require"), "p:1: textrel: 'require' is none of any, forbid");
  EXPECT_EQ(error_in("ibt yes"), "p:1: ibt: 'yes' is none of any, require, forbid");
  EXPECT_EQ(error_in("min-load-align 64K"), "p:1: min-load-align: '64K' is no number");
  EXPECT_EQ(error_in("off everything"), "p:1: off: no check is called 'everything'");
  EXPECT_EQ(error_in("exempt neded a"), "p:1: exempt: no check is called 'neded'");
  EXPECT_THAT(error_in("include nonexistent.policy"), HasSubstr("No such file or directory"));
}

TEST(PolicyText, EveryKeyHasHelp) {
  for (const KeyHelp& key : policy_keys()) EXPECT_FALSE(key.text.empty()) << key.key;
}

TEST(PolicyText, LaterLinesWin) {
  EXPECT_THAT(violations_of(Fixture(), "max-version GLIBC 2.2\nmax-version GLIBC 2.17"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "soname other\nsoname any"), IsEmpty());
}

TEST(PolicyText, EachCheckCanBeSwitchedOff) {
  Fixture fixture;
  fixture.add_dynamic_text("DT_RUNPATH", "/opt/lib").set("STACK", "PT_NULL");
  const std::string policy = "runpath forbid\nexec-stack forbid\n";
  EXPECT_THAT(violations_of(fixture, policy).size(), 2U);
  EXPECT_THAT(violations_of(fixture, policy + "off runpath"), ElementsAre(HasSubstr("exec-stack")));
  EXPECT_THAT(violations_of(fixture, policy + "off runpath exec-stack"), IsEmpty());
}

class PolicyFiles : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string error_of_file(const std::string& name) {
    Policy policy;
    const Status added = add_policy_file(policy, folder_ + "/" + name);
    return added ? "no error" : added.error();
  }
  std::string folder_ = (std::filesystem::temp_directory_path() / "policies.XXXXXX").string();
};

TEST_F(PolicyFiles, IncludeFromTheirOwnDirectory) {
  write("base.policy", "soname libsmall.so.1\n");
  write("more.policy", "include base.policy\nmachine x86-64\n");
  Policy policy;
  ASSERT_TRUE(add_policy_file(policy, folder_ + "/more.policy"));
  EXPECT_EQ(policy.soname, "libsmall.so.1");
  EXPECT_EQ(policy.machine, "x86-64");
}

TEST_F(PolicyFiles, ErrorsOfAnIncludedFile) {
  write("base.policy", "nope\n");
  write("more.policy", "include base.policy\n");
  write("self.policy", "include self.policy\n");
  write("empty.policy", "");
  EXPECT_THAT(error_of_file("more.policy"), HasSubstr("base.policy:1: no key is called 'nope'"));
  EXPECT_THAT(error_of_file("self.policy"), HasSubstr("too deep"));
  EXPECT_THAT(error_of_file("."), HasSubstr("Is a directory"));
  EXPECT_EQ(error_of_file("empty.policy"), "no error");
}

TEST(PolicyFile, EveryOneOfOursCanBeRead) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(POLICIES)) {
    Policy policy;
    const Status added = add_policy_file(policy, entry.path());
    EXPECT_TRUE(added) << added.error();
    ++count;
  }
  EXPECT_GE(count, 5U);
}

TEST(PolicyFile, ThePermissiveOneIsBuiltIn) {
  std::ifstream file(std::string(POLICIES) + "/permissive.policy");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(default_policy_text(), text);
}

TEST(PolicyFile, ThePermissiveOneAsksForNothingUnpromised) {
  Fixture ordinary;
  ordinary.add_dynamic_text("DT_RUNPATH", "/opt/lib")
      .add_dynamic_text("DT_NEEDED", "libstdc++.so.6");
  ordinary.set("FLAGS", "0x10")
      .set("FLAGS_1", "0")
      .set("RELRO", "PT_NULL")
      .set("SONAME_TAG", "DT_DEBUG");
  EXPECT_THAT(violations_of(ordinary, default_policy_text()), IsEmpty());
  ordinary.add_dynamic("DT_TEXTREL", 0).add_dynamic_text("DT_NEEDED", "build/libx.so");
  EXPECT_THAT(violations_of(ordinary, default_policy_text()),
              ElementsAre(HasSubstr("needs build/libx.so"), HasSubstr("textrel")));
}

}  // namespace
}  // namespace gpuprof::elfgate
