// SPDX-License-Identifier: Apache-2.0
//
// Runs the real `go tool pprof` on a profile in a directory of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "daemon/pprof/writer.h"

namespace gpuprof::pprof::testing {

struct Output {
  int status = -1;
  std::string out;
  std::string err;
};

// Nothing is left out of a report, and times are in nanoseconds.
constexpr const char* kAll = "-unit=ns -nodecount=100 -nodefraction=0 -edgefraction=0 ";

// A row of -top; `name` is a regular expression.
inline void expect_row(const Output& top, const std::string& flat, const std::string& cum,
                       const std::string& name) {
  EXPECT_TRUE(std::regex_search(
      top.out, std::regex(" " + flat + " +[0-9.]+%? +[0-9.]+% +" + cum + " +[0-9.]+% +" + name)))
      << name << "\n"
      << top.out;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class GoPprofTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A test that needs it and cannot find it fails: scripts/check installs Go.
    ASSERT_TRUE(std::filesystem::exists(GPUPROF_GO))
        << "go not found at configure time: install golang";
    std::string pattern = (std::filesystem::temp_directory_path() / "gpuprof-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const join::Model& model, const std::string& name = "profile.pb.gz") {
    const Result<std::string> bytes = serialize(model);
    ASSERT_TRUE(bytes.has_value());
    std::ofstream(directory_ / name, std::ios::binary) << *bytes;
  }

  Output pprof(const std::string& options) {
    const std::string command = "cd '" + directory_.string() +
                                "' && HOME=. PPROF_TMPDIR=. timeout 100 " + GPUPROF_GO +
                                " tool pprof " + options + " profile.pb.gz >out 2>err";
    Output output;
    const int status = std::system(command.c_str());
    output.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    output.out = read_file(directory_ / "out");
    output.err = read_file(directory_ / "err");
    return output;
  }

  std::filesystem::path directory_;
};

}  // namespace gpuprof::pprof::testing
