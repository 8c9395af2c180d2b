// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/deputy.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "daemon/cli/capabilities.h"
#include "daemon/cli/cubin_files.h"
#include "daemon/cli/fd_message.h"
#include "daemon/cli/output_file.h"

namespace gpuprof::cli {

struct Deputy::Request {
  enum Action : uint32_t { kPublish = 1, kSignal = 2, kSaveCubin = 3 };
  uint32_t action = 0;
  int32_t argument = 0;  // index of the file, number of the signal
  char sha256[64] = {};  // kSaveCubin, whose bytes are in the descriptor that comes with it
};

namespace {

constexpr size_t kMaxText = 4096 + 256;  // a path and what is wrong with it

struct Answer {
  int32_t code = -1;  // enum Code; -1: it worked
  int32_t sys_errno = 0;
  uint32_t text_bytes = 0;  // the name it got, or the message
  char text[kMaxText] = {};
};

Answer answer_of(const Result<std::string>& result) {
  Answer out;
  const std::string& text = result ? *result : result.error().message;
  if (!result) {
    out.code = static_cast<int32_t>(result.error().code);
    out.sys_errno = result.error().sys_errno;
  }
  out.text_bytes = static_cast<uint32_t>(std::min(text.size(), kMaxText));
  std::memcpy(out.text, text.data(), out.text_bytes);
  return out;
}

Result<std::string> signal_command(int pidfd, int number) {
  if (pidfd < 0) return fail(Code::kInternal, "no command to signal");
  if (::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0) == 0) return std::string();
  return fail_errno(Code::kIo, errno, "signalling the command");
}

Result<std::string> save(const CubinFiles* cubins, const std::string& sha256,
                         const UniqueFd& bytes) {
  if (cubins == nullptr || !bytes.valid()) return fail(Code::kInternal, "no directory for cubins");
  auto saved = cubins->save(sha256, bytes.get());
  if (!saved) return tl::unexpected<Error>(saved.error());
  return std::string(*saved ? "saved" : "");
}

void keep_needed_capabilities(const CubinFiles* cubins) {
  std::vector<cap_value_t> needed = {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_KILL};
  if (cubins != nullptr && cubins->gives_away()) needed.push_back(CAP_CHOWN);
  (void)keep_capabilities(needed).has_value();  // as it is, it does no more than it is asked
}

}  // namespace

Result<Deputy> Deputy::start(std::span<OutputFile* const> files, pid_t command,
                             const CubinFiles* cubins) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return fail_errno(Code::kIo, errno, "socketpair");
  Deputy out;
  out.socket_.reset(pair[0]);
  UniqueFd theirs(pair[1]);
  UniqueFd pidfd;
  if (command > 0) pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, command, 0)));
  out.pid_ = ::fork();
  if (out.pid_ < 0) return fail_errno(Code::kIo, errno, "cannot start a process");
  if (out.pid_ > 0) {
    for (OutputFile* file : files) file->forget_temporary();
    return out;
  }
  ::prctl(PR_SET_NAME, "gpu-prof-deputy", 0, 0, 0);
  std::vector<int> kept = {theirs.get()};
  if (pidfd.valid()) kept.push_back(pidfd.get());
  for (const OutputFile* file : files) file->add_descriptors(kept);
  if (cubins != nullptr) cubins->add_descriptors(kept);
  close_all_but(std::move(kept));
  keep_needed_capabilities(cubins);
  for (;;) {
    Request request;
    FdMessage message(&request, sizeof request);
    message.expect();
    const ssize_t got =
        again([&] { return ::recvmsg(theirs.get(), &message.header, MSG_CMSG_CLOEXEC); });
    if (got != static_cast<ssize_t>(sizeof request)) break;  // the profiler has ended
    Result<std::string> result = fail(Code::kInternal, "unknown request");
    const auto index = static_cast<size_t>(request.argument);
    if (request.action == Request::kPublish && index < files.size())
      result = files[index]->publish();
    if (request.action == Request::kSignal) result = signal_command(pidfd.get(), request.argument);
    if (request.action == Request::kSaveCubin)
      result =
          save(cubins, std::string(request.sha256, sizeof request.sha256), message.descriptor());
    const Answer answer = answer_of(result);
    again([&] { return ::send(theirs.get(), &answer, sizeof answer, MSG_NOSIGNAL); });
  }
  for (OutputFile* file : files) file->remove_temporary();
  ::_exit(0);
}

Deputy::Deputy(Deputy&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

Deputy::~Deputy() {
  if (pid_ <= 0) return;
  socket_.reset();
  again([&] { return ::waitpid(pid_, nullptr, 0); });
}

Result<std::string> Deputy::ask(const Request& request, int descriptor) {
  Answer answer;
  Request copy = request;
  FdMessage message(&copy, sizeof copy);
  if (descriptor >= 0) message.attach(descriptor);
  ssize_t got = again([&] { return ::sendmsg(socket_.get(), &message.header, MSG_NOSIGNAL); });
  if (got == static_cast<ssize_t>(sizeof request))
    got = again([&] { return ::recv(socket_.get(), &answer, sizeof answer, 0); });
  if (got != static_cast<ssize_t>(sizeof answer) || answer.text_bytes > kMaxText)
    return fail(Code::kUnavailable,
                "gpu-profiled's helper process (gpu-prof-deputy), which names the files, was "
                "killed: nothing was written; profile again and leave it running");
  std::string text(answer.text, answer.text_bytes);
  if (answer.code < 0) return text;
  return tl::unexpected<Error>(
      Error{static_cast<Code>(answer.code), answer.sys_errno, std::move(text)});
}

Result<std::string> Deputy::publish(uint32_t file) {
  return ask({Request::kPublish, static_cast<int32_t>(file), {}});
}

Result<bool> Deputy::save_cubin(const std::string& sha256, int from) {
  Request request{Request::kSaveCubin, 0, {}};
  sha256.copy(request.sha256, sizeof request.sha256);
  auto done = ask(request, from);
  if (!done) return tl::unexpected<Error>(done.error());
  return !done->empty();
}

Status Deputy::signal(int number) {
  auto done = ask({Request::kSignal, number, {}});
  if (!done) return tl::unexpected<Error>(done.error());
  return {};
}

}  // namespace gpuprof::cli
