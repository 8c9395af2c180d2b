// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled run: the command is a guest of nobody, and its profile is whole.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

class CliRun : public CliTest {};

TEST_F(CliRun, ShortProcessIsWhole) {
  const Outcome outcome =
      gpu_profiled({"run", "--summary-json", "s.json", "--", SHORT_PATH, "300", "7"});
  EXPECT_EQ(outcome.status, 7) << "the command's own status";
  const auto files = profiles();
  ASSERT_EQ(files.size(), 1u) << outcome.err;
  EXPECT_EQ(files[0].rfind("gpu-workload_short-", 0), 0u) << files[0];
  EXPECT_NE(outcome.err.find("wrote " + files[0]), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("go tool pprof -http=: " + files[0]), std::string::npos);
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(json_number(json, "total", "received"), 300) << json;
  EXPECT_EQ(json_number(json, "total", "produced"), 300) << json;
  EXPECT_EQ(json_number(json, "gpu_time_ns", "received"), 300 * 1000);
  EXPECT_NE(json.find("\"identity_holds\": true"), std::string::npos);
  struct stat info = {};
  ASSERT_EQ(::stat(file(files[0]).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(CliRun, PprofReadsIt) {
  const Outcome outcome = gpu_profiled(
      {"run", "-o", "x.pb.gz", "--", WORKLOAD_PATH, "--threads", "2", "--launches", "5000"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Outcome top =
      Child({"/bin/sh", "-c", "go tool pprof -top -cum -sample_index=gpu_executions x.pb.gz"},
            setup())
          .finish();
  EXPECT_EQ(top.status, 0) << top.err;
  EXPECT_NE(top.out.find("Total samples = 5000"), std::string::npos) << top.out;
  EXPECT_NE(top.out.find("gamma_launch"), std::string::npos) << top.out;
}

TEST_F(CliRun, ADashWritesToStandardOutput) {
  const Outcome outcome =
      Child({"/bin/sh", "-c",
             daemon_path() + " run --shim " + shim_path() + " -o - -- " SHORT_PATH " 300 >x.pb.gz"},
            setup())
          .finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("open with"), std::string::npos) << outcome.err;
  const Outcome top =
      Child({"/bin/sh", "-c", "go tool pprof -top -sample_index=gpu_executions x.pb.gz"}, setup())
          .finish();
  EXPECT_NE(top.out.find("Total samples = 300"), std::string::npos) << top.out << top.err;
}

TEST_F(CliRun, ChildrenAreProfiledToo) {
  const std::string both = std::string(SHORT_PATH) + " 50 & " + SHORT_PATH + " 70; wait";
  const Outcome outcome = gpu_profiled(
      {"run", "--summary-json", "s.json", "-o", "x.pb.gz", "--", "/bin/sh", "-c", both});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_EQ(json_number(json, "total", "received"), 120) << json;
}

TEST_F(CliRun, StatusOfTheCommand) {
  EXPECT_EQ(gpu_profiled({"run", "--", "/bin/sh", "-c", "exit 42"}).status, 42);
  EXPECT_EQ(gpu_profiled({"run", "--", "/bin/sh", "-c", "kill -SEGV $$"}).status, 128 + SIGSEGV);
  EXPECT_EQ(gpu_profiled({"run", "--", SHORT_PATH, "20", "3", "_exit"}).status, 3);
  EXPECT_EQ(gpu_profiled({"run", "--", SHORT_PATH, "20", "3", "kill"}).status, 128 + SIGKILL);
}

TEST_F(CliRun, StatusOfTheCommandWhereChildrenAreIgnored) {
  const std::string ignoring =
      "trap '' CHLD; exec " + daemon_path() + " run -- /bin/sh -c 'exit 42'";
  EXPECT_EQ(Child({"/bin/bash", "-c", ignoring}, setup({"GPU_PROFILED_SHIM=" + shim_path()}))
                .finish()
                .status,
            42);
}

TEST_F(CliRun, NoGpuWorkIsSaidAndNoFileIsWritten) {
  const Outcome outcome = gpu_profiled({"run", "--", "/bin/true"});
  EXPECT_EQ(outcome.status, 0);
  expect_one_line(outcome, "nothing could be profiled");
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliRun, TroubleNeverStopsTheCommand) {
  const Outcome no_shim =
      gpu_profiled({"run", "--shim", "/no/such/shim.so", "--", "/bin/sh", "-c", "exit 5"});
  EXPECT_EQ(no_shim.status, 5);
  expect_one_line(no_shim, "the command runs unprofiled");
  const Outcome unprivileged = gpu_profiled(
      {"run", "--", "/bin/sh", "-c", "echo \"<$CUDA_INJECTION64_PATH>\"; exit 6"}, {}, 65534);
  EXPECT_EQ(unprivileged.status, 6);
  EXPECT_EQ(unprivileged.out, "<>\n") << "nothing is injected where nobody listens";
  expect_one_line(unprivileged, "CAP_BPF");
}

TEST_F(CliRun, EnvironmentOfTheCommand) {
  const std::string show = "echo $GPU_PROFILED_ARM:$PYTHONPERFSUPPORT:$GPU_PROFILED_SHIM";
  EXPECT_EQ(gpu_profiled({"run", "--", "/bin/sh", "-c", show}).out, "trace::\n");
}

TEST_F(CliRun, UnderSudoTheCommandAndTheFilesBelongToTheCaller) {
  const std::vector<std::string> sudo = {"SUDO_UID=65534", "SUDO_GID=65534", "SUDO_USER=nobody"};
  const std::string script =
      "id -u; id -g; echo $USER; grep CapEff /proc/self/status; " + std::string(SHORT_PATH) + " 10";
  const Outcome outcome =
      gpu_profiled({"run", "-o", "x.pb.gz", "--", "/bin/sh", "-c", script}, sudo);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "65534\n65534\nnobody\nCapEff:\t0000000000000000\n");
  struct stat info = {};
  ASSERT_EQ(::stat(file("x.pb.gz").c_str(), &info), 0) << outcome.err;
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(gpu_profiled({"run", "--user", "root", "--", "/bin/sh", "-c", "id -u"}, sudo).out,
            "0\n");
}

// Where getent and id are stand-ins, as which this machine's own are dressed up.
TEST_F(CliRun, UnderSudoADirectorysUserIsAskedFor) {
  const auto stand_in = [this](const std::string& name, const std::string& body) {
    std::ofstream(file(name)) << "#!/bin/sh\n" << body << "\n";
    ASSERT_EQ(::chmod(file(name).c_str(), 0755), 0);
  };
  const auto run = [this] {
    const std::string script =
        "mount --bind getent /usr/bin/getent; mount --bind id /usr/bin/id; exec " + daemon_path() +
        " run --shim " + shim_path() +
        " -- /bin/sh -c 'echo $HOME:$USER; grep -E \"^(Uid|Gid|Groups)\" /proc/self/status | "
        "xargs'";
    return Child({"/usr/bin/unshare", "--mount", "/bin/sh", "-ec", script},
                 setup({"SUDO_UID=123456", "SUDO_GID=123457", "SUDO_USER=alice"}))
        .finish();
  };
  const std::string ids = "Uid: 123456 123456 123456 123456 Gid: 123457 123457 123457 123457 ";
  stand_in("getent",
           "[ \"$*\" = 'passwd 123456' ] && echo 'alice:*:123456:5:A:/net/alice:/bin/sh'");
  stand_in("id", "[ \"$*\" = '-G alice' ] && echo 5 27 123457");
  Outcome outcome = run();
  EXPECT_EQ(outcome.out, "/net/alice:alice\n" + ids + "Groups: 5 27 123457\n") << outcome.err;
  EXPECT_EQ(outcome.err.find("not found"), std::string::npos) << outcome.err;
  stand_in("id", "exit 1");
  outcome = run();
  EXPECT_EQ(outcome.out, "/net/alice:alice\n" + ids + "Groups: 123457\n") << outcome.err;
  EXPECT_NE(
      outcome.err.find("gpu-profiled: the groups of alice were not found (/usr/bin/id -G alice "
                       "ended with 1): the command has group 123457 alone\n"),
      std::string::npos)
      << outcome.err;
  stand_in("getent", "exit 2");
  outcome = run();
  EXPECT_EQ(outcome.out, "/:alice\n" + ids + "Groups: 123457\n") << outcome.err;
  EXPECT_NE(outcome.err.find(
                "gpu-profiled: who user 123456 is was not found (/usr/bin/getent passwd 123456 "
                "ended with 2): the command has HOME=/, USER=alice and group 123457 alone\n"),
            std::string::npos)
      << outcome.err;
}

TEST_F(CliRun, TermReachesTheCommand) {
  Child run({daemon_path(), "run", "--shim", shim_path(), "-o", file("x.pb.gz"), "--", "/bin/sh",
             "-c", "trap 'exit 9' TERM; touch ready; while :; do sleep 0.05; done"},
            setup());
  ASSERT_TRUE(soon([&] { return std::filesystem::exists(file("ready")); }));
  run.send(SIGTERM);
  EXPECT_EQ(run.finish().status, 9);
}

TEST_F(CliRun, ControlCEndsTheCommandAndTheProfileIsWritten) {
  Child::Setup on_terminal = setup();
  on_terminal.terminal = true;
  // The workload ends cleanly on SIGINT, and would end uncleanly on a second one.
  Child run({daemon_path(), "run", "--shim", shim_path(), "-o", "x.pb.gz", "--", WORKLOAD_PATH,
             "--launches", "0", "--seconds", "250", "--rate", "2000"},
            on_terminal);
  wait_until_traced(wait_for_program("workload"));
  EXPECT_TRUE(run.shows("executions/s"));
  run.type("\x03");
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("executions/s"), std::string::npos)
      << "a terminal shows progress: " << outcome.err;
  EXPECT_NE(outcome.err.find("wrote x.pb.gz"), std::string::npos) << outcome.err;
}

TEST_F(CliRun, DurationEndsTheProfileNotTheCommand) {
  const Outcome outcome =
      gpu_profiled({"run", "--duration", "2s", "-o", "x.pb.gz", "--", "/bin/sh", "-c",
                    std::string(WORKLOAD_PATH) +
                        " --launches 0 --seconds 250 --rate 1000 & until test -s x.pb.gz; do "
                        "sleep 0.1; done; kill -0 $! && kill $! && exit 11"});
  EXPECT_EQ(outcome.status, 11) << outcome.err;
}

TEST_F(CliRun, EveryFallbackIsWhole) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> modes = {
      {{"--debug-no-uprobe-multi"}, "perf uprobes"},
      {{"--debug-no-sleepable"}, "not sleepable"},
      {{"--debug-no-nop5"}, "1-byte nop"},
      {{"--debug-no-find-vma"}, "no bpf_find_vma"},
      {{"--debug-no-uprobe-multi", "--debug-no-sleepable", "--debug-no-nop5",
        "--debug-no-find-vma"},
       "perf uprobes, not sleepable, 1-byte nop, no bpf_find_vma"}};
  for (const auto& [flags, attach] : modes) {
    std::vector<std::string> args = {"run", "--summary-json", "s.json", "-o", "x.pb.gz"};
    args.insert(args.end(), flags.begin(), flags.end());
    for (const char* arg : {"--", WORKLOAD_PATH, "--threads", "4", "--launches", "20000"})
      args.emplace_back(arg);
    const Outcome outcome = gpu_profiled(args);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::string json = read_file(file("s.json"));
    EXPECT_NE(json.find(attach), std::string::npos) << json;
    EXPECT_EQ(json_number(json, "total", "received"), 20000) << attach;
    EXPECT_EQ(json_number(json, "stacks", "taken"), json_number(json, "stacks", "whole")) << attach;
  }
}

TEST_F(CliRun, WarnsOfALibcuptiThatTheShimsCopyStandsFor) {
  const std::string newer =
      std::string(FAKE_LIBRARIES).substr(std::string(FAKE_LIBRARIES).rfind(':') + 1) +
      "/libcupti.so.13";
  std::string image = read_file(newer);
  const std::string name("\0cuptiGetErrorMessage\0", 22);
  ASSERT_NE(image.find(name), std::string::npos);
  image[image.find(name) + 1] = '?';
  ASSERT_EQ(::mkdir(file("old").c_str(), 0755), 0);
  const std::string older = file("old/libcupti.so.13");
  std::ofstream(older, std::ios::binary) << image;
  const auto run = [this](const std::string& path) {
    // Long enough to be looked at: that takes a living process.
    return gpu_profiled({"run", "--summary-json", "s.json", "-o", "x.pb.gz", "--", WORKLOAD_PATH,
                         "--launches", "0", "--seconds", "3", "--rate", "1000"},
                        {"GPU_PROFILED_CUPTI_PATH=" + path});
  };
  const Outcome warned = run(older);
  EXPECT_EQ(warned.status, 0) << warned.err;
  const std::string text = "the shim loaded CUPTI from " + older + ", and " + newer +
                           " has 1 function that it lacks (cuptiGetErrorMessage)";
  size_t told = 0;  // as a message, in the table of targets, and in the summary
  for (size_t at = 0; (at = warned.err.find(text, at)) != std::string::npos; ++at) ++told;
  EXPECT_EQ(told, 3u) << warned.err;
  EXPECT_NE(warned.err.find("GPU_PROFILED_CUPTI_PATH=" + newer), std::string::npos);
  const std::string json = read_file(file("s.json"));
  EXPECT_NE(json.find("\"cupti_origin\": \"shim\""), std::string::npos) << json;
  EXPECT_NE(json.find(text), std::string::npos) << json;
  EXPECT_GT(json_number(json, "total", "received"), 300) << "profiled all the same";

  const Outcome heeded = run(newer);
  EXPECT_EQ(heeded.status, 0) << heeded.err;
  EXPECT_EQ(heeded.err.find("lacks"), std::string::npos) << heeded.err;
}

TEST_F(CliRun, ThirtyShortProcesses) {
  for (int i = 0; i < 30; ++i) {
    const Outcome outcome = gpu_profiled({"run", "--summary-json", "s.json", "-o", "x.pb.gz", "--",
                                          SHORT_PATH, "20", std::to_string(i)});
    ASSERT_EQ(outcome.status, i) << outcome.err;
    ASSERT_EQ(json_number(read_file(file("s.json")), "total", "received"), 20)
        << "run " << i << outcome.err;
  }
}

}  // namespace
}  // namespace gpuprof::e2e
