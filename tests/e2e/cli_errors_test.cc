// SPDX-License-Identifier: Apache-2.0
//
// Every error that a user can meet: its status, and one line that says what to do.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

class CliErrors : public CliTest {};

TEST_F(CliErrors, Usage) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--bogus"},
                                               {"--all", "--pid", "1"},
                                               {"run"},
                                               {"run", "--pc-sampling", "always", "--", "true"}}) {
    const Outcome outcome = gpu_profiled(args);
    EXPECT_EQ(outcome.status, 2) << args[0];
    expect_one_line(outcome, "--help");
  }
}

TEST_F(CliErrors, NoSuchProcess) {
  const Outcome outcome = gpu_profiled({"--pid", "2147483647"});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "no such process: 2147483647");
}

TEST_F(CliErrors, AThreadsIdNamesItsProcess) {
  const Child workload(
      {WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "100", "--threads", "1"},
      setup(injected()));
  wait_until_injected(workload.pid());
  const std::string pid = std::to_string(workload.pid());
  std::string thread;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
    if (entry.path().filename() != pid) thread = entry.path().filename();
  }
  ASSERT_FALSE(thread.empty());
  const Outcome outcome = gpu_profiled({"--pid", thread});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, thread + " is a thread of process " + pid +
                               ", and processes are profiled whole: use --pid " + pid);
}

TEST_F(CliErrors, AnIdleTargetsExitSaysWhatToDo) {
  Child idle({WORKLOAD_PATH, "--launches", "0", "--delay-ms", "250000"}, setup(injected()));
  wait_until_injected(idle.pid());
  Child attach({daemon_path(), "--pid", std::to_string(idle.pid())}, setup());
  EXPECT_TRUE(soon([&] {
    const auto page = shim_page(idle.pid());
    return page && page->state == GPUPROF_STATE_ARMING;
  }));
  idle.send(SIGTERM);
  EXPECT_EQ(idle.finish().status, 0);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "ended without launching GPU work while it was observed: attach while");
}

// Not under a sanitizer. UBSan's look at an object's type takes a pipe, and without one finds the
// type wrong; ASan's shadow takes terabytes, its frames a stack of their own size.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CliErrors, TooFewDescriptors) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  const std::string pid = std::to_string(workload.pid());
  // Each limit stops another call; the first that is enough ends it.
  int limit = 4;
  for (int status = 1; status != 0; ++limit) {
    ASSERT_LT(limit, 64);
    Child limited({"/usr/bin/prlimit", "--nofile=" + std::to_string(limit), daemon_path(), "--pid",
                   pid, "--duration", "1s", "-o", "x.pb.gz"},
                  setup());
    const Outcome outcome = limited.finish();
    status = outcome.status;
    SCOPED_TRACE(limit);
    if (status == 127) continue;  // the dynamic loader had too few
    if (status != 0) expect_one_line(outcome, "raise the limit of open files (ulimit -n");
  }
  EXPECT_GT(limit, 24);
}

TEST_F(CliErrors, ASmallStackIsEnoughOrIsTold) {
  for (const char* limit : {"--stack=131072:8388608", "--stack=131072:131072"}) {
    const Outcome outcome =
        Child({"/usr/bin/prlimit", limit, daemon_path(), "run", "--shim", shim_path(), "-o",
               "x.pb.gz", "--", "/bin/sh", "-c", "ulimit -s; exit 7"},
              setup())
            .finish();
    if (outcome.status == 1 && std::string(limit).ends_with(":131072")) {
      expect_one_line(outcome, "the stack limit of 128 KiB is too small");
      continue;
    }
    EXPECT_EQ(outcome.status, 7) << outcome.err;
    EXPECT_EQ(outcome.out, "128\n") << "the command's own limit";
  }
}

TEST_F(CliErrors, OutOfMemoryIsOneLine) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  int failed = 0;
  // Closely where symbols are read: what libdw does not check fails within 1 MiB.
  for (int mib = 60; mib <= 160; mib += mib < 120 ? 10 : 2) {
    const Outcome outcome =
        Child({"/usr/bin/prlimit", "--as=" + std::to_string(mib << 20), daemon_path(), "--pid",
               std::to_string(workload.pid()), "--duration", "500ms", "--stack-rate", "all",
               "--pc-sampling", "continuous", "-o", "x.pb.gz"},
              setup())
            .finish();
    EXPECT_LT(outcome.status, 128) << mib << " MiB: " << outcome.err;
    if (outcome.status != 1) continue;
    ++failed;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_TRUE(outcome.err.find("ulimit -v") != std::string::npos ||
                outcome.err.find("libdw: Cannot allocate memory") != std::string::npos)
        << outcome.err;
  }
  EXPECT_GE(failed, 3);
}
#endif

