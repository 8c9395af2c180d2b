// SPDX-License-Identifier: Apache-2.0
//
// What happens around a run: full disks, removed directories, keys, kills, a run inside a run.
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

namespace fs = std::filesystem;

class CliAround : public CliTest {
 protected:
  [[nodiscard]] Child::Setup on_terminal() const {
    Child::Setup out = setup({"GPU_PROFILED_SHIM=" + shim_path()});
    out.terminal = true;
    return out;
  }
};

TEST_F(CliAround, DiskFullInTheMiddleLeavesNoHalfFile) {
  const std::string disk = file("disk");
  fs::create_directory(disk);
  ASSERT_EQ(::mount("none", disk.c_str(), "tmpfs", 0, "size=4k"), 0);
  const Outcome outcome = gpu_profiled({"run", "-o", disk + "/x.pb.gz", "--", WORKLOAD_PATH,
                                        "--threads", "4", "--launches", "2000"});
  const bool empty = fs::is_empty(disk);
  ::umount(disk.c_str());
  EXPECT_EQ(outcome.status, 0) << "the command's own";
  EXPECT_EQ(outcome.err.rfind("gpu-profiled: cannot write " + disk + "/x.pb.gz: no space left", 0),
            0u)
      << outcome.err;
  EXPECT_TRUE(empty);
}

TEST_F(CliAround, OutputDirectoryRemovedMeanwhile) {
  const std::string where = file("out");
  fs::create_directory(where);
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", where + "/x.pb.gz"},
               setup());
  wait_until_traced(workload.pid());
  fs::remove_all(where);
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("cannot write " + where + "/x.pb.gz: no such directory"),
            std::string::npos)
      << outcome.err;
}

TEST_F(CliAround, KilledCommandIsProfiledUpToItsEnd) {
  Child run({daemon_path(), "run", "--shim", shim_path(), "-o", "x.pb.gz", "--summary-json",
             "s.json", "--", "/bin/sh", "-c",
             "exec " + std::string(WORKLOAD_PATH) + " --launches 0 --seconds 250 --rate 1000"},
            setup());
  const pid_t command = wait_for_program("workload");
  wait_until_traced(command, 2000);
  ::kill(command, SIGKILL);
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.status, 128 + SIGKILL) << outcome.err;
  EXPECT_NE(outcome.err.find("wrote x.pb.gz"), std::string::npos) << outcome.err;
  const std::string json = read_file(file("s.json"));
  EXPECT_GT(json_number(json, "total", "received"), 1000) << json;
  EXPECT_NE(json.find("\"identity_holds\": true"), std::string::npos) << json;
}

TEST_F(CliAround, TwoInterruptsStillWriteTheProfile) {
  const Child workload({WORKLOAD_PATH, "--launches", "0", "--seconds", "250", "--rate", "1000"},
                       setup(injected()));
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz"},
               on_terminal());
  wait_until_traced(workload.pid());
  attach.type("\x03\x03");
  const Outcome outcome = attach.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(file("x.pb.gz")));
}

TEST_F(CliAround, TwoInterruptsUnderRun) {
  Child run({daemon_path(), "run", "-o", "x.pb.gz", "--", WORKLOAD_PATH, "--launches", "0",
             "--seconds", "250", "--rate", "1000"},
            on_terminal());
  wait_until_traced(wait_for_program("workload"));
  run.type("\x03");
  ::usleep(30'000);  // as fingers do; either order of what follows is right
  run.type("\x03");
  const Outcome outcome = run.finish();
  EXPECT_TRUE(outcome.status == 0 || outcome.status == 128 + SIGINT) << outcome.status;
  EXPECT_TRUE(fs::exists(file("x.pb.gz"))) << outcome.err;
}

TEST_F(CliAround, TheCommandReadsTheTerminal) {
  Child run({daemon_path(), "run", "--", "/bin/cat"}, on_terminal());
  (void)wait_for_program("cat");
  run.type("what is typed\n\x04");
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "what is typed\n");
}

TEST_F(CliAround, ControlZStopsAllAndContinues) {
  Child run({daemon_path(), "run", "--", "/bin/sh", "-c",
             "echo $$ >pid; trap 'kill $!; exit 7' TERM; sleep 250 & touch ready; wait"},
            on_terminal());
  ASSERT_TRUE(soon([&] { return fs::exists(file("ready")); }));
  // In `wait`, not in a vfork for `touch`: there it cannot stop before its child goes on.
  const pid_t command = std::atoi(read_file(file("pid")).c_str());
  ASSERT_TRUE(soon([&] { return state_of(command) == 'S'; }));
  // An orphaned process group gets no SIGTSTP from its terminal: what a shell's job does, by hand.
  ::kill(-run.pid(), SIGSTOP);
  EXPECT_TRUE(soon([&] { return state_of(run.pid()) == 'T'; }));
  EXPECT_TRUE(soon([&] { return state_of(command) == 'T'; })) << "it is in our process group";
  ::kill(-run.pid(), SIGCONT);
  run.send(SIGTERM);
  EXPECT_EQ(run.finish().status, 7);
}

TEST_F(CliAround, RunInsideRun) {
  const Outcome outcome = gpu_profiled({"run", "-o", "outer.pb.gz", "--summary-json", "s.json",
                                        "--", daemon_path(), "run", "--shim", shim_path(), "-o",
                                        "inner.pb.gz", "--", SHORT_PATH, "200", "6"});
  EXPECT_EQ(outcome.status, 6) << outcome.err;
  // One of the two controls the shim; both see every record.
  EXPECT_EQ(json_number(read_file(file("s.json")), "total", "received"), 200) << outcome.err;
  EXPECT_TRUE(fs::exists(file("outer.pb.gz"))) << outcome.err;
  EXPECT_TRUE(fs::exists(file("inner.pb.gz"))) << outcome.err;
}

}  // namespace
}  // namespace gpuprof::e2e
