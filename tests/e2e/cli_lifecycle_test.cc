// SPDX-License-Identifier: Apache-2.0
//
// Privileges, processes that exec, orphan or stop, and a CUPTI that refuses.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// capabilities(7): DAC_READ_SEARCH, SYS_PTRACE, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE.
constexpr uint64_t kKept =
    1ull << 2 | 1ull << 19 | 1ull << 34 | 1ull << 38 | 1ull << 39 | 1ull << 40;
// The target is stopped for longer: who waits for it takes that long.
constexpr auto kNoHang = std::chrono::seconds(60);
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
    return {WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"};
  }
};

TEST_F(CliLifecycle, OnlySomeCapabilitiesAreKeptAndTheFileIsTheCallers) {
  const Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  const std::string home = file("home");  // where root without CAP_DAC_OVERRIDE may not write
  fs::create_directory(home);
  ASSERT_EQ(::chown(home.c_str(), 65534, 65534), 0);
  ASSERT_EQ(::chmod(home.c_str(), 0700), 0);
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", home + "/x.pb.gz",
                "--summary-json", "s.json"},
               setup({"SUDO_UID=65534", "SUDO_GID=65534", "SUDO_USER=nobody"}));
  wait_until_traced(workload.pid());
  EXPECT_TRUE(soon([&] { return status_mask(attach.pid(), "CapEff") == kKept; }))
      << std::hex << status_mask(attach.pid(), "CapEff");
  EXPECT_EQ(status_mask(attach.pid(), "CapPrm"), kKept);
  EXPECT_EQ(status_mask(attach.pid(), "CapBnd"), 0u);
  pid_t deputy = 0;
  ASSERT_TRUE(soon([&] { return (deputy = child_named(attach.pid(), "gpu-prof-deputy")) != 0; }));
  EXPECT_TRUE(soon([&] { return status_mask(deputy, "CapEff") == kDeputy; }));
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
  EXPECT_TRUE(soon([&] { return ::kill(deputy, 0) != 0 || state_of(deputy) == 'Z'; }))
      << "it ends with the profiler";
}

TEST_F(CliLifecycle, WithoutUprobeMultiSysAdminIsKeptAndSaid) {
  const Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "--debug-no-uprobe-multi",
                "-o", "x.pb.gz"},
               setup());
  wait_until_traced(workload.pid());
  EXPECT_TRUE(soon([&] { return status_mask(attach.pid(), "CapEff") == (kKept | kSysAdmin); }))
      << std::hex << status_mask(attach.pid(), "CapEff");
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("CAP_SYS_ADMIN is kept"), std::string::npos) << outcome.err;
}

TEST_F(CliLifecycle, SignalsReachACommandOfAnotherUserWithoutCapKill) {
  Child run({daemon_path(), "run", "--shim", shim_path(), "-o", file("x.pb.gz"), "--", "/bin/sh",
             "-c", "trap 'exit 9' TERM; touch ready; while :; do sleep 0.05; done"},
            setup({"SUDO_UID=65534", "SUDO_GID=65534", "SUDO_USER=nobody"}));
  ASSERT_TRUE(soon([&] { return fs::exists(file("ready")); }));
  EXPECT_TRUE(soon([&] { return status_mask(run.pid(), "CapEff") == kKept; }))
      << std::hex << status_mask(run.pid(), "CapEff");
  run.send(SIGTERM);
  EXPECT_EQ(run.finish().status, 9);
}

TEST_F(CliLifecycle, AKilledProfilerLeavesNeitherDeputyNorTemporary) {
  const Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  const std::string where = file("out");
  fs::create_directory(where);
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", where + "/x.pb.gz"},
               setup());
  wait_until_traced(workload.pid());
  pid_t deputy = 0;
  ASSERT_TRUE(soon([&] { return (deputy = child_named(attach.pid(), "gpu-prof-deputy")) != 0; }));
  attach.send(SIGKILL);
  attach.finish();
  EXPECT_TRUE(soon([&] { return ::kill(deputy, 0) != 0 || state_of(deputy) == 'Z'; }));
  EXPECT_TRUE(fs::is_empty(where));
}