TEST_F(CliErrors, ProcessWithoutCuda) {
  const Child sleeper({"/bin/sleep", "100"}, setup());
  EXPECT_TRUE(soon([&] { return comm_of(sleeper.pid()) == "sleep"; }));
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(sleeper.pid())});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "does not use CUDA");
}

TEST_F(CliErrors, CudaNotYetInitialised) {
  const Child sleeper({"/bin/sleep", "100"}, setup(injected()));
  EXPECT_TRUE(soon([&] { return comm_of(sleeper.pid()) == "sleep"; }));
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(sleeper.pid())});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "has not initialised CUDA yet");
}

TEST_F(CliErrors, StartedWithoutTheShim) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "100"},
                       setup());
  wait_until_mapped(workload.pid(), "libcuda.so");
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(workload.pid())});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "was started without the shim");
}

TEST_F(CliErrors, BrokenInjection) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "100"},
                       setup({"CUDA_INJECTION64_PATH=/no/such/shim.so"}));
  wait_until_mapped(workload.pid(), "libcuda.so");
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(workload.pid())});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "broken injection: CUDA_INJECTION64_PATH=/no/such/shim.so");
}

TEST_F(CliErrors, ShimDeclined) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "100"},
                       setup({injected()[0], "GPU_PROFILED_DISABLE=1"}));
  wait_until_injected(workload.pid());
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(workload.pid())});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "declined");
}

TEST_F(CliErrors, AnotherControllerIsNamed) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  const std::string pid = std::to_string(workload.pid());
  Child first({daemon_path(), "--pid", pid, "-o", file("first.pb.gz")}, setup());
  wait_until_traced(workload.pid());
  const Outcome outcome = gpu_profiled({"--pid", pid, "--duration", "1s"});
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "is already being profiled by gpu-profiled (pid " +
                               std::to_string(first.pid()) + ")");
  first.send(SIGTERM);
  const Outcome kept = first.finish();
  EXPECT_EQ(kept.status, 0) << kept.err;
}

TEST_F(CliErrors, MissingCapabilitiesAreNamed) {
  const Child sleeper({"/bin/sleep", "100"}, setup());
  const Outcome outcome = gpu_profiled({"--pid", std::to_string(sleeper.pid())}, {}, 65534);
  EXPECT_EQ(outcome.status, 3);
  expect_one_line(outcome, "missing CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH");
}

// Kernels that this machine does not run: only what they lack is pretended, the rest is real.
TEST_F(CliErrors, KernelsThatCannotDoItAreTold) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  const std::vector<std::pair<std::string, std::string>> kernels = {
      {"pretend-old-kernel", "kernel too old: eBPF attach cookies need Linux 5.15 or newer"},
      {"pretend-no-btf", "no kernel type information at /sys/kernel/btf/vmlinux (needs a kernel"},
      {"pretend-lockdown", "the kernel is locked down (confidentiality)"},
      {"pretend-memlock", "raise RLIMIT_MEMLOCK (ulimit -l unlimited)"}};
  for (const auto& [kernel, text] : kernels) {
    const std::vector<std::string> environment = {"GPU_PROFILED_DEBUG_FALLBACK=" + kernel};
    const Outcome attach = gpu_profiled({"--pid", std::to_string(workload.pid())}, environment);
    EXPECT_EQ(attach.status, 3) << kernel;
    expect_one_line(attach, text);
    const Outcome run = gpu_profiled({"run", "--", "/bin/sh", "-c", "exit 7"}, environment);
    EXPECT_EQ(run.status, 7) << "the command's own";
    expect_one_line(run, text);
  }
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliErrors, UnwritableOutputIsToldBeforeAnythingStarts) {
  const Outcome outcome = gpu_profiled(
      {"run", "-o", "/no/such/directory/x.pb.gz", "--", "/bin/sh", "-c", "touch " + file("ran")});
  EXPECT_EQ(outcome.status, 1);
  expect_one_line(outcome, "cannot write /no/such/directory/x.pb.gz");
  EXPECT_FALSE(std::filesystem::exists(file("ran")));
}

