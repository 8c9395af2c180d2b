// SPDX-License-Identifier: Apache-2.0
// A run is recorded, its session played and recorded again: both say the same, and the fake's own
// ground truth agrees.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "tests/unit/fake_cuda/program.h"

namespace fakecuda {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/fake_cuda_record.XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string session() const { return path_ + "/session"; }

 private:
  std::string path_;
};

Outcome record(const std::vector<std::string>& command, const Folder& folder,
               Environment environment = {}) {
  environment["CUDA_INJECTION64_PATH"] = RECORD_PATH;
  environment["GPU_PROFILED_RECORD"] = folder.path();
  return run(command, environment);
}

std::vector<std::string> lines_of(const std::string& path, const std::string& verb) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(verb + " ", 0) == 0) lines.push_back(line);
  }
  return lines;
}

/// What a session says of each function: its kernel lines' sums, and its pcs line.
struct Said {
  uint64_t ns = 0, launches = 0;
  std::string pcs;
  auto operator<=>(const Said&) const = default;
};

std::map<std::string, Said> said(const std::string& session) {
  std::map<std::string, Said> result;
  std::map<std::string, std::string> functions;
  for (const std::string& line : lines_of(session, "kernel")) {
    std::istringstream words(line);
    std::string verb;
    std::string id;
    words >> verb >> id;
    const std::string function = line.substr(line.find("function=") + 9);
    functions[id] = function.substr(0, function.find(' '));
    const std::string time = line.substr(line.find("duration=") + 9);
    Said& of = result[functions[id]];
    of.ns += strtoull(time.c_str(), nullptr, 10);
    of.launches += strtoull(time.c_str() + time.find('/') + 1, nullptr, 10);
  }
  for (const std::string& line : lines_of(session, "pcs")) {
    const size_t space = line.find(' ', 4);
    result[functions[line.substr(4, space - 4)]].pcs = line.substr(space + 1);
  }
  return result;
}

uint64_t weights(const std::string& pcs) {
  uint64_t sum = 0;
  for (size_t at = 0; (at = pcs.find('*', at)) != std::string::npos; ++at)
    sum += strtoull(pcs.c_str() + at + 1, nullptr, 10);
  return sum;
}

/// Plays what `first` recorded under the recorder.
void expect_same_again(const Folder& first, const Environment& environment, const Outcome& before) {
  const Folder second;
  const Outcome again = record({PLAY_PATH, first.session()}, second, environment);
  EXPECT_EQ(again.status, 0) << again.errors;
  EXPECT_EQ(again.violations, "");
  EXPECT_EQ(again.number("executions"), before.number("executions"));
  EXPECT_EQ(again.number("gpu_ns"), before.number("gpu_ns"));
  const auto want = said(first.session());
  const auto got = said(second.session());
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [function, says] : want) {
    ASSERT_EQ(got.count(function), 1u) << function;
    EXPECT_EQ(got.at(function).ns, says.ns) << function;
    EXPECT_EQ(got.at(function).launches, says.launches) << function;
    EXPECT_EQ(got.at(function).pcs, says.pcs) << function;
  }
}

TEST(Record, TheSessionSaysWhatRan) {
  const Folder folder;
  const Outcome o = record({PLAY_PATH, SESSIONS "/pc_sampling.session", "loops=60"}, folder,
                           {{"GPU_PROFILED_RECORD_PERIOD", "16"}, {"FAKE_CUDA_QUEUE_NS", "1000"}});
  ASSERT_EQ(o.status, 0) << o.errors;
  EXPECT_EQ(o.violations, "");
  const auto session = said(folder.session());
  uint64_t samples = 0;
  for (const auto& [function, says] : session) samples += weights(says.pcs);
  EXPECT_GT(samples, 10'000u);
  EXPECT_EQ(o.number("pc_sampled"), o.number("pc_delivered"));
  EXPECT_EQ(session.count("chain"), 1u);
  EXPECT_EQ(session.at("chain").launches, 120u);
  EXPECT_EQ(session.at("chain").ns, 120u * 400'000);
  EXPECT_NE(session.at("chain").pcs.find("0x190:math_pipe_throttle*"), std::string::npos);
  EXPECT_EQ(lines_of(folder.session(), "module").size(), 4u);
}

TEST(Record, TotalsOfTheReplayAreEqual) {
  const Folder folder;
  const Environment environment = {{"GPU_PROFILED_RECORD_PERIOD", "14"}};
  const Outcome o = record({PLAY_PATH, SESSIONS "/pc_serialized.session", "loops=40", "graphs=5"},
                           folder, environment);
  ASSERT_EQ(o.status, 0) << o.errors;
  EXPECT_EQ(o.violations, "");
  const auto session = said(folder.session());
  uint64_t samples = 0;
  for (const auto& [function, says] : session) samples += weights(says.pcs);
  EXPECT_EQ(samples, static_cast<uint64_t>(o.number("pc_delivered")));
  expect_same_again(folder, environment, o);
}

TEST(Record, CopiesAndThreadsOfTheDemo) {
  const Folder folder;
  const Environment environment = {{"FAKE_CUDA_INSTANT", "1"}};
  const Outcome o = record({PLAY_PATH, DEMO_SESSION}, folder, environment);
  ASSERT_EQ(o.status, 0) << o.errors;
  std::ifstream in(folder.session());
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find("on=main"), std::string::npos) << text;
  EXPECT_NE(text.find("memcpy htod 2000000"), std::string::npos) << text;
  EXPECT_NE(text.find("loop 200\n"), std::string::npos) << text;
  EXPECT_NE(text.find("run-graph g1"), std::string::npos) << text;
  EXPECT_NE(text.find("memset 64000"), std::string::npos) << text;
  EXPECT_LT(text.size(), 10'000u) << "repeats are folded";
  const Outcome again = run({PLAY_PATH, folder.session()},
                            {{"CUDA_INJECTION64_PATH", ""}, {"FAKE_CUDA_INSTANT", "1"}});
  EXPECT_EQ(again.status, 0) << again.errors;
  EXPECT_EQ(again.number("executions"), o.number("executions"));
}

TEST(Record, SaysWhyItCannot) {
  const Folder folder;
  const Outcome o =
      record({PLAY_PATH, DEMO_SESSION}, folder,
             {{"GPU_PROFILED_CUPTI_PATH", "/nonexistent/libcupti.so"}, {"FAKE_CUDA_INSTANT", "1"}});
  EXPECT_EQ(o.status, 0);
  EXPECT_NE(o.errors.find("record: no libcupti"), std::string::npos) << o.errors;
}

}  // namespace
}  // namespace fakecuda
