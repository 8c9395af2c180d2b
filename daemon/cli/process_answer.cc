// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/process_answer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace gpuprof::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kDyingPatience{1000};  // a driver call may not be killable

// Async-signal-safe: the child of a fork.
void become_program(char* const* argv, char* const* envp) {
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(argv[0], argv, envp);
}

}  // namespace

Result<AskedProcess> start_asked(const std::function<void()>& become) {
  int pair[2];
  if (::pipe2(pair, O_CLOEXEC) != 0) return fail_errno(Code::kUnavailable, errno, "pipe");
  AskedProcess out{.pid = -1, .answers = UniqueFd(pair[0])};
  const UniqueFd theirs(pair[1]);
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  out.pid = ::fork();
  if (out.pid < 0) return fail_errno(Code::kUnavailable, errno, "cannot start a process");
  if (out.pid > 0) return out;
  if (::dup2(nothing.get(), 0) >= 0 && ::dup2(theirs.get(), 1) >= 0 &&
      ::dup2(nothing.get(), 2) >= 0)
    become();
  ::_exit(kNoExec);
}

Said read_words(int fd, std::string_view last, size_t most_bytes, Clock::time_point deadline) {
  Said out;
  char buffer[1024];
  while (out.text.size() < most_bytes && (last.empty() || !out.text.ends_with(last))) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    out.late = left <= milliseconds(0);
    if (out.late) break;
    pollfd wait = {fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(left.count()));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) break;
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    out.text.append(buffer, static_cast<size_t>(got));
  }
  return out;
}

int end_process(pid_t pid, bool leaving) {
  if (!leaving) ::kill(pid, SIGKILL);
  const auto deadline = Clock::now() + kDyingPatience;
  for (;;) {
    int status = -1;
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) return status;
    if (got < 0 && errno != EINTR) return -1;
    if (Clock::now() >= deadline) {
      if (!leaving) return -1;
      return end_process(pid, false);
    }
    ::usleep(2000);
  }
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

Result<std::string> answer_of(const std::vector<std::string>& words, size_t most_bytes,
                              milliseconds patience) {
  const std::vector<std::string> environment = {"PATH=/usr/bin:/bin", "LC_ALL=C"};
  const std::vector<char*> argv = pointers(words), envp = pointers(environment);
  const auto deadline = Clock::now() + patience;
  const auto asked = start_asked([&] { become_program(argv.data(), envp.data()); });
  if (!asked) return tl::unexpected<Error>(asked.error());
  const Said said = read_words(asked->answers.get(), {}, most_bytes, deadline);
  const bool is_whole = !said.late && said.text.size() < most_bytes;
  const int status = end_process(asked->pid, is_whole);
  if (said.late)
    return fail(Code::kUnavailable,
                "gave no answer in " + std::to_string(patience.count() / 1000) + " s");
  if (!is_whole) return fail(Code::kUnavailable, "printed more than it should");
  if (status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return said.text;
  if (status < 0 || !WIFEXITED(status)) return fail(Code::kUnavailable, "was ended by a signal");
  if (WEXITSTATUS(status) == kNoExec) return fail(Code::kUnavailable, "cannot be started");
  return fail(Code::kNotFound, "ended with " + std::to_string(WEXITSTATUS(status)));
}

}  // namespace gpuprof::cli
