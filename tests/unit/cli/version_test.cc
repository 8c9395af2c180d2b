// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/version.h"

#include <gtest/gtest.h>

#include <regex>

#include "proto/usdt_abi.h"

namespace gpuprof::cli {
namespace {

TEST(Version, NamesVersionCommitAndAbi) {
  const std::string text = version_text();
  EXPECT_TRUE(std::regex_match(
      text,
      std::regex("gpu-profiled [0-9]+\\.[0-9]+\\.[0-9]+\ncommit [^\n]+\nABI [0-9]+: [^\n]+\n")))
      << text;
  EXPECT_NE(text.find("\nABI " + std::to_string(GPUPROF_ABI_VERSION) + ": "), std::string::npos);
}

TEST(Version, CommitIsOneOrSaidToBeUnknown) {
  const std::string commit = build::kCommit;
  EXPECT_TRUE(std::regex_match(commit, std::regex("[0-9a-f]{7,64}(-dirty)?|unknown"))) << commit;
  const std::string line = commit == "unknown" ? "commit unknown: " : "commit " + commit + "\n";
  EXPECT_NE(version_text().find(line), std::string::npos) << version_text();
}

}  // namespace
}  // namespace gpuprof::cli