TEST_F(CliLifecycle, AKilledDeputyIsToldOnce) {
  const Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  wait_until_traced(workload.pid());
  pid_t deputy = 0;
  ASSERT_TRUE(soon([&] { return (deputy = child_named(attach.pid(), "gpu-prof-deputy")) != 0; }));
  ::kill(deputy, SIGKILL);
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(count(outcome.err, "(gpu-prof-deputy)"), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find("profile again and leave it running"), std::string::npos)
      << outcome.err;
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
  EXPECT_EQ(count(json, "\"gaps\": "), 3u) << "one entry for each program: " << json;
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
  std::vector<std::string> command = {daemon_path(), "run",           "--shim", shim_path(),
                                      "-o",          file("x.pb.gz"), "--"};
  for (int program = 0; program < 3; ++program)
    command.insert(command.end(), {EXECER_PATH, "10", "0"});
  const auto last = endless();
  command.insert(command.end(), last.begin(), last.end());
  Child run(command, setup());
  wait_until_traced(wait_for_program("workload"));
  size_t pages = 0, pidfds = 0;
  const auto count_descriptors = [&] {
    pages = pidfds = 0;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(run.pid()) + "/fd")) {
      std::error_code gone;
      const std::string link = fs::read_symlink(entry, gone);
      if (link.starts_with("/memfd:gpu-profiled")) ++pages;
      if (link.find("[pidfd]") != std::string::npos) ++pidfds;
    }
    return pages == 1 && pidfds <= 2;
  };
  (void)soon(count_descriptors);
  EXPECT_EQ(pages, 1u) << "of the program that runs";
  EXPECT_LE(pidfds, 2u) << "of the command and of the target that it is";
  run.send(SIGTERM);
  run.finish();
}

