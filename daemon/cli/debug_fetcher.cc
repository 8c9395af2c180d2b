// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/debug_fetcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string_view>
#include <vector>

#include "daemon/cli/capabilities.h"
#include "daemon/cli/fd_message.h"

namespace gpuprof::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxIdBytes = 128;
constexpr size_t kMaxPathBytes = 4096;

// Of both directions: a build that is wanted, or what became of it. With a descriptor: it came.
struct Record {
  char build_id[kMaxIdBytes] = {};
};

bool is_build_id(std::string_view text) {
  return text.size() >= 6 && text.size() <= kMaxIdBytes && text.size() % 2 == 0 &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string id_of(const Record& record) {
  return std::string(record.build_id, strnlen(record.build_id, sizeof record.build_id));
}

// The helper: single-threaded, ends when the socket's other end is closed.
class Server {
 public:
  Server(UniqueFd socket, std::string program, const Environment& environment)
      : socket_(std::move(socket)), program_(std::move(program)) {
    for (const std::string& entry : environment.entries())
      environment_.push_back(const_cast<char*>(entry.c_str()));
    environment_.push_back(nullptr);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void serve() {
    while (step()) {
    }
    for (const Job& job : jobs_) end(job);
  }

 private:
  struct Job {
    std::string build_id;
    pid_t pid = -1;
    UniqueFd output;
    std::string path;
    Clock::time_point deadline;
  };

  // False: whom we serve is gone.
  bool step() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) --alive_;
    while (jobs_.size() < DebugFetcher::kMaxAtOnce && !queue_.empty()) {
      start(std::move(queue_.front()));
      queue_.pop_front();
    }
    std::vector<pollfd> watched = {{socket_.get(), POLLIN, 0}};
    for (const Job& job : jobs_) watched.push_back({job.output.get(), POLLIN, 0});
    const int wait_ms = !jobs_.empty() ? 1000 : alive_ > 0 ? 20 : -1;  // a killed one ends soon
    if (::poll(watched.data(), watched.size(), wait_ms) < 0) return errno == EINTR;
    for (size_t i = jobs_.size(); i-- > 0;) {
      const bool is_done = watched[i + 1].revents != 0 && !read_on(jobs_[i]);
      if (!is_done && Clock::now() < jobs_[i].deadline) continue;
      end(jobs_[i]);
      answer(jobs_[i].build_id, is_done ? open_path(jobs_[i].path) : UniqueFd());
      jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(i));
    }
    return watched[0].revents == 0 || take_request();
  }

  bool take_request() {
    Record record;
    const ssize_t got = again([&] { return ::recv(socket_.get(), &record, sizeof record, 0); });
    if (got != static_cast<ssize_t>(sizeof record)) return false;
    std::string id = id_of(record);
    if (is_build_id(id) && queue_.size() < DebugFetcher::kMaxWanted)
      queue_.push_back(std::move(id));
    return true;
  }

  void start(std::string build_id) {
    int pair[2];
    if (::pipe2(pair, O_CLOEXEC) != 0) return answer(build_id, UniqueFd());
    Job job{.build_id = std::move(build_id),
            .pid = -1,
            .output = UniqueFd(pair[0]),
            .path = {},
            .deadline = Clock::now() + std::chrono::seconds(DebugFetcher::kPatienceSeconds)};
    const UniqueFd theirs(pair[1]);
    job.pid = ::fork();
    if (job.pid == 0) become_program(theirs.get(), job.build_id);
    if (job.pid < 0) return answer(job.build_id, UniqueFd());
    ++alive_;
    jobs_.push_back(std::move(job));
  }

  // In a group of its own: a terminal's signals are not for it.
  [[noreturn]] void become_program(int output, const std::string& build_id) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlimit no_core = {0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);  // ours are blocked
    if (::dup2(output, 1) < 0) ::_exit(1);
    const char* const words[] = {DebugFetcher::kProgram, "debuginfo", build_id.c_str(), nullptr};
    ::execve(program_.c_str(), const_cast<char* const*>(words), environment_.data());
    ::_exit(1);
  }

  // False: it has said all.
  static bool read_on(Job& job) {
    char buffer[kMaxPathBytes];
    const ssize_t got = again([&] { return ::read(job.output.get(), buffer, sizeof buffer); });
    if (got <= 0 || job.path.size() + static_cast<size_t>(got) > kMaxPathBytes) return false;
    job.path.append(buffer, static_cast<size_t>(got));
    return !job.path.ends_with('\n');
  }

  // The path is printed when the file is whole. Not waited for: it may hang in a file system.
  static void end(const Job& job) {
    ::kill(-job.pid, SIGKILL);
    ::kill(job.pid, SIGKILL);  // it may not have its group yet
  }

  static UniqueFd open_path(std::string path) {
    while (path.ends_with('\n')) path.pop_back();
    if (!path.starts_with('/')) return {};
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat info = {};
    if (!file.valid() || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
    return file;
  }

  void answer(const std::string& build_id, const UniqueFd& file) {
    Record record;
    build_id.copy(record.build_id, sizeof record.build_id);
    FdMessage message(&record, sizeof record);
    if (file.valid()) {
      message.attach(file.get());
    } else {
      message.header.msg_control = nullptr;
    }
    again([&] { return ::sendmsg(socket_.get(), &message.header, MSG_NOSIGNAL); });
  }

  UniqueFd socket_;
  std::string program_;
  std::vector<char*> environment_;
  std::deque<std::string> queue_;
  std::vector<Job> jobs_;
  int alive_ = 0;  // programs that are not reaped
};

