// SPDX-License-Identifier: Apache-2.0
//
// Privileges, processes that exec, orphan or stop, and a CUPTI that refuses.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// capabilities(7): DAC_READ_SEARCH, SYS_PTRACE, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE.
constexpr uint64_t kKept =
    1ull << 2 | 1ull << 19 | 1ull << 34 | 1ull << 38 | 1ull << 39 | 1ull << 40;
constexpr uint64_t kSysAdmin = 1ull << 21;
// DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, KILL.
constexpr uint64_t kDeputy = 1ull << 1 | 1ull << 2 | 1ull << 3 | 1ull << 5;

uint64_t status_mask(pid_t pid, const std::string& name) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const size_t at = status.find("\n" + name + ":");
  return at == std::string::npos ? ~0ull : std::stoull(status.substr(at + name.size() + 2), {}, 16);
}

pid_t child_named(pid_t parent, const std::string& comm) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string stat = read_file(entry.path() / "stat");
    const size_t close = stat.rfind(')');
    if (close == std::string::npos) continue;
    if (stat.find("(" + comm + ")") == std::string::npos) continue;
    if (std::atoi(stat.c_str() + close + 4) == parent) return std::atoi(stat.c_str());
  }
  return 0;
}

size_t count(const std::string& text, const std::string& what) {
  size_t out = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++out;
  return out;
}

class CliLifecycle : public CliTest {
 protected:
  [[nodiscard]] Child::Setup with_shim(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = injected();
    all.insert(all.end(), more.begin(), more.end());
    return setup(all);
  }
  static std::vector<std::string> endless() {
    return {WORKLOAD_PATH, "--launches", "0", "--seconds", "90", "--rate", "1000"};
  }
  // Seconds that `args` took.
  double timed(const std::vector<std::string>& args, Outcome& outcome) {
    const auto begin = Clock::now();
    outcome = gpu_profiled(args);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
};

TEST_F(CliLifecycle, OnlySomeCapabilitiesAreKeptAndTheFileIsTheCallers) {
  const Child workload(endless(), with_shim());
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  const std::string home = file("home");  // where root without CAP_DAC_OVERRIDE may not write
  fs::create_directory(home);
  ASSERT_EQ(::chown(home.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(home.c_str(), 0700), 0);
  Child attach({GPU_PROFILED_PATH, "--pid", std::to_string(workload.pid()), "-o", home + "/x.pb.gz",
                "--summary-json", "s.json"},
               setup({"SUDO_UID=65534", "SUDO_GID=65534", "SUDO_USER=nobody"}));
  ::sleep(2);
  EXPECT_EQ(status_mask(attach.pid(), "CapEff"), kKept);
  EXPECT_EQ(status_mask(attach.pid(), "CapPrm"), kKept);
  EXPECT_EQ(status_mask(attach.pid(), "CapBnd"), 0u);
  const pid_t deputy = child_named(attach.pid(), "gpu-prof-deputy");
  ASSERT_NE(deputy, 0);
  EXPECT_EQ(status_mask(deputy, "CapEff"), kDeputy);
  size_t descriptors = 0;
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(deputy) + "/fd"))
    ++descriptors;
  EXPECT_LE(descriptors, 5u) << "its socket, two files and their directories";
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  struct stat info = {};
  ASSERT_EQ(::stat((home + "/x.pb.gz").c_str(), &info), 0) << outcome.err;
  EXPECT_EQ(info.st_uid, 65534u);
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(json_number(json, "stacks", "taken"), json_number(json, "stacks", "whole")) << json;
  EXPECT_EQ(::kill(deputy, 0), -1) << "it ends with the profiler";
}

TEST_F(CliLifecycle, WithoutUprobeMultiSysAdminIsKeptAndSaid) {
  const Child workload(endless(), with_shim());
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  Child attach({GPU_PROFILED_PATH, "--pid", std::to_string(workload.pid()),
                "--debug-no-uprobe-multi", "-o", "x.pb.gz"},
               setup());
  ::sleep(2);
  EXPECT_EQ(status_mask(attach.pid(), "CapEff"), kKept | kSysAdmin);
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("CAP_SYS_ADMIN is kept"), std::string::npos) << outcome.err;
}

