// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/output_series.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "daemon/cli/deputy.h"

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;

class OutputSeriesTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-series-XXXXXX";
    directory_ = std::string(::mkdtemp(pattern)) + "/";
    owner_.uid = ::geteuid();
    owner_.gid = ::getegid();
  }
  void TearDown() override { fs::remove_all(directory_); }
  OutputSeries open(OutputFile::Existing existing = OutputFile::Existing::kKeep) {
    auto series = OutputSeries::open(directory_, "a.pb.gz", existing, owner_, "-o");
    EXPECT_TRUE(series.has_value());
    return std::move(*series);
  }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(directory_))
      out.insert(entry.path().filename().string());
    return out;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(directory_ + name, std::ios::binary).rdbuf();
    return out.str();
  }
  std::string directory_;
  Invoker owner_;
};

TEST_F(OutputSeriesTest, ANameThatIsTakenGetsANumber) {
  std::ofstream(directory_ + "a.pb.gz") << "older";
  fs::create_directory(directory_ + "a-3.pb.gz");
  OutputSeries series = open();
  EXPECT_EQ(names().size(), 2u) << "nothing is left of the look at the directory";
  for (const char* bytes : {"one", "two", "three"}) {
    auto path = series.write("a.pb.gz", bytes);
    ASSERT_TRUE(path.has_value()) << path.error().message;
  }
  auto path = series.write("b.json", "{}");
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(*path, directory_ + "b.json");
  ASSERT_EQ(series.write("b.json", "[]"), directory_ + "b-2.json");
  EXPECT_EQ(names(), (std::set<std::string>{"a.pb.gz", "a-2.pb.gz", "a-3.pb.gz", "a-4.pb.gz",
                                            "a-5.pb.gz", "b.json", "b-2.json"}));
  EXPECT_EQ(content("a.pb.gz"), "older");
  EXPECT_EQ(content("a-2.pb.gz"), "one");
  EXPECT_EQ(content("a-5.pb.gz"), "three");
  struct stat info = {};
  ASSERT_EQ(::stat((directory_ + "a-2.pb.gz").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(OutputSeriesTest, MoreOfANameThanAreTriedForOneFile) {
  std::ofstream(directory_ + "a.pb.gz");
  for (int i = 2; i <= 998; ++i) std::ofstream(directory_ + "a-" + std::to_string(i) + ".pb.gz");
  OutputSeries series = open();
  for (int i = 999; i <= 1003; ++i)
    EXPECT_EQ(series.write("a.pb.gz", "x"), directory_ + "a-" + std::to_string(i) + ".pb.gz");
}

TEST_F(OutputSeriesTest, OneFileIsReplaced) {
  OutputSeries series = open(OutputFile::Existing::kReplace);
  for (const char* bytes : {"one", "two", "three"})
    EXPECT_EQ(series.write("now.json", bytes), directory_ + "now.json");
  EXPECT_EQ(names(), std::set<std::string>{"now.json"});
  EXPECT_EQ(content("now.json"), "three");
}

TEST_F(OutputSeriesTest, TellsWhatIsWrongWithTheDirectory) {
  auto series = OutputSeries::open(directory_ + "none/", "a.pb.gz", OutputFile::Existing::kKeep,
                                   owner_, "-o");
  ASSERT_FALSE(series.has_value());
  EXPECT_NE(series.error().message.find("no such directory: create it"), std::string::npos)
      << series.error().message;
  OutputSeries open_now = open();
  fs::remove(directory_);
  auto path = open_now.write("a.pb.gz", "x");
  ASSERT_FALSE(path.has_value());
  EXPECT_NE(path.error().message.find("cannot write " + directory_ + "a.pb.gz: "),
            std::string::npos);
}

TEST_F(OutputSeriesTest, TheDeputyWritesOnlyIntoItsDirectories) {
  OutputSeries one = open(), other = open(OutputFile::Existing::kReplace);
  OutputSeries* const series[] = {&one, &other};
  auto deputy = Deputy::start_writer(series);
  ASSERT_TRUE(deputy.has_value()) << deputy.error().message;
  const std::string bytes(300'000, 'x');
  EXPECT_EQ(deputy->write(0, "a.pb.gz", bytes), directory_ + "a.pb.gz");
  EXPECT_EQ(deputy->write(0, "a.pb.gz", "two"), directory_ + "a-2.pb.gz");
  EXPECT_EQ(deputy->write(1, "now.json", "{}"), directory_ + "now.json");
  EXPECT_EQ(content("a.pb.gz"), bytes);
  EXPECT_FALSE(deputy->write(2, "b", "x").has_value());
  EXPECT_FALSE(deputy->write(0, "../b", "x").has_value());
  EXPECT_FALSE(deputy->write(0, std::string(300, 'b'), "x").has_value());
  EXPECT_FALSE(deputy->write(0, "..", "x").has_value());
  EXPECT_EQ(names().size(), 3u);
}

}  // namespace
}  // namespace gpuprof::cli