TEST_F(CliErrors, SummaryAndCubinsNameTheirOwnOption) {
  const Outcome summary = gpu_profiled(
      {"run", "--summary-json", "/no/such/directory/x", "--", "/bin/sh", "-c", "touch ran"});
  EXPECT_EQ(summary.status, 1);
  expect_one_line(summary, "create it, or choose another file with --summary-json");
  const Outcome cubins = gpu_profiled({"run", "--pc-sampling", "continuous", "--save-cubins",
                                       "/dev/null", "--", "/bin/sh", "-c", "touch ran"});
  EXPECT_EQ(cubins.status, 1);
  expect_one_line(cubins, "/dev/null: Not a directory: name a directory");
  EXPECT_FALSE(std::filesystem::exists(file("ran")));
}

TEST_F(CliErrors, APipeThatNobodyReadsIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  for (const char* option : {"-o", "--summary-json"}) {
    const Outcome outcome = gpu_profiled({"run", option, file("pipe"), "--", "/bin/true"});
    EXPECT_EQ(outcome.status, 1);
    expect_one_line(outcome, "a pipe that nobody reads");
  }
}

TEST_F(CliErrors, ANameThatIsTooLongIsToldBeforeAnythingStarts) {
  const Outcome outcome = gpu_profiled(
      {"run", "-o", file(std::string(250, 'x')), "--", "/bin/sh", "-c", "touch " + file("ran")});
  EXPECT_EQ(outcome.status, 1);
  expect_one_line(outcome, "File name too long");
  EXPECT_FALSE(std::filesystem::exists(file("ran")));
}

TEST_F(CliErrors, ProfileAndSummaryInOneFile) {
  std::filesystem::create_directory(file("below"));
  const Outcome outcome = gpu_profiled(
      {"run", "-o", file("one"), "--summary-json", file("below/../one"), "--", "/bin/true"});
  EXPECT_EQ(outcome.status, 2);
  expect_one_line(outcome, "-o and --summary-json name the same file");
  const Outcome piped = gpu_profiled({"run", "-o", "-", "--summary-json", "-", "--", "/bin/true"});
  EXPECT_EQ(piped.status, 2);
  expect_one_line(piped, "-o and --summary-json name the same file");
  const Outcome nowhere =
      gpu_profiled({"run", "-o", "/dev/null", "--summary-json", "/dev/null", "--", "/bin/true"});
  EXPECT_EQ(nowhere.status, 0) << nowhere.err;
}

TEST_F(CliErrors, FullDisk) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  const Outcome outcome = attach_for(workload.pid(), {"-o", "/dev/full"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err.rfind("gpu-profiled: cannot write /dev/full: no space left", 0), 0u)
      << outcome.err;
}

TEST_F(CliErrors, ForeignInjection) {
  const std::vector<std::string> foreign = {"CUDA_INJECTION64_PATH=/opt/nsys/lib.so"};
  const Outcome refused =
      gpu_profiled({"run", "--", "/bin/sh", "-c", "touch " + file("ran")}, foreign);
  EXPECT_EQ(refused.status, 2);
  expect_one_line(refused, "--force");
  EXPECT_FALSE(std::filesystem::exists(file("ran")));
  const Outcome forced = gpu_profiled(
      {"run", "--force", "--", "/bin/sh", "-c", "echo $CUDA_INJECTION64_PATH"}, foreign);
  EXPECT_EQ(forced.status, 0);
  EXPECT_EQ(forced.out, shim_path() + "\n");
}

TEST_F(CliErrors, CommandThatCannotStart) {
  const Outcome outcome = gpu_profiled({"run", "--", "/no/such/program"});
  EXPECT_EQ(outcome.status, 1);
  expect_one_line(outcome, "cannot run /no/such/program: No such file or directory");
  EXPECT_TRUE(profiles().empty());
}

TEST_F(CliErrors, UnknownUser) {
  const Outcome outcome = gpu_profiled({"run", "--user", "no-such-user-here", "--", "/bin/true"});
  EXPECT_EQ(outcome.status, 2);
  expect_one_line(outcome, "no such user");
}

}  // namespace
}  // namespace gpuprof::e2e
