// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/shim_mappings.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "daemon/target/shim_file.h"
#include "tests/unit/doctor/made_up_root.h"

namespace gpuprof::doctor {
namespace {

const std::string kName = std::string("/") + target::kShimFileName;

target::Mapping mapping(uint64_t start, uint64_t inode, const std::string& path,
                        bool executable = true) {
  target::Mapping out;
  out.start = start;
  out.inode = inode;
  out.executable = executable;
  out.path = path;
  return out;
}

TEST(ShimMappings, OneForEachFile) {
  const auto found = shim_mappings(
      {mapping(1, 7, "/a" + kName, false), mapping(2, 7, "/a" + kName), mapping(3, 7, "/a" + kName),
       mapping(4, 8, "/b" + kName + " (deleted)"), mapping(5, 9, "/a/other.so")});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].start, 2u);
  EXPECT_EQ(found[1].path, "/b" + kName);
}

TEST(ShimMappings, AForkHasItAtTheSameAddress) {
  const std::vector<ShimMapping> parent = {{"/a" + kName, 100, 7}};
  EXPECT_TRUE(is_fork_of({{"/a" + kName, 100, 7}}, parent));
  EXPECT_FALSE(is_fork_of({{"/a" + kName, 200, 7}}, parent)) << "loaded anew";
  EXPECT_FALSE(is_fork_of({{"/a" + kName, 100, 8}}, parent));
  EXPECT_FALSE(is_fork_of({}, parent));
}

class Replaced : public MadeUpRoot {};

TEST_F(Replaced, ByItsInode) {
  write("/shim.so", "old");
  struct stat info = {};
  ASSERT_EQ(::stat((root_ + "/shim.so").c_str(), &info), 0);
  const ShimMapping shim = {"/shim.so", 1, info.st_ino};
  EXPECT_FALSE(is_replaced(shim, open()));
  write("/new.so", "new");
  std::filesystem::rename(root_ + "/new.so", root_ + "/shim.so");
  EXPECT_TRUE(is_replaced(shim, open()));
  std::filesystem::remove(root_ + "/shim.so");
  EXPECT_TRUE(is_replaced(shim, open()));
}

}  // namespace
}  // namespace gpuprof::doctor