TEST_F(CliLifecycle, SignalsReachACommandOfAnotherUserWithoutCapKill) {
  Child run({GPU_PROFILED_PATH, "run", "--shim", SHIM_PATH, "-o", file("x.pb.gz"), "--", "/bin/sh",
             "-c", "trap 'exit 9' TERM; touch ready; while :; do sleep 0.05; done"},
            setup({"SUDO_UID=65534", "SUDO_GID=65534", "SUDO_USER=nobody"}));
  while (!fs::exists(file("ready"))) ::usleep(10'000);
  EXPECT_EQ(status_mask(run.pid(), "CapEff"), kKept);
  run.send(SIGTERM);
  EXPECT_EQ(run.finish().status, 9);
}

TEST_F(CliLifecycle, AKilledProfilerLeavesNeitherDeputyNorTemporary) {
  const Child workload(endless(), with_shim());
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  const std::string where = file("out");
  fs::create_directory(where);
  Child attach(
      {GPU_PROFILED_PATH, "--pid", std::to_string(workload.pid()), "-o", where + "/x.pb.gz"},
      setup());
  ::sleep(2);
  const pid_t deputy = child_named(attach.pid(), "gpu-prof-deputy");
  ASSERT_NE(deputy, 0);
  attach.send(SIGKILL);
  attach.finish();
  for (int i = 0; i < 200 && state_of(deputy) != 'Z' && ::kill(deputy, 0) == 0; ++i)
    ::usleep(10'000);
  EXPECT_TRUE(::kill(deputy, 0) != 0 || state_of(deputy) == 'Z');
  EXPECT_TRUE(fs::is_empty(where));
}

TEST_F(CliLifecycle, ExecOfAnotherCudaProgramUnderRun) {
  const Outcome outcome =
      gpu_profiled({"run", "--summary-json", "s.json", "-o", "x.pb.gz", "--", EXECER_PATH, "100",
                    "0", EXECER_PATH, "40", "0", SHORT_PATH, "70", "5"});
  EXPECT_EQ(outcome.status, 5) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(json_number(json, "total", "received"), 210) << json;
  EXPECT_EQ(json_number(json, "total", "produced"), 210) << json;
  EXPECT_EQ(json_number(json, "attributed", "exact") + json_number(json, "attributed", "sampled"),
            210)
      << json;
  EXPECT_EQ(count(json, "\"pid\": "), 3u) << "one entry for each program: " << json;
  EXPECT_EQ(count(json, "\"identity_holds\": true"), 4u) << json;
  EXPECT_NE(json.find("workload_short\""), std::string::npos) << json;
  const Outcome top =
      Child({"/bin/sh", "-c", "go tool pprof -top -cum -sample_index=gpu_executions x.pb.gz"},
            setup())
          .finish();
  // Both images of the same file, at two randomised addresses, keep their names.
  EXPECT_NE(top.out.find("140 66.67%  execer_launch"), std::string::npos) << top.out;
}

TEST_F(CliLifecycle, AProgramThatExecEndedKeepsNoDescriptor) {
  Child run({GPU_PROFILED_PATH,
             "run",
             "--shim",
             SHIM_PATH,
             "-o",
             file("x.pb.gz"),
             "--",
             EXECER_PATH,
             "10",
             "0",
             EXECER_PATH,
             "10",
             "0",
             EXECER_PATH,
             "10",
             "0",
             WORKLOAD_PATH,
             "--launches",
             "0",
             "--seconds",
             "60",
             "--rate",
             "1000"},
            setup());
  for (int i = 0; i < 2000 && child_named(run.pid(), "workload") == 0; ++i) ::usleep(10'000);
  ASSERT_NE(child_named(run.pid(), "workload"), 0) << "the last program never began";
  ::sleep(2);
  size_t pages = 0, pidfds = 0;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(run.pid()) + "/fd")) {
    std::error_code gone;
    const std::string link = fs::read_symlink(entry, gone);
    if (link.starts_with("/memfd:gpu-profiled")) ++pages;
    if (link.find("[pidfd]") != std::string::npos) ++pidfds;
  }
  EXPECT_EQ(pages, 1u) << "of the program that runs";
  EXPECT_LE(pidfds, 2u) << "of the command and of the target that it is";
  run.send(SIGTERM);
  run.finish();
}

TEST_F(CliLifecycle, ExecOfAnotherCudaProgramUnderAttach) {
  const Child target({EXECER_PATH, "4000", "6000", WORKLOAD_PATH, "--launches", "0", "--seconds",
                      "60", "--rate", "1000"},
                     with_shim());
  wait_until_mapped(target.pid(), "libgpu-profiled-cupti.so");
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(target.pid()), "--duration", "10s",
                                        "-o", "x.pb.gz", "--summary-json", "s.json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(count(json, "\"pid\": " + std::to_string(target.pid())), 2u) << json;
  const Outcome top =
      Child({"/bin/sh", "-c", "go tool pprof -top -cum -sample_index=gpu_executions x.pb.gz"},
            setup())
          .finish();
  EXPECT_NE(top.out.find("execer_launch"), std::string::npos) << top.out;
  EXPECT_NE(top.out.find("gamma_launch"), std::string::npos) << top.out;
}

