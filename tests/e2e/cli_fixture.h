// SPDX-License-Identifier: Apache-2.0
//
// Runs gpu-profiled and programs on the fake driver as child processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "proto/memfd_layout.h"

namespace gpuprof::e2e {

struct Outcome {
  int status = -1;  // as a shell gives it
  std::string out;
  std::string err;
};

// One child. Its stdout and stderr go to files that finish() reads.
class Child {
 public:
  struct Setup {
    std::vector<std::string> environment;  // NAME=VALUE, added to a minimal one
    std::string directory;                 // working directory
    uid_t uid = 0;
    bool terminal = false;  // a session of its own on a pseudo terminal
  };
  Child(const std::vector<std::string>& argv, const Setup& setup);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Outcome finish();
  void send(int signal) const;
  [[nodiscard]] std::string error_so_far() const;
  // Whether its terminal shows `text` within a minute.
  bool shows(std::string_view text);
  // Types into its terminal.
  void type(std::string_view keys) const;
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  bool read_terminal();  // false at its end
  std::string shown_;
  pid_t pid_ = -1;
  bool done_ = false;
  UniqueFd terminal_;
  std::string out_path_, err_path_;
};

class CliTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  Outcome gpu_profiled(std::vector<std::string> args, std::vector<std::string> environment = {},
                       uid_t uid = 0);
  [[nodiscard]] Child::Setup setup(std::vector<std::string> environment = {}) const;
  // gpu-profiled --pid PID `args`, interrupted when the shim in `pid` has emitted `executions`.
  Outcome attach_for(pid_t pid, std::vector<std::string> args, uint64_t executions = 100);
  // A program on the fake driver with the shim, its GPU initialised and launching.
  [[nodiscard]] std::vector<std::string> injected() const;
  static void wait_until_mapped(pid_t pid, const char* library);
  // The shim in it has come to a state; what state that is, its page tells.
  static void wait_until_injected(pid_t pid);
  // It traces, and has emitted `executions` more than it had when this was called.
  static void wait_until_traced(pid_t pid, uint64_t executions = 100);
  // A program of this name, not `other`, that works in the test's folder.
  [[nodiscard]] pid_t wait_for_program(const std::string& comm, pid_t other = 0) const;
  [[nodiscard]] std::vector<std::string> profiles() const;  // *.pb.gz in directory_
  [[nodiscard]] std::string file(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_;
};

// The gpu-profiled and the shim under test: the build tree's, or those that
// GPU_PROFILED_TEST_DAEMON and GPU_PROFILED_TEST_SHIM name, as scripts/build-portable makes them.
const std::string& daemon_path();
const std::string& shim_path();

std::string read_file(const std::string& path);
// Waits for a condition that comes sooner or later; false after a minute, which only a hang takes.
bool soon(const std::function<bool()>& condition);
// What the shim in a process tells of itself.
std::optional<gpuprof_status_page> shim_page(pid_t pid);
// The first number after "name": at or behind the first "after" of a JSON text; -1 if there is
// none.
long long json_number(const std::string& json, const std::string& after, const std::string& name);
// The letter in /proc/PID/stat; '?' where it is gone.
char state_of(pid_t pid);
std::string comm_of(pid_t pid);
// Exactly one line, by gpu-profiled, that holds `text`.
void expect_one_line(const Outcome& outcome, const std::string& text);

}  // namespace gpuprof::e2e
