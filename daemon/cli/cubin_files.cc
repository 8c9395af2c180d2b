// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cubin_files.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpuprof::cli {
namespace {

constexpr mode_t kMode = 0600;

tl::unexpected<Error> failed(int error, const std::string& path) {
  const char* what = "";
  switch (error) {
    case ENOTDIR:
    case EEXIST:
      what = ": name a directory, which is made where there is none";
      break;
    case ENOENT:
      what = ": create the directory above it, or name another";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
      what = ": name a directory that can be written";
      break;
    case ENOSPC:
    case EDQUOT:
      what = ": free some space, or name a directory elsewhere";
      break;
    default:
      break;
  }
  auto out = fail_errno(Code::kIo, error, "--save-cubins " + path);
  out.value().message += what;
  return out;
}

// Reads up to `bytes`; fewer only at the end. -1: an error.
ssize_t read_at(int file, char* into, size_t bytes, off_t at) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(file, into + done, bytes - done, at + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

// -1: one cannot be read.
int same_content(int left, int right) {
  std::vector<char> pieces(2 * size_t{1 << 18});
  const size_t half = pieces.size() / 2;
  for (off_t at = 0;; at += static_cast<off_t>(half)) {
    const ssize_t one = read_at(left, pieces.data(), half, at);
    const ssize_t other = read_at(right, pieces.data() + half, half, at);
    if (one < 0 || other < 0) return -1;
    if (one != other) return 0;
    if (std::memcmp(pieces.data(), pieces.data() + half, static_cast<size_t>(one)) != 0) return 0;
    if (static_cast<size_t>(one) < half) return 1;
  }
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

Result<CubinFiles> CubinFiles::open(const std::string& path, const Invoker& owner) {
  CubinFiles out;
  out.path_ = path;
  out.uid_ = owner.uid;
  out.gid_ = owner.gid;
  out.gives_away_ = owner.uid != ::geteuid();
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return failed(errno, path);
  // What we have just made is no link; what the user named may be one.
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (made ? O_NOFOLLOW : 0);
  out.directory_.reset(::open(path.c_str(), flags));
  if (!out.directory_.valid()) return failed(errno, path);
  if (made && out.gives_away_ && ::fchown(out.directory_.get(), owner.uid, owner.gid) != 0)
    return failed(errno, path);
  if (::faccessat(out.directory_.get(), ".", W_OK | X_OK, AT_EACCESS) != 0)
    return failed(errno, path);
  return out;
}

Status CubinFiles::fill(int file, int from) const {
  if (::fchmod(file, kMode) != 0 || (gives_away_ && ::fchown(file, uid_, gid_) != 0))
    return failed(errno, path_);
  off_t at = 0;
  for (;;) {
    const ssize_t put = ::sendfile(file, from, &at, 1 << 20);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed(errno, path_);
    if (put == 0) break;
  }
  if (::fsync(file) != 0) return failed(errno, path_);  // a full disk shows here at the latest
  return {};
}

// A file of this name is there. Anybody who may write the directory may have put it there, so that
// it is this cubin only if its content is.
Result<bool> CubinFiles::keep(const std::string& name, int from) const {
  const UniqueFd file(::openat(directory_.get(), name.c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid() && errno != ELOOP && errno != ENXIO) return failed(errno, path_ + "/" + name);
  struct stat info = {};
  struct stat wanted = {};
  if (::fstat(from, &wanted) != 0) return failed(errno, path_);
  int same = 0;
  if (file.valid() && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) &&
      info.st_size == wanted.st_size)
    same = same_content(file.get(), from);
  if (same < 0) return failed(errno, path_ + "/" + name);
  if (same > 0) return false;
  return fail(Code::kIo, "--save-cubins " + path_ + "/" + name +
                             ": something else is there: remove it, or name another directory");
}

Result<bool> CubinFiles::save(const std::string& sha256, int from) const {
  if (!is_sha256(sha256)) return fail(Code::kInternal, "no SHA-256");
  const std::string name = sha256 + ".cubin";
  const int directory = directory_.get();
  struct stat info = {};
  if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return keep(name, from);
  std::string temporary;
  UniqueFd file(::openat(directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode));
  if (!file.valid() &&
      (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL)) {
    temporary = "." + name + "." + std::to_string(::getpid()) + ".tmp";
    file.reset(::openat(directory, temporary.c_str(),
                        O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, kMode));
  }
  if (!file.valid()) return failed(errno, path_);
  auto filled = fill(file.get(), from);
  int linked = -1;
  if (filled) {
    const std::string link = "/proc/self/fd/" + std::to_string(file.get());
    linked = temporary.empty()
                 ? ::linkat(AT_FDCWD, link.c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW)
                 : ::linkat(directory, temporary.c_str(), directory, name.c_str(), 0);
  }
  const int error = errno;
  if (!temporary.empty()) ::unlinkat(directory, temporary.c_str(), 0);
  if (!filled) return tl::unexpected<Error>(filled.error());
  if (linked == 0) return true;
  if (error == EEXIST) return keep(name, from);
  return failed(error, path_);
}

void SavedCubins::add(const Result<bool>& saved) {
  if (saved) {
    ++(*saved ? saved_ : there_);
  } else if (failed_++ == 0) {
    first_error_ = saved.error().message;
  }
}

std::string SavedCubins::line(const std::string& path) const {
  std::string out =
      "saved " + std::to_string(saved_) + (saved_ == 1 ? " cubin" : " cubins") + " in " + path;
  if (there_ != 0) out += " (" + std::to_string(there_) + " more were there)";
  if (lost_ != 0) out += "; " + std::to_string(lost_) + " could not be kept till the end";
  if (failed_ != 0) out += "; " + std::to_string(failed_) + " could not be saved: " + first_error_;
  return out;
}

}  // namespace gpuprof::cli
