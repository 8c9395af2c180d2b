// SPDX-License-Identifier: Apache-2.0
//
// A root file system of its own, for tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/base/unique_fd.h"

namespace gpuprof::doctor {

inline constexpr uid_t kNobody = 65534;

class MadeUpRoot : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "doctor-root-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    ::chmod(root_.c_str(), 0755);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path, std::ios::binary) << text;
  }
  void link(const std::string& target, const std::string& path) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(target, root_ + path);
  }
  void copy(const std::string& from, const std::string& path) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::copy_file(from, root_ + path,
                               std::filesystem::copy_options::overwrite_existing);
  }
  [[nodiscard]] UniqueFd open() const {
    return UniqueFd(::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }

  std::string root_;
};

}  // namespace gpuprof::doctor