TEST_F(CliLifecycle, ExecOfAnotherCudaProgramUnderAttach) {
  std::vector<std::string> command = {EXECER_PATH, "0", "600"};
  const auto next = endless();
  command.insert(command.end(), next.begin(), next.end());
  const Child target(command, with_shim({"EXECER_UNTIL=" + file("go")}));
  wait_until_injected(target.pid());
  Child attach({daemon_path(), "--pid", std::to_string(target.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  wait_until_traced(target.pid());
  std::ofstream(file("go")).flush();
  ASSERT_TRUE(soon([&] { return comm_of(target.pid()) == "workload"; }));
  wait_until_traced(target.pid());
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  // Each program's target, and the process in the table of all of them.
  EXPECT_EQ(count(json, "\"pid\": " + std::to_string(target.pid())), 4u) << json;
  const Outcome top =
      Child({"/bin/sh", "-c", "go tool pprof -top -cum -sample_index=gpu_executions x.pb.gz"},
            setup())
          .finish();
  EXPECT_NE(top.out.find("execer_launch"), std::string::npos) << top.out;
  EXPECT_NE(top.out.find("gamma_launch"), std::string::npos) << top.out;
}

TEST_F(CliLifecycle, OrphanedGrandchildIsOurs) {
  // The subshell forks the program and exits: its parent is then not the shell, nor the shell's.
  const std::string work = std::string(WORKLOAD_PATH) + " --launches 0 --rate 1000 --seconds 250";
  const std::string script = work +
                             " & top=$$; export top; until test -e go; do sleep 0.05; done; " +
                             "(setsid sh -c 'until test \"$(ps -o ppid= -p $(ps -o ppid= -p $$))\" "
                             "-ne $top; do sleep 0.05; " +
                             "done; exec " + work + "' &); sleep 250";
  const Child shell({"/bin/sh", "-c", script}, with_shim());
  const pid_t first = wait_for_program("workload");
  wait_until_injected(first);
  Child attach({daemon_path(), "--pid", std::to_string(shell.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  wait_until_traced(first);
  std::ofstream(file("go")).flush();
  const pid_t orphan = wait_for_program("workload", first);
  wait_until_traced(orphan);
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  ::kill(orphan, SIGKILL);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(count(json, "\"gaps\": "), 2u) << json;
  EXPECT_NE(outcome.err.find("before it was armed"), std::string::npos)
      << "it was taken in by its first word: " << outcome.err;
}

TEST_F(CliLifecycle, StoppedBeforeTheAttach) {
  const Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  workload.send(SIGSTOP);
  ASSERT_TRUE(soon([&] { return state_of(workload.pid()) == 'T'; }));
  const auto begin = Clock::now();
  const Outcome outcome =
      gpu_profiled({"--pid", std::to_string(workload.pid()), "--duration", "1s"});
  EXPECT_LT(Clock::now() - begin, kNoHang);
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "is stopped");
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliLifecycle, StoppedDuringTheAttach) {
  Child workload(endless(), with_shim());
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  wait_until_traced(workload.pid(), 500);
  workload.send(SIGSTOP);
  ASSERT_TRUE(soon([&] { return state_of(workload.pid()) == 'T'; }));
  const auto begin = Clock::now();
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  EXPECT_LT(Clock::now() - begin, kNoHang);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(json_number(read_file(file("s.json")), "total", "received"), 100);
  workload.send(SIGCONT);
  workload.send(SIGTERM);
  EXPECT_EQ(workload.finish().status, 0);
}

TEST_F(CliLifecycle, AnotherCuptiClient) {
  const Child workload(endless(), with_shim({"FAKE_CUDA_OTHER_CLIENT=1"}));
  wait_until_injected(workload.pid());
  const std::vector<std::string> command = {daemon_path(), "--pid", std::to_string(workload.pid())};
  const auto refused = [&] {
    const auto page = shim_page(workload.pid());
    return page && page->reason == GPUPROF_REASON_OTHER_CLIENT;
  };
  for (const bool patient : {false, true}) {  // told at the end, or after a while
    Child attach(command, setup());
    ASSERT_TRUE(soon(refused));
    if (patient) {
      EXPECT_TRUE(soon(
          [&] { return attach.error_so_far().find("another CUPTI client") != std::string::npos; }));
    }
    attach.send(SIGINT);
    const Outcome outcome = attach.finish();
    EXPECT_EQ(outcome.status, 3) << outcome.err;
    EXPECT_NE(outcome.err.find("another CUPTI client"), std::string::npos) << outcome.err;
    ASSERT_TRUE(soon([&] { return !refused(); }));
  }
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliLifecycle, SubscribeRefused) {
  const std::string code = "FAKE_CUDA_SUBSCRIBE_FAIL=999";
  const Child workload(endless(), with_shim({code}));
  wait_until_injected(workload.pid());
  Child child({daemon_path(), "--pid", std::to_string(workload.pid())}, setup());
  ASSERT_TRUE(soon([&] {
    const auto page = shim_page(workload.pid());
    return page && page->reason == GPUPROF_REASON_SUBSCRIBE_FAILED;
  }));
  child.send(SIGINT);
  const Outcome attach = child.finish();
  EXPECT_EQ(attach.status, 3);
  expect_one_line(attach, "cuptiSubscribe answered 999");
  // Long enough for its page to be read: one that ends within milliseconds may be gone before.
  const Outcome run =
      gpu_profiled({"run", "--", "/bin/sh", "-c",
                    std::string(WORKLOAD_PATH) + " --launches 0 --rate 100 --seconds 3; exit 4"},
                   {code});
  EXPECT_EQ(run.status, 4) << "the command's own";
  // The shim has a line of its own, with the process's number.
  EXPECT_NE(run.err.find("gpu-profiled: "), std::string::npos) << run.err;
  EXPECT_EQ(count(run.err, "answered 999"), count(run.err, "gpu-profiled[") + 1) << run.err;
  EXPECT_TRUE(profiles().empty());
}

}  // namespace
}  // namespace gpuprof::e2e