// Who may run it is asked as we are, which is at least who will.
std::string find_program(const std::string& path) {
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    if (!folder.starts_with('/')) continue;
    std::string file = std::string(folder) + "/" + DebugFetcher::kProgram;
    struct stat info = {};
    if (::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 0111) != 0)
      return file;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DebugFetcher>> DebugFetcher::start(const Invoker& owner,
                                                          Environment environment) {
  std::unique_ptr<DebugFetcher> out;
  if (environment.value("DEBUGINFOD_URLS").empty()) return out;
  std::string program = find_program(environment.value("PATH"));
  if (program.empty())
    return fail(Code::kNotFound,
                "DEBUGINFOD_URLS is set, but there is no debuginfod-find on the PATH: no debug "
                "information is fetched (Debian: apt install debuginfod)");
  set_identity(environment, owner);
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return fail_errno(Code::kIo, errno, "socketpair");
  out.reset(new DebugFetcher);
  out->socket_.reset(pair[0]);
  UniqueFd theirs(pair[1]);
  out->pid_ = ::fork();
  if (out->pid_ < 0) return fail_errno(Code::kIo, errno, "cannot start a process");
  if (out->pid_ > 0) return out;
  ::prctl(PR_SET_NAME, "gpu-prof-fetch", 0, 0, 0);
  close_all_but({theirs.get()});
  // In the places of the standard streams, which nothing else shall get: what is started has them.
  for (int place = 0; place >= 0 && place < 2;) place = ::open("/dev/null", O_RDWR);
  if (become(owner) != 0 || !keep_capabilities({})) ::_exit(1);
  Server(std::move(theirs), std::move(program), environment).serve();
  ::_exit(0);
}

DebugFetcher::~DebugFetcher() {
  socket_.reset();
  if (pid_ > 0) again([&] { return ::waitpid(pid_, nullptr, 0); });
}

void DebugFetcher::want(const std::string& build_id) {
  collect();  // so that the helper can go on
  if (!is_build_id(build_id) || wanted_.size() >= kMaxWanted || wanted_.contains(build_id)) return;
  Record record;
  build_id.copy(record.build_id, sizeof record.build_id);
  const ssize_t sent = again(
      [&] { return ::send(socket_.get(), &record, sizeof record, MSG_NOSIGNAL | MSG_DONTWAIT); });
  if (sent != static_cast<ssize_t>(sizeof record)) return;  // said again, it may go
  wanted_.insert(build_id);
  ++counts_.wanted;
}

void DebugFetcher::collect() {
  for (;;) {
    Record record;
    FdMessage message(&record, sizeof record);
    message.expect();
    const ssize_t got = again(
        [&] { return ::recvmsg(socket_.get(), &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
    if (got != static_cast<ssize_t>(sizeof record)) return;
    UniqueFd file = message.descriptor();
    if (!wanted_.contains(id_of(record))) continue;
    ++(file.valid() ? counts_.found : counts_.missing);
    if (file.valid()) arrived_[id_of(record)] = std::move(file);
  }
}

UniqueFd DebugFetcher::take(const std::string& build_id) {
  collect();
  const auto it = arrived_.find(build_id);
  if (it == arrived_.end()) return {};
  UniqueFd out = std::move(it->second);
  arrived_.erase(it);
  return out;
}

DebugFetcher::Counts DebugFetcher::counts() {
  collect();
  return counts_;
}

}  // namespace gpuprof::cli
