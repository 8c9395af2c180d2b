// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/deputy.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "daemon/cli/capabilities.h"
#include "daemon/cli/cubin_files.h"
#include "daemon/cli/fd_message.h"
#include "daemon/cli/output_file.h"
#include "daemon/cli/output_series.h"

namespace gpuprof::cli {

struct Deputy::Request {
  enum Action : uint32_t { kPublish = 1, kSignal = 2, kSaveCubin = 3, kWrite = 4 };
  uint32_t action = 0;
  int32_t argument = 0;  // index of the file or series, number of the signal
  // kSaveCubin: a SHA-256; kWrite: a file's name. The bytes are in the descriptor that comes along.
  char name[NAME_MAX + 1] = {};
};

// What it is forked with.
struct Deputy::Charge {
  std::span<OutputFile* const> files;
  pid_t command = -1;
  const CubinFiles* cubins = nullptr;
  std::span<OutputSeries* const> series;
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

// All of a memfd of ours.
Result<std::string> content_of(const UniqueFd& file) {
  struct stat info = {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return fail(Code::kInternal, "no bytes");
  std::string out(static_cast<size_t>(info.st_size), '\0');
  size_t at = 0;
  while (at < out.size()) {
    const ssize_t got = again([&] {
      return ::pread(file.get(), out.data() + at, out.size() - at, static_cast<off_t>(at));
    });
    if (got <= 0) return fail_errno(Code::kIo, got < 0 ? errno : EIO, "reading a file's bytes");
    at += static_cast<size_t>(got);
  }
  return out;
}

Result<std::string> write_file(std::span<OutputSeries* const> series, size_t index,
                               const std::string& name, const UniqueFd& from) {
  if (index >= series.size() || name.find('/') != std::string::npos)
    return fail(Code::kInternal, "no such series of files");
  auto bytes = content_of(from);
  if (!bytes) return bytes;
  return series[index]->write(name, *bytes);
}

void keep_needed_capabilities(bool gives_away) {
  std::vector<cap_value_t> needed = {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_KILL};
  if (gives_away) needed.push_back(CAP_CHOWN);
  (void)keep_capabilities(needed).has_value();  // as it is, it does no more than it is asked
}

}  // namespace

Result<Deputy> Deputy::start(std::span<OutputFile* const> files, pid_t command,
                             const CubinFiles* cubins) {
  auto out = fork({files, command, cubins, {}});
  if (out) {
    for (OutputFile* file : files) file->forget_temporary();
  }
  return out;
}

Result<Deputy> Deputy::start_writer(std::span<OutputSeries* const> series) {
  return fork({{}, -1, nullptr, series});
}

Result<Deputy> Deputy::fork(const Charge& charge) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return fail_errno(Code::kIo, errno, "socketpair");
  Deputy out;
  out.socket_.reset(pair[0]);
  UniqueFd theirs(pair[1]);
  UniqueFd pidfd;
  if (charge.command > 0)
    pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, charge.command, 0)));
  out.pid_ = ::fork();
  if (out.pid_ < 0) return fail_errno(Code::kIo, errno, "cannot start a process");
  if (out.pid_ == 0) serve(charge, std::move(theirs), std::move(pidfd));
  return out;
}

void Deputy::serve(const Charge& charge, UniqueFd socket, UniqueFd pidfd) {
  ::prctl(PR_SET_NAME, "gpu-prof-deputy", 0, 0, 0);
  std::vector<int> kept = {socket.get()};
  if (pidfd.valid()) kept.push_back(pidfd.get());
  bool gives_away = false;
  for (const OutputFile* file : charge.files) file->add_descriptors(kept);
  for (const OutputSeries* series : charge.series) {
    series->add_descriptors(kept);
    gives_away = gives_away || series->gives_away();
  }
  if (charge.cubins != nullptr) {
    charge.cubins->add_descriptors(kept);
    gives_away = gives_away || charge.cubins->gives_away();
  }
  close_all_but(std::move(kept));
  keep_needed_capabilities(gives_away);
  for (;;) {
    Request request;
    FdMessage message(&request, sizeof request);
    message.expect();
    const ssize_t got =
        again([&] { return ::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC); });
    if (got != static_cast<ssize_t>(sizeof request)) break;  // the profiler has ended
    const std::string name(request.name, ::strnlen(request.name, sizeof request.name));
    Result<std::string> result = fail(Code::kInternal, "unknown request");
    const auto index = static_cast<size_t>(request.argument);
    if (request.action == Request::kPublish && index < charge.files.size())
      result = charge.files[index]->publish();
    if (request.action == Request::kSignal) result = signal_command(pidfd.get(), request.argument);
    if (request.action == Request::kSaveCubin)
      result = save(charge.cubins, name, message.descriptor());
    if (request.action == Request::kWrite)
      result = write_file(charge.series, index, name, message.descriptor());
    const Answer answer = answer_of(result);
    again([&] { return ::send(socket.get(), &answer, sizeof answer, MSG_NOSIGNAL); });
  }
  for (OutputFile* file : charge.files) file->remove_temporary();
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
  sha256.copy(request.name, sizeof request.name - 1);
  auto done = ask(request, from);
  if (!done) return tl::unexpected<Error>(done.error());
  return !done->empty();
}

Result<std::string> Deputy::write(uint32_t series, const std::string& name,
                                  std::string_view bytes) {
  Request request{Request::kWrite, static_cast<int32_t>(series), {}};
  if (name.size() >= sizeof request.name)
    return fail(Code::kIo, "cannot write " + name + ": the name is too long: choose a shorter one");
  name.copy(request.name, sizeof request.name - 1);
  const UniqueFd file(::memfd_create("gpu-profiled-output", MFD_CLOEXEC));
  size_t at = 0;
  while (file.valid() && at < bytes.size()) {
    const ssize_t put =
        again([&] { return ::write(file.get(), bytes.data() + at, bytes.size() - at); });
    if (put <= 0) break;
    at += static_cast<size_t>(put);
  }
  if (!file.valid() || at != bytes.size())
    return fail_errno(Code::kIo, errno, "cannot write " + name + " (memfd)");
  return ask(request, file.get());
}

Status Deputy::signal(int number) {
  auto done = ask({Request::kSignal, number, {}});
  if (!done) return tl::unexpected<Error>(done.error());
  return {};
}

}  // namespace gpuprof::cli