TEST_F(CliLifecycle, OrphanedGrandchildIsOurs) {
  // The subshell forks the program and exits: its parent is then not the shell.
  const std::string work = std::string(WORKLOAD_PATH) + " --launches 0 --rate 1000 --seconds ";
  const std::string script =
      work + "60 & sleep 3; (setsid sh -c 'sleep 0.3; exec " + work + "3' &); sleep 60";
  const Child shell({"/bin/sh", "-c", script}, with_shim());
  ::sleep(2);
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(shell.pid()), "--duration", "5s",
                                        "-o", "x.pb.gz", "--summary-json", "s.json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(count(json, "\"pid\": "), 2u) << json;
  EXPECT_NE(outcome.err.find("before it was armed"), std::string::npos)
      << "it was taken in by its first word: " << outcome.err;
}

TEST_F(CliLifecycle, StoppedBeforeTheAttach) {
  const Child workload(endless(), with_shim());
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  workload.send(SIGSTOP);
  ::usleep(200'000);
  Outcome outcome;
  const double seconds =
      timed({"--pid", std::to_string(workload.pid()), "--duration", "1s"}, outcome);
  EXPECT_LT(seconds, 6.0);
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "is stopped");
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliLifecycle, StoppedDuringTheAttach) {
  Child workload(endless(), with_shim());
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  const auto begin = Clock::now();
  Child attach({GPU_PROFILED_PATH, "--pid", std::to_string(workload.pid()), "--duration", "3s",
                "-o", "x.pb.gz", "--summary-json", "s.json"},
               setup());
  ::sleep(2);
  workload.send(SIGSTOP);
  const Outcome outcome = attach.finish();
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 8.0);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(json_number(read_file(file("s.json")), "total", "received"), 100);
  workload.send(SIGCONT);
  workload.send(SIGTERM);
  EXPECT_EQ(workload.finish().status, 0);
}

TEST_F(CliLifecycle, AnotherCuptiClient) {
  const Child workload(endless(), with_shim({"FAKE_CUDA_OTHER_CLIENT=1"}));
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  for (const char* duration : {"1s", "4s"}) {  // told at the end, or after a while
    const Outcome outcome =
        gpu_profiled({"--pid", std::to_string(workload.pid()), "--duration", duration});
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_NE(outcome.err.find("another CUPTI client"), std::string::npos) << outcome.err;
  }
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliLifecycle, SubscribeRefused) {
  const std::string code = "FAKE_CUDA_SUBSCRIBE_FAIL=999";
  const Child workload(endless(), with_shim({code}));
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  const Outcome attach =
      gpu_profiled({"--pid", std::to_string(workload.pid()), "--duration", "1s"});
  EXPECT_EQ(attach.status, 3);
  expect_one_line(attach, "cuptiSubscribe answered 999");
  // Long enough for its page to be read: one that ends within milliseconds may be gone before.
  const Outcome run =
      gpu_profiled({"run", "--", "/bin/sh", "-c",
                    std::string(WORKLOAD_PATH) + " --launches 0 --rate 100 --seconds 1; exit 4"},
                   {code});
  EXPECT_EQ(run.status, 4) << "the command's own";
  // The shim has a line of its own, with the process's number.
  EXPECT_NE(run.err.find("gpu-profiled: "), std::string::npos) << run.err;
  EXPECT_EQ(count(run.err, "answered 999"), count(run.err, "gpu-profiled[") + 1) << run.err;
  EXPECT_TRUE(profiles().empty());
}

}  // namespace
}  // namespace gpuprof::e2e
