// SPDX-License-Identifier: Apache-2.0
//
// Whose records are delivered: watched processes, their children, numbers across pid namespaces,
// duplicate attaches, and what a user without the right capabilities reads.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"

namespace gpuprof::probe {
namespace {

class ProbeProcesses : public ProbeE2e {};
INSTANTIATE_TEST_SUITE_P(Modes, ProbeProcesses, testing::ValuesIn(all_modes()), mode_name);

void fire_execs(uint32_t count, uint64_t seq = 0) {
  const std::vector<gpuprof_exec_v1> execs(count, sample_exec(1));
  probe_site_fire(GPUPROF_PROBE_EXEC, execs.data(), count, seq);
}

// What a program needs loaded first that was not built with our sanitizer, and a ':', if there is
// one.
std::string sanitizer_runtime() {
  Dl_info info;
  void* symbol = dlsym(RTLD_DEFAULT, "__sanitizer_print_stack_trace");
  if (symbol == nullptr || dladdr(symbol, &info) == 0) return "";
  return std::string(info.dli_fname) + ":";
}

// Forks before anything is watched, so that the child is nobody's.
struct Helper {
  explicit Helper(const std::function<void()>& body) {
    EXPECT_EQ(pipe(go), 0);
    pid = fork();
    if (pid == 0) {
      char byte;
      close(go[1]);
      if (read(go[0], &byte, 1) == 1) body();
      _exit(0);
    }
    close(go[0]);
  }
  void run() {
    EXPECT_EQ(write(go[1], "g", 1), 1);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    close(go[1]);
  }
  int go[2];
  pid_t pid;
};

TEST_P(ProbeProcesses, UnwatchedAreFilteredButForTheirBirth) {
  Helper stranger([] {
    fire_execs(3);
    gpuprof_process_v1 process{};
    process.abi_version = GPUPROF_ABI_VERSION;
    process.memfd = 100;
    probe_site_fire(GPUPROF_PROBE_PROCESS, &process, 1, 0);
  });
  start();
  attach();
  watch_self();
  stranger.run();
  poll();
  EXPECT_TRUE(sink.execs.empty());
  ASSERT_EQ(sink.processes.size(), 1u);
  EXPECT_EQ(sink.last_process.pid, static_cast<uint32_t>(stranger.pid));
  EXPECT_EQ(session->counters().bpf[GPUPROF_BPF_IGNORED_PROCESS], 1u);
}

TEST_P(ProbeProcesses, WatchAllAndUnwatch) {
  Helper first([] { fire_execs(3); });
  start();
  attach();
  ASSERT_TRUE(session->watch_all(true));
  first.run();
  poll();
  EXPECT_EQ(sink.execs_of[static_cast<uint32_t>(first.pid)], 3u);
  ASSERT_TRUE(session->watch_all(false));
  watch_self();
  fire_execs(1);
  session->unwatch(static_cast<uint32_t>(getpid()));
  fire_execs(1, 1);
  poll();
  EXPECT_EQ(sink.execs_of[static_cast<uint32_t>(getpid())], 1u);
}

TEST_P(ProbeProcesses, AnotherStartTimeIsAnotherProcess) {
  start();
  attach();
  ASSERT_TRUE(session->watch({.pid = static_cast<uint32_t>(getpid()), .start_ticks = 1}));
  fire_execs(1);
  poll();
  EXPECT_TRUE(sink.execs.empty());
}

TEST_P(ProbeProcesses, ForkedChildrenAndTheirsAreFollowed) {
  start();
  attach();
  watch_self();
  int child_pid[2];
  ASSERT_EQ(pipe(child_pid), 0);
  // Nobody fires before the last fork: a fork copies an optimised site but not the kernel's
  // trampoline that it calls (6.18), and the child that runs it dies of SIGSEGV. The shim is inert
  // in forked children for other reasons, so it never does.
  const int status = in_child([&] {
    const int inner = in_child([&] {
      const pid_t self = getpid();
      fire_execs(7);
      return write(child_pid[1], &self, sizeof(self)) == sizeof(self) ? 0 : 1;
    });
    fire_execs(5);
    return inner;
  });
  ASSERT_EQ(status, 0);
  pid_t grandchild = 0;
  ASSERT_EQ(read(child_pid[0], &grandchild, sizeof(grandchild)),
            static_cast<ssize_t>(sizeof(grandchild)));
  poll();
  EXPECT_EQ(sink.execs.size(), 12u);
  EXPECT_EQ(sink.execs_of[static_cast<uint32_t>(grandchild)], 7u);
  close(child_pid[0]);
  close(child_pid[1]);
}

TEST_P(ProbeProcesses, ExitedChildrenLeaveTheWatchMap) {
  ProbeOptions options;
  options.max_processes = 16;
  start(options);
  attach();
  watch_self();
  for (int i = 0; i < 300; i++) ASSERT_EQ(in_child([] { return 0; }), 0);
  EXPECT_EQ(session->counters().bpf[GPUPROF_BPF_WATCH_FULL], 0u);
  ASSERT_EQ(in_child([] {
              fire_execs(2);
              return 0;
            }),
            0);
  poll();
  EXPECT_EQ(sink.execs.size(), 2u);
}

TEST_P(ProbeProcesses, NumbersAreTheDaemonsAcrossPidNamespaces) {
  start();
  attach();
  watch_self();
  int from_child[2];
  ASSERT_EQ(pipe(from_child), 0);
  pid_t seen_from_here = 0;
  const int status = in_child([&] {
    if (unshare(CLONE_NEWPID) != 0) return 1;
    const pid_t inner = fork();  // number 1 in there
    if (inner == 0) {
      fire_execs(4);
      _exit(getpid() == 1 ? 0 : 1);
    }
    if (write(from_child[1], &inner, sizeof(inner)) != sizeof(inner)) return 2;
    int inner_status = -1;
    waitpid(inner, &inner_status, 0);
    return inner_status == 0 ? 0 : 3;
  });
  ASSERT_EQ(status, 0);
  ASSERT_EQ(read(from_child[0], &seen_from_here, sizeof(seen_from_here)),
            static_cast<ssize_t>(sizeof(seen_from_here)));
  poll();
  EXPECT_EQ(sink.execs_of[static_cast<uint32_t>(seen_from_here)], 4u);
  EXPECT_EQ(sink.execs.size(), 4u);
  close(from_child[0]);
  close(from_child[1]);
}

// A daemon in a pid namespace of its own: who is outside has no number there.
TEST_P(ProbeProcesses, InvisibleTasksAreCounted) {
  Helper outside([] { fire_execs(9); });
  int ready[2];
  int done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t unsharer = fork();
  if (unsharer == 0) {
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) _exit(1);
    const pid_t daemon = fork();
    if (daemon == 0) {
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      if (mount("proc", "/proc", "proc", 0, nullptr) != 0) _exit(2);
      start();
      attach();
      if (HasFatalFailure() || !session->watch_all(true)) _exit(3);
      char byte = 'r';
      if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1) _exit(4);
      fire_execs(2);
      poll();
      const auto counters = session->counters();
      if (counters.bpf[GPUPROF_BPF_INVISIBLE_TASK] != 1) _exit(5);
      _exit(sink.execs.size() == 2 && sink.last_process.pid == 1 ? 0 : 6);
    }
    int status = -1;
    waitpid(daemon, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 7);
  }
  char byte;
  close(ready[1]);
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the inner daemon did not start";
  outside.run();
  ASSERT_EQ(write(done[1], "d", 1), 1);
  int status = -1;
  waitpid(unsharer, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (const int fd : {ready[0], done[0], done[1]}) close(fd);
}

// Two overlay mounts of one lower directory: two device numbers, one inode for uprobes.
TEST_P(ProbeProcesses, TwoOverlaysOfOneFileDeliverOnce) {
  namespace fs = std::filesystem;
  const std::string base = testing::TempDir() + "probe_overlay_" + GetParam().name;
  const int status = in_child([&] {
    if (unshare(CLONE_NEWNS) != 0) return 1;
    mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    fs::create_directories(base);
    if (mount("tmpfs", base.c_str(), "tmpfs", 0, nullptr) != 0) return 2;
    for (const char* dir : {"lower", "u1", "w1", "m1", "u2", "w2", "m2"}) {
      fs::create_directories(base + "/" + dir);
    }
    fs::copy_file(site_library_path(), base + "/lower/libprobe_site.so");
    UniqueFd files[2];
    for (int i = 0; i < 2; i++) {
      const std::string n = std::to_string(i + 1);
      const std::string options =
          "lowerdir=" + base + "/lower,upperdir=" + base + "/u" + n + ",workdir=" + base + "/w" + n;
      const std::string target = base + "/m" + n;
      if (mount("overlay", target.c_str(), "overlay", 0, options.c_str()) != 0) return 3;
      files[i].reset(open((target + "/libprobe_site.so").c_str(), O_RDONLY | O_CLOEXEC));
      if (!files[i].valid()) return 4;
    }
    start();
    auto first = session->attach(files[0].get(), "first");
    auto second = session->attach(files[1].get(), "second");
    if (!first || !second || *first == *second) return 5;
    watch_self();
    // The copy in the overlay, run by a process of its own.
    const std::string library = base + "/m2/libprobe_site.so";
    const pid_t target = fork();
    if (target == 0) {
      setenv("LD_PRELOAD", (sanitizer_runtime() + library).c_str(), 1);
      setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
      setenv("PROBE_SITE_FIRE_EXECS", "6", 1);
      execl("/bin/true", "true", nullptr);
      _exit(9);
    }
    int target_status = -1;
    waitpid(target, &target_status, 0);
    if (target_status != 0) return 6;
    poll();
    const auto counters = session->counters();
    if (sink.execs.size() != 6 || counters.duplicate_records != 6) return 7;
    if (counters.duplicate_attaches != 1 || !sink.lost.empty()) return 8;
    auto again = session->attach(files[1].get(), "second");
    if (!again || *again != *second) return 10;
    // The survivor serves as long as either of its owners lives.
    session->detach(*first);
    if (session->counters().bpf[GPUPROF_BPF_FIRED] != 12) return 11;
    return 0;
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

bool keep_capabilities(std::initializer_list<int> capabilities) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> data{};
  for (const int capability : capabilities) {
    data[static_cast<size_t>(capability) / 32].effective |= 1u << (capability % 32);
    data[static_cast<size_t>(capability) / 32].permitted |= 1u << (capability % 32);
  }
  return syscall(SYS_capset, &header, data.data()) == 0;
}

TEST_P(ProbeProcesses, MissingCapabilitiesAreNamed) {
  const auto message_with = [&](std::initializer_list<int> capabilities) {
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    in_child([&] {
      std::string message = "no error";
      if (!keep_capabilities(capabilities)) return 1;
      ProbeOptions options;
      if (!options.add_fallbacks(GetParam().fallbacks)) return 1;
      auto created = ProbeSession::create(options, sink);
      if (!created) message = created.error().message;
      if (created) {
        const UniqueFd fd(open(site_library_path().c_str(), O_RDONLY));
        auto attached = (*created)->attach(fd.get(), "shim");
        if (!attached) message = attached.error().message;
      }
      return write(out[1], message.data(), message.size()) > 0 ? 0 : 1;
    });
    char text[1024] = {};
    EXPECT_GT(read(out[0], text, sizeof(text) - 1), 0);
    close(out[0]);
    close(out[1]);
    return std::string(text);
  };
  EXPECT_THAT(message_with({}), testing::HasSubstr("needs CAP_BPF and CAP_PERFMON"));
  EXPECT_THAT(message_with({CAP_BPF}), testing::HasSubstr("needs CAP_PERFMON"));
  EXPECT_THAT(message_with({CAP_PERFMON}), testing::HasSubstr("needs CAP_BPF"));
  const std::string both = message_with({CAP_BPF, CAP_PERFMON});
  if (GetParam().fallbacks.find("uprobe-multi") == std::string::npos) {
    EXPECT_EQ(both, "no error");
  } else {
    EXPECT_THAT(both, testing::HasSubstr("CAP_SYS_ADMIN"));
  }
  for (const std::string& message : {both, message_with({})}) {
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace gpuprof::probe
