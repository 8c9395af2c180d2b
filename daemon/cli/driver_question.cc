// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/driver_question.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <vector>

#include "daemon/asker/asker.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/process_answer.h"
#include "daemon/target/text.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace gpuprof::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMostBytes = 8192;
constexpr std::string_view kLast = "\nend\n";

// The asker in memory: no file of ours need be found, and none can be put in its place. Where
// vm.memfd_noexec is set it says that it shall be executed; before Linux 6.3 that is not known.
Result<UniqueFd> asker_file() {
  UniqueFd fd(::memfd_create("gpu-profiled-asker", MFD_CLOEXEC | MFD_EXEC));
  if (!fd.valid() && errno == EINVAL) fd.reset(::memfd_create("gpu-profiled-asker", MFD_CLOEXEC));
  if (!fd.valid()) return fail_errno(Code::kUnavailable, errno, "memfd_create");
  const auto bytes = asker::program();
  if (::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) ||
      ::fchmod(fd.get(), 0755) != 0)
    return fail_errno(Code::kUnavailable, errno, "a program in memory");
  return fd;
}

// Async-signal-safe: the child of a fork.
void become_asker(int file, char* const* argv, char* const* envp, const AskAs& as) {
  as.limits.restore();
  const rlimit no_core = {0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (become(as.invoker) != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::sigprocmask(SIG_SETMASK, &as.mask, nullptr);
  ::syscall(SYS_execveat, file, "", argv, envp, AT_EMPTY_PATH);
}

std::string rest_of(std::string_view text, std::string_view word) {
  size_t at = 0;
  while (at < text.size()) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.starts_with(word)) return std::string(line.substr(word.size()));
    at += line.size() + 1;
  }
  return {};
}

std::optional<uint32_t> number_in(const std::string& text, uint32_t most) {
  uint32_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size() || out > most) return {};
  return out;
}

}  // namespace

Result<DriverAnswer> parse_answer(std::string_view text) {
  const std::string why = rest_of(text, "failed ");
  if (!why.empty()) return fail(Code::kNotFound, target::printable(why, 300));
  DriverAnswer out;
  const auto version = number_in(rest_of(text, "version "), 999'999);
  if (!version || *version < 1000) return fail(Code::kUnavailable, "no answer of a libcuda");
  out.version = *version;
  out.path = target::printable(rest_of(text, "loaded "), 512);
  const std::string init = rest_of(text, "init ");
  if (const auto number = number_in(init, 99'999)) out.init = static_cast<int>(*number);
  return out;
}

Result<DriverAnswer> ask_driver(const std::string& library, uint32_t bound, const AskAs& as,
                                milliseconds patience) {
  auto file = asker_file();
  if (!file) return tl::unexpected<Error>(file.error());
  Environment environment = as.environment;
  for (const char* name :
       {"CUDA_INJECTION64_PATH", "CUDA_INJECTION32_PATH", "LD_PRELOAD", "LD_AUDIT", "LD_DEBUG"})
    environment.unset(name);
  const std::vector<std::string> words = {"gpu-prof-asker", library, std::to_string(bound)};
  const std::vector<char*> argv = pointers(words), envp = pointers(environment.entries());
  const auto deadline = Clock::now() + patience;
  const auto asked = start_asked([&] { become_asker(file->get(), argv.data(), envp.data(), as); });
  if (!asked) return tl::unexpected<Error>(asked.error());
  const Said said = read_words(asked->answers.get(), kLast, kMostBytes, deadline);
  const bool answered = said.text.ends_with(kLast);
  const int status = end_process(asked->pid, !answered && !said.late);
  if (answered) return parse_answer(said.text);
  // What it had said before is worth nothing: it may be half of it.
  if (said.late)
    return fail(Code::kUnavailable,
                "it gave no answer in " + std::to_string(patience.count() / 1000) + " s");
  if (status >= 0 && WIFSIGNALED(status))
    return fail(Code::kUnavailable,
                "asking it ended by signal " + std::to_string(WTERMSIG(status)));
  if (status >= 0 && WEXITSTATUS(status) == kNoExec)
    return fail(Code::kUnavailable,
                "a process to ask it cannot be started (no dynamic loader at the usual place, or "
                "vm.memfd_noexec is 2)");
  return fail(Code::kUnavailable, "asking it ended without an answer");
}

}  // namespace gpuprof::cli
