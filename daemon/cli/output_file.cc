// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/output_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdio>
#include <ctime>
#include <optional>
#include <tuple>

#include "daemon/cli/deputy.h"

namespace gpuprof::cli {
namespace {

constexpr mode_t kMode = 0600;
constexpr int kMaxSuffix = 1000;
constexpr std::string_view kExtension = ".pb.gz";

// `option`: what named the file, -o or --summary-json.
Error explain(int err, const std::string& path, const std::string& option) {
  std::string what;
  switch (err) {
    case ENOSPC:
    case EDQUOT:
      what = "no space left: free some, or write elsewhere with " + option;
      break;
    case EROFS:
      what = "read-only file system: write elsewhere with " + option;
      break;
    case EACCES:
    case EPERM:
      what = "no permission to write there: choose another file with " + option;
      break;
    case ENOENT:
    case ENOTDIR:
      what = "no such directory: create it, or choose another file with " + option;
      break;
    case EBADF:
      what = "that descriptor is not open for writing: choose another with " + option;
      break;
    case EISDIR:
      what = "is a directory: name a file with " + option;
      break;
    case ENXIO:
      what =
          "a pipe that nobody reads: start its reader first, or choose another file with " + option;
      break;
    case EFBIG:
      what = "larger than the file size limit: raise it (ulimit -f), or write elsewhere with " +
             option;
      break;
    default:
      what =
          std::strerror(err) + (*remedy_of(err) != '\0' ? std::string(remedy_of(err))
                                                        : ": choose another file with " + option);
      break;
  }
  return Error{Code::kIo, err, "cannot write " + path + ": " + what};
}

Status write_all(int fd, std::string_view bytes, const std::string& path,
                 const std::string& option) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return tl::unexpected<Error>(explain(errno, path, option));
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

// A directory and a name in it.
struct Place {
  UniqueFd directory;
  std::string name;
};

std::pair<std::string, std::string> split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Where `name` leads if that must be written in place: into /proc (/dev/stdout is a link to
// /proc/self/fd/1), or anywhere by a link of /dev's own file system. Root could rename over such a
// link, and the whole system would miss it. Other links are replaced like files.
std::optional<Place> system_place(int directory, const std::string& name) {
  constexpr int kMaxLinks = 40;  // as the kernel
  struct stat dev = {}, root = {}, info = {};
  const bool has_dev =
      ::stat("/dev", &dev) == 0 && ::stat("/", &root) == 0 && dev.st_dev != root.st_dev;
  bool in_dev = false;
  Place at{UniqueFd(::fcntl(directory, F_DUPFD_CLOEXEC, 0)), name};
  for (int i = 0; i < kMaxLinks; ++i) {
    struct statfs system = {};
    if (::fstatfs(at.directory.get(), &system) != 0) return {};
    if (system.f_type == PROC_SUPER_MAGIC) return at;
    char target[PATH_MAX];
    const ssize_t size = ::readlinkat(at.directory.get(), at.name.c_str(), target, sizeof target);
    if (size <= 0) break;
    in_dev =
        in_dev || (has_dev && ::fstat(at.directory.get(), &info) == 0 && info.st_dev == dev.st_dev);
    auto [parent, last] = split(std::string(target, static_cast<size_t>(size)));
    UniqueFd next(::openat(at.directory.get(), parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!next.valid()) break;
    at = Place{std::move(next), std::move(last)};
  }
  return in_dev ? std::optional(std::move(at)) : std::nullopt;
}

// The descriptor of ours that `place` names; -1: none. Only what we inherited counts: all
// that we opened closes on exec.
int own_descriptor(const Place& place) {
  struct stat named = {}, ours = {};
  if (::fstat(place.directory.get(), &named) != 0) return -1;
  const bool is_ours = std::ranges::any_of(
      std::array{"/proc/self/fd", "/proc/thread-self/fd"},
      [&](auto* path) { return ::stat(path, &ours) == 0 && same_file(named, ours); });
  int number = -1;
  const char* end = place.name.data() + place.name.size();
  const auto parsed = std::from_chars(place.name.data(), end, number);
  if (!is_ours || parsed.ec != std::errc() || parsed.ptr != end) return -1;
  const int flags = ::fcntl(number, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0 ? number : -1;
}

std::string with_suffix(const std::string& name, int number) {
  if (number < 2) return name;
  std::string stem = name, extension;
  for (const std::string_view known : {kExtension, std::string_view(".json")}) {
    if (!name.ends_with(known)) continue;
    stem.resize(name.size() - known.size());
    extension = known;
  }
  return stem + "-" + std::to_string(number) + extension;
}

}  // namespace

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      option_(std::move(other.option_)),
      directory_(std::move(other.directory_)),
      name_(std::move(other.name_)),
      existing_(other.existing_),
      number_(other.number_),
      directory_fd_(std::move(other.directory_fd_)),
      file_(std::move(other.file_)),
      temporary_(std::exchange(other.temporary_, {})),
      in_place_(other.in_place_),
      overwrites_(other.overwrites_),
      deputy_(other.deputy_),
      deputy_index_(other.deputy_index_) {}

OutputFile::~OutputFile() { remove_temporary(); }

void OutputFile::remove_temporary() {
  if (!temporary_.empty()) ::unlinkat(directory_fd_.get(), temporary_.c_str(), 0);
  temporary_.clear();
}

void OutputFile::delegate(Deputy& deputy, uint32_t index) {
  deputy_ = &deputy;
  deputy_index_ = index;
}

void OutputFile::add_descriptors(std::vector<int>& out) const {
  for (const UniqueFd* fd : {&directory_fd_, &file_}) {
    if (fd->valid()) out.push_back(fd->get());
  }
}

Result<OutputFile> OutputFile::named(const std::string& path, Existing existing,
                                     const std::string& option) {
  OutputFile out;
  out.path_ = path;
  out.option_ = option;
  out.existing_ = existing;
  std::tie(out.directory_, out.name_) = split(path);
  if (out.name_.empty() || out.name_ == "." || out.name_ == "..")
    return tl::unexpected<Error>(explain(EISDIR, path, option));
  return out;
}

Result<OutputFile> OutputFile::open(const std::string& path, Existing existing,
                                    const Invoker& owner, const std::string& option) {
  auto out = named(path, existing, option);
  if (!out) return out;
  out->directory_fd_.reset(::open(out->directory_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!out->directory_fd_.valid()) return tl::unexpected<Error>(explain(errno, path, option));

  struct stat info = {};
  const bool exists = ::fstatat(out->directory_fd_.get(), out->name_.c_str(), &info, 0) == 0;
  if (exists && S_ISDIR(info.st_mode)) return tl::unexpected<Error>(explain(EISDIR, path, option));
  const std::optional<Place> place = system_place(out->directory_fd_.get(), out->name_);
  const auto ok = place || (exists && !S_ISREG(info.st_mode))
                      ? out->open_in_place(place ? own_descriptor(*place) : -1)
                      : out->create_temporary(owner);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return out;
}

Result<OutputFile> OutputFile::open_in(const UniqueFd& directory, const std::string& path,
                                       Existing existing, const Invoker& owner,
                                       const std::string& option) {
  auto out = named(path, existing, option);
  if (!out) return out;
  out->directory_fd_.reset(::fcntl(directory.get(), F_DUPFD_CLOEXEC, 0));
  if (auto ok = out->create_temporary(owner); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

// A descriptor that we were given is written through its own offset, as by any program; the file
// behind it may hold more than our bytes. What is opened here is ours to overwrite.
Status OutputFile::open_in_place(int own_descriptor) {
  in_place_ = true;
  if (own_descriptor >= 0) {
    const int flags = ::fcntl(own_descriptor, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY)
      return tl::unexpected<Error>(explain(EBADF, path_, option_));
    file_.reset(::fcntl(own_descriptor, F_DUPFD_CLOEXEC, 0));
  } else {
    // Opening a pipe that nobody reads would wait, and no signal would end it.
    file_.reset(
        ::openat(directory_fd_.get(), name_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (file_.valid()) ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_NONBLOCK);
  }
  struct stat info = {};
  if (!file_.valid() || ::fstat(file_.get(), &info) != 0)
    return tl::unexpected<Error>(explain(errno, path_, option_));
  overwrites_ = own_descriptor < 0 && S_ISREG(info.st_mode);
  return {};
}

std::string OutputFile::temporary_name() const {
  return "." + name_ + "." + std::to_string(::getpid()) + ".tmp";
}

bool OutputFile::is_same_place(const OutputFile& other) const {
  struct stat ours = {}, theirs = {};
  if (in_place_ && other.in_place_)  // a terminal or /dev/null takes both
    return ::fstat(file_.get(), &ours) == 0 && ::fstat(other.file_.get(), &theirs) == 0 &&
           same_file(ours, theirs) && !S_ISCHR(ours.st_mode);
  return !in_place_ && !other.in_place_ && name_ == other.name_ &&
         ::fstat(directory_fd_.get(), &ours) == 0 &&
         ::fstat(other.directory_fd_.get(), &theirs) == 0 && same_file(ours, theirs);
}

Status OutputFile::create_temporary(const Invoker& owner) {
  // It gets its name at the end only: the longest that may be tried must fit.
  if (temporary_name().size() > NAME_MAX)
    return tl::unexpected<Error>(explain(ENAMETOOLONG, path_, option_));
  file_.reset(::openat(directory_fd_.get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode));
  if (!file_.valid() &&
      (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL)) {
    temporary_ = temporary_name();
    file_.reset(::openat(directory_fd_.get(), temporary_.c_str(),
                         O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, kMode));
    if (!file_.valid()) temporary_.clear();
  }
  if (!file_.valid()) return tl::unexpected<Error>(explain(errno, path_, option_));
  // The umask may have taken bits of the mode; the owner is who called sudo, not root.
  if (::fchmod(file_.get(), kMode) != 0 ||
      (owner.uid != ::geteuid() && ::fchown(file_.get(), owner.uid, owner.gid) != 0))
    return tl::unexpected<Error>(explain(errno, path_, option_));
  return {};
}

Result<std::string> OutputFile::commit(std::string_view bytes) {
  if (overwrites_ && ::ftruncate(file_.get(), 0) != 0)
    return tl::unexpected<Error>(explain(errno, path_, option_));
  if (auto ok = write_all(file_.get(), bytes, path_, option_); !ok)
    return tl::unexpected<Error>(ok.error());
  if (in_place_) return path_;
  // Delayed allocation reports a full disk here, not at write.
  if (::fsync(file_.get()) != 0) return tl::unexpected<Error>(explain(errno, path_, option_));
  return deputy_ != nullptr ? deputy_->publish(deputy_index_) : publish();
}

Status OutputFile::give_name(const std::string& name, bool replace) {
  const int dir = directory_fd_.get();
  if (temporary_.empty()) {
    const std::string link = "/proc/self/fd/" + std::to_string(file_.get());
    if (::linkat(AT_FDCWD, link.c_str(), dir, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    if (errno != EEXIST || !replace) return tl::unexpected<Error>(explain(errno, path_, option_));
    // linkat never replaces: take a temporary name first, then rename over the old file.
    const std::string temporary = temporary_name();
    if (::linkat(AT_FDCWD, link.c_str(), dir, temporary.c_str(), AT_SYMLINK_FOLLOW) != 0)
      return tl::unexpected<Error>(explain(errno, path_, option_));
    temporary_ = temporary;
  }
  // renameat2 without replacement is not on every file system; linkat is where it is missing.
  const int done = replace ? ::renameat(dir, temporary_.c_str(), dir, name.c_str())
                           : ::linkat(dir, temporary_.c_str(), dir, name.c_str(), 0);
  if (done != 0) return tl::unexpected<Error>(explain(errno, path_, option_));
  if (!replace) ::unlinkat(dir, temporary_.c_str(), 0);
  temporary_.clear();
  return {};
}

Result<std::string> OutputFile::publish() {
  const bool replace = existing_ == Existing::kReplace;
  const int last = replace ? number_ : number_ + kMaxSuffix - 1;
  for (int number = number_; number <= last; ++number) {
    const std::string name = with_suffix(name_, number);
    auto ok = give_name(name, replace);
    if (ok) {
      number_ = number;
      const UniqueFd readable(
          ::openat(directory_fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (readable.valid()) ::fsync(readable.get());  // the name, too, survives a crash
      return path_.substr(0, path_.size() - name_.size()) + name;
    }
    if (replace || ok.error().sys_errno != EEXIST) return tl::unexpected<Error>(ok.error());
  }
  return fail(Code::kIo, "cannot write " + path_ +
                             ": too many files of that name; choose one with " + option_);
}

std::string default_output_name(std::string_view comm, uint32_t pid, time_t when) {
  std::string safe;
  for (const char c : comm) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || c == '+' || c == '.';
    safe += plain ? c : '_';
  }
  if (safe.empty() || safe == "." || safe == "..") safe = "process";
  tm local = {};
  ::localtime_r(&when, &local);
  char time_text[32];
  std::strftime(time_text, sizeof time_text, "%Y%m%dT%H%M%S", &local);
  return "gpu-" + safe.substr(0, 64) + "-" + std::to_string(pid) + "-" + time_text +
         std::string(kExtension);
}

}  // namespace gpuprof::cli
