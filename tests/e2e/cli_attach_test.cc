// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled --pid: late attach, detach, attach again.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

class CliAttach : public CliTest {
 protected:
  Child::Setup with_shim() { return setup(injected()); }
  static std::vector<std::string> endless(const char* rate = "2000") {
    return {WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", rate};
  }
};

// The stacks of all samples, as text.
std::string read_traces(const std::string& profile) {
  const std::string command =
      "HOME=/nonexistent PPROF_TMPDIR=/tmp PPROF_BINARY_PATH=/nonexistent GOCACHE=/tmp/gocache "
      "go tool pprof -traces " +
      profile + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  size_t got = 0;
  while ((got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0) out.append(buffer, got);
  EXPECT_EQ(::pclose(pipe), 0) << out;
  return out;
}

TEST_F(CliAttach, LateAttachAndAgain) {
  Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  for (int round = 0; round < 3; ++round) {
    const Outcome outcome = attach_for(workload.pid(), {"--summary-json", "s.json"}, 500);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::string json = read_file(file("s.json"));
    EXPECT_GT(json_number(json, "total", "received"), 100) << json;
    // What still runs when the activity is switched off has no end time: counted, never guessed.
    EXPECT_EQ(json_number(json, "total", "received") + json_number(json, "total", "incomplete"),
              json_number(json, "total", "produced"))
        << json;
    EXPECT_NE(json.find("\"identity_holds\": true"), std::string::npos) << json;
    EXPECT_EQ(json_number(json, "stacks", "taken"), json_number(json, "stacks", "whole")) << json;
  }
  EXPECT_EQ(profiles().size(), 3u) << "a default name never overwrites";
  workload.send(SIGTERM);
  EXPECT_EQ(workload.finish().status, 0) << "the target never notices";
}

TEST_F(CliAttach, RenamedShimIsFoundAndLeftOutOfTheProfile) {
  std::filesystem::copy_file(shim_path(), file("renamed-copy.so"));
  const Child workload(endless(), setup({"CUDA_INJECTION64_PATH=" + file("renamed-copy.so")}));
  wait_until_injected(workload.pid());
  const Outcome outcome =
      attach_for(workload.pid(), {"-o", "x.pb.gz", "--summary-json", "s.json"}, 500);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GE(json_number(read_file(file("s.json")), "stacks", "taken"), 10);
  const std::string traces = read_traces(file("x.pb.gz"));
  EXPECT_NE(traces.find("cuLaunchKernel"), std::string::npos) << traces;
  EXPECT_EQ(traces.find("gpuprof::shim"), std::string::npos) << traces;
  EXPECT_EQ(traces.find("renamed-copy.so"), std::string::npos) << traces;
}

TEST_F(CliAttach, InterruptWritesTheProfile) {
  const Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  for (const int signal : {SIGINT, SIGTERM}) {
    Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz"},
                 setup());
    wait_until_traced(workload.pid());
    attach.send(signal);
    const Outcome outcome = attach.finish();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("wrote x.pb.gz"), std::string::npos) << outcome.err;
  }
}

TEST_F(CliAttach, ExitOfTheTargetEndsIt) {
  Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  wait_until_traced(workload.pid());
  workload.send(SIGTERM);
  EXPECT_EQ(workload.finish().status, 0);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(json_number(json, "total", "received"), json_number(json, "total", "produced")) << json;
}

TEST_F(CliAttach, OtherProcessesAreLeftAlone) {
  const Child watched(endless(), with_shim());
  const Child other(endless(), with_shim());
  wait_until_injected(watched.pid());
  wait_until_injected(other.pid());
  const Outcome outcome = attach_for(watched.pid(), {"-o", "x.pb.gz", "--summary-json", "s.json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_NE(json.find("\"pid\": " + std::to_string(watched.pid())), std::string::npos);
  EXPECT_EQ(json.find("\"pid\": " + std::to_string(other.pid())), std::string::npos) << json;
}

TEST_F(CliAttach, ChildrenOfALauncherFoundAndAwaited) {
  const std::string work = std::string(WORKLOAD_PATH) + " --launches 0 --seconds 200 --rate 1000";
  const Child shell({"/bin/sh", "-c",
                     work + " & until test -e go; do sleep 0.05; done; " + SHORT_PATH + " 400; " +
                         work + "; wait"},
                    with_shim());
  const pid_t first = wait_for_program("workload");
  wait_until_injected(first);
  Child attach({daemon_path(), "--pid", std::to_string(shell.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  wait_until_traced(first);
  std::ofstream(file("go")).flush();
  wait_until_traced(wait_for_program("workload", first));
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  size_t targets = 0;
  for (size_t at = 0; (at = json.find("\"pid\": ", at)) != std::string::npos; ++at) ++targets;
  EXPECT_GE(targets, 2u) << json;
  EXPECT_NE(outcome.err.find("before it was armed"), std::string::npos)
      << "the gap is told: " << outcome.err;
}

TEST_F(CliAttach, KilledDaemonLeavesTheTargetDisarmed) {
  Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz"}, setup());
  wait_until_traced(workload.pid());
  attach.send(SIGKILL);
  attach.finish();
  EXPECT_TRUE(profiles().empty()) << "no half file";
  EXPECT_TRUE(soon([&] {  // the lease is 3 s
    const auto page = shim_page(workload.pid());
    return page && page->state == GPUPROF_STATE_IDLE;
  }));
  const Outcome outcome = attach_for(workload.pid(), {"-o", "y.pb.gz", "--summary-json", "s.json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GE(json_number(read_file(file("s.json")), "stacks", "taken"), 1);
  workload.send(SIGTERM);
  EXPECT_EQ(workload.finish().status, 0);
}

}  // namespace
}  // namespace gpuprof::e2e
