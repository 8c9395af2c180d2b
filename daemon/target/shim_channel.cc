// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/shim_channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "daemon/target/process.h"
#include "daemon/target/text.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace gpuprof::target {
namespace {

constexpr const char* kMemfdLink = "/memfd:" GPUPROF_MEMFD_NAME;
// Status, control and the module table; copies of images come behind them.
constexpr uint64_t kMinBytes = GPUPROF_MODULES_OFFSET;
constexpr uint64_t kMaxBytes = 4ull << 30;
constexpr size_t kMaxCandidates = 16;
// At the first look a writer may have been preempted, so it is waited for. Later a target that
// keeps its page half-written must cost the others nothing, and the caller comes back anyway.
constexpr int kPatience = 50;  // pauses, over all candidates of one process
constexpr int kHastyTries = 3;
constexpr timespec kPause = {0, 1'000'000};

// The device of the kernel's internal mount that every memfd lives on, learned from one of our own.
Result<dev_t> memfd_device() {
  static std::atomic<dev_t> known = 0;
  if (const dev_t device = known; device != 0) return device;
  const UniqueFd fd(::memfd_create("gpu-profiled-device", MFD_CLOEXEC));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
    return fail_errno(Code::kIo, errno, "memfd_create");
  }
  known = info.st_dev;
  return info.st_dev;
}

Error refuse(const std::string& path, const char* why) {
  return Error{Code::kCorrupt, 0, path + " is not the shim's memfd (" + why + "); left alone"};
}

Status read_exact(int fd, void* into, size_t bytes, off_t offset) {
  const ssize_t got = ::pread(fd, into, bytes, offset);
  if (got < 0) return fail_errno(Code::kIo, errno, "reading the shim's memfd");
  if (static_cast<size_t>(got) != bytes)
    return fail(Code::kCorrupt, "the shim's memfd is too short");
  return {};
}

Status write_exact(int fd, const void* from, size_t bytes, off_t offset) {
  const ssize_t put = ::pwrite(fd, from, bytes, offset);
  if (put < 0) return fail_errno(Code::kIo, errno, "writing the shim's control page");
  if (static_cast<size_t>(put) != bytes)
    return fail(Code::kIo, "short write to the shim's control page");
  return {};
}

// pread copies while the target may write: `seq` before and after, even and equal, or again. Waits
// a millisecond before each further try while `pauses` lasts.
Status read_status_page(int fd, gpuprof_status_page& page, int& pauses) {
  for (int attempt = 0; attempt < kHastyTries || pauses > 0; ++attempt) {
    if (attempt >= kHastyTries) {
      --pauses;
      ::nanosleep(&kPause, nullptr);
    }
    uint32_t before = 0, after = 0;
    constexpr off_t kSeq = offsetof(gpuprof_status_page, seq);
    if (auto ok = read_exact(fd, &before, sizeof before, kSeq); !ok) return ok;
    if (before % 2 != 0) continue;
    if (auto ok = read_exact(fd, &page, sizeof page, 0); !ok) return ok;
    if (auto ok = read_exact(fd, &after, sizeof after, kSeq); !ok) return ok;
    if (page.seq == before && after == before) return {};
  }
  return fail(Code::kUnavailable,
              "the shim's status page stays half-written: is the process stopped?");
}

template <size_t N>
std::string text_of(const char (&field)[N]) {
  return printable(std::string_view(field, N));
}

struct flock control_lock() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = GPUPROF_CONTROL_OFFSET;
  lock.l_len = sizeof(gpuprof_control_page);
  return lock;
}

Status check_owner(const gpuprof_status_page& page, ProcessId process, const std::string& path) {
  const auto innermost = innermost_pid(process.pid);
  if (page.owner_pid != innermost.value_or(process.pid))
    return tl::unexpected<Error>(refuse(path, "it belongs to another process"));
  // start_ticks of another time namespace is shifted by its boottime offset.
  if (page.owner_start_ticks != process.start_ticks && same_time_namespace(process.pid))
    return tl::unexpected<Error>(refuse(path, "its owner started at another time"));
  return {};
}

// Everything that must hold before anything is opened for writing. `pinned` is an O_PATH
// descriptor.
Result<UniqueFd> verify(const UniqueFd& pinned, const std::string& path, ProcessId process,
                        int& pauses) {
  auto device = memfd_device();
  if (!device) return tl::unexpected<Error>(device.error());
  struct stat info = {};
  if (::fstat(pinned.get(), &info) != 0) return fail_errno(Code::kIo, errno, path);
  if (!S_ISREG(info.st_mode)) return tl::unexpected<Error>(refuse(path, "not a regular file"));
  if (info.st_nlink != 0) return tl::unexpected<Error>(refuse(path, "a file with a name"));
  if (info.st_dev != *device) return tl::unexpected<Error>(refuse(path, "not on the memfd mount"));
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size < kMinBytes || size > kMaxBytes)
    return tl::unexpected<Error>(refuse(path, "its size is out of bounds"));

  // Seals cannot be asked of an O_PATH descriptor; reading a memfd has no side effects.
  const std::string again = "/proc/self/fd/" + std::to_string(pinned.get());
  const UniqueFd readable(::open(again.c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable.valid()) return fail_errno(Code::kPermission, errno, path);
  const int seals = ::fcntl(readable.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return tl::unexpected<Error>(refuse(path, "not sealed against shrinking"));
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
    return tl::unexpected<Error>(refuse(path, "sealed against writing"));

  gpuprof_status_page page = {};
  if (auto ok = read_status_page(readable.get(), page, pauses); !ok)
    return tl::unexpected<Error>(ok.error());
  if (page.magic != GPUPROF_STATUS_MAGIC) return tl::unexpected<Error>(refuse(path, "wrong magic"));
  if (page.abi_version != GPUPROF_ABI_VERSION)
    return fail(Code::kUnsupported,
                "process " + std::to_string(process.pid) + " runs a shim of ABI version " +
                    std::to_string(page.abi_version) + ", this gpu-profiled knows " +
                    std::to_string(GPUPROF_ABI_VERSION) + ": restart it with the matching shim");
  if (auto ok = check_owner(page, process, path); !ok) return tl::unexpected<Error>(ok.error());

  UniqueFd writable(::open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (!writable.valid())
    return fail_errno(Code::kPermission, errno, "opening " + path + " for writing");
  return writable;
}

std::vector<std::string> candidates(ProcessId process, std::optional<int> fd_hint) {
  const std::string proc = "/proc/" + std::to_string(process.pid);
  std::vector<std::string> out;
  if (fd_hint && *fd_hint >= 0) out.push_back(proc + "/fd/" + std::to_string(*fd_hint));
  struct CloseDir {
    void operator()(DIR* dir) const { ::closedir(dir); }
  };
  const std::unique_ptr<DIR, CloseDir> dir(::opendir((proc + "/fd").c_str()));
  while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    const std::string path = proc + "/fd/" + entry->d_name;
    char link[64] = {};
    const ssize_t length = ::readlink(path.c_str(), link, sizeof link - 1);
    if (length <= 0 || !std::string_view(link).starts_with(kMemfdLink)) continue;
    if (out.size() < kMaxCandidates && std::find(out.begin(), out.end(), path) == out.end())
      out.push_back(path);
  }
  auto mappings = file_mappings(process.pid);
  if (!mappings) return out;
  for (const Mapping& mapping : *mappings) {
    if (out.size() < kMaxCandidates && mapping.path.starts_with(kMemfdLink))
      out.push_back(proc + "/map_files/" + mapping.map_files_name());
  }
  return out;
}

}  // namespace

Result<ShimChannel> ShimChannel::open_path(const std::string& path, ProcessId process) {
  int pauses = kPatience;
  return open_candidate(path, process, pauses);
}

Result<ShimChannel> ShimChannel::open_candidate(const std::string& path, ProcessId process,
                                                int& pauses) {
  const UniqueFd pinned(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!pinned.valid()) {
    const int err = errno;
    return fail_errno(err == EACCES || err == EPERM ? Code::kPermission : Code::kNoTarget, err,
                      path);
  }
  auto fd = verify(pinned, path, process, pauses);
  if (!fd) return tl::unexpected<Error>(fd.error());
  ShimChannel channel;
  channel.process_ = process;
  channel.fd_ = std::move(*fd);
  return channel;
}

Result<ShimChannel> ShimChannel::open(ProcessId process, std::optional<int> fd_hint) {
  auto now = process_id(process.pid);
  if (!now) return tl::unexpected<Error>(now.error());
  if (*now != process)
    return fail(Code::kNotFound, "no such process: " + std::to_string(process.pid));
  Error last = {Code::kNoTarget, 0,
                "process " + std::to_string(process.pid) + " has no memfd of the shim"};
  int pauses = kPatience;
  for (const std::string& path : candidates(process, fd_hint)) {
    auto channel = open_candidate(path, process, pauses);
    if (channel) return channel;
    last = channel.error();
  }
  return tl::unexpected<Error>(last);
}

Result<ShimStatus> ShimChannel::read_status(Wait wait) const {
  gpuprof_status_page page = {};
  int pauses = wait == Wait::kBriefly ? kPatience : 0;
  if (auto ok = read_status_page(fd_.get(), page, pauses); !ok)
    return tl::unexpected<Error>(ok.error());
  return decode_status(page);
}

Result<PcClaims> ShimChannel::read_claims() const {
  gpuprof_status_page page = {};
  int pauses = 0;
  if (auto ok = read_status_page(fd_.get(), page, pauses); !ok)
    return tl::unexpected<Error>(ok.error());
  return decode_claims(page);
}

Result<UniqueFd> ShimChannel::open_for_reading() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(Code::kUnavailable, errno, "re-opening the shim's memfd");
  return fd;
}

Result<std::optional<ShimChannel::Controller>> ShimChannel::controller() const {
  struct flock lock = control_lock();
  if (::fcntl(fd_.get(), F_OFD_GETLK, &lock) != 0)
    return fail_errno(Code::kIo, errno, "asking for the control page's lock");
  if (lock.l_type == F_UNLCK) return std::optional<Controller>();
  gpuprof_control_page page = {};
  if (auto ok = read_exact(fd_.get(), &page, sizeof page, GPUPROF_CONTROL_OFFSET); !ok)
    return tl::unexpected<Error>(ok.error());
  return std::optional(Controller{text_of(page.controller_name), page.controller_pid});
}

Status ShimChannel::acquire(const std::string& controller_name) {
  if (acquired_) return {};
  const struct flock lock = control_lock();
  const bool locked = ::fcntl(fd_.get(), F_OFD_SETLK, &lock) == 0;
  const int err = errno;
  gpuprof_control_page page = {};
  if (auto ok = read_exact(fd_.get(), &page, sizeof page, GPUPROF_CONTROL_OFFSET); !ok) return ok;
  if (!locked) {
    if (err != EAGAIN && err != EACCES)
      return fail_errno(Code::kIo, err, "locking the control page");
    std::string holder = text_of(page.controller_name);
    if (holder.empty()) holder = "an unnamed controller";
    return fail(Code::kUnavailable, "process " + std::to_string(process_.pid) +
                                        " is already being profiled by " + holder + " (pid " +
                                        std::to_string(page.controller_pid) +
                                        "): stop that one first");
  }
  acquired_ = true;
  controller_name_ = controller_name;
  seq_ = (page.seq + 1) & ~1u;  // even, also after a daemon that died while writing
  lease_serial_ = page.lease_serial;
  return {};
}

Status ShimChannel::write_control() {
  if (!acquired_) return fail(Code::kInternal, "the control page is not ours");
  gpuprof_control_page page = {};
  page.magic = GPUPROF_CONTROL_MAGIC;
  page.abi_version = GPUPROF_ABI_VERSION;
  page.seq = seq_ + 1;
  page.tier = request_.tier;
  page.pc_period = request_.pc_period;
  page.pc_duty = request_.pc_duty;
  page.stack_rate = request_.stack_rate;
  page.process_rate = request_.process_rate;
  page.process_bytes = request_.process_bytes;
  page.lease_serial = ++lease_serial_;
  page.lease_ms = std::clamp(request_.lease_ms, 1u, GPUPROF_LEASE_MS_MAX);
  page.controller_pid = static_cast<uint32_t>(::getpid());
  page.sampler_seed = request_.sampler_seed;
  page.pc_grant = request_.pc_grant.mode;
  page.pc_grant_serial = request_.pc_grant.serial;
  const size_t gpus = std::min<size_t>(request_.pc_grant.gpus.size(), GPUPROF_PC_GPUS_MAX);
  page.pc_grant_count = static_cast<uint32_t>(gpus);
  for (size_t i = 0; i < gpus; ++i)
    std::memcpy(page.pc_gpus[i].bytes, request_.pc_grant.gpus[i].data(), sizeof page.pc_gpus[i]);
  const std::string name = printable(controller_name_, sizeof page.controller_name - 1);
  std::memcpy(page.controller_name, name.data(), name.size());

  constexpr off_t kSeq = GPUPROF_CONTROL_OFFSET + offsetof(gpuprof_control_page, seq);
  const uint32_t odd = seq_ + 1;
  if (auto ok = write_exact(fd_.get(), &odd, sizeof odd, kSeq); !ok) return ok;
  if (auto ok = write_exact(fd_.get(), &page, sizeof page, GPUPROF_CONTROL_OFFSET); !ok) return ok;
  seq_ += 2;
  return write_exact(fd_.get(), &seq_, sizeof seq_, kSeq);
}

Status ShimChannel::request(const ControlRequest& request) {
  request_ = request;
  return write_control();
}

Status ShimChannel::renew() { return write_control(); }

Status ShimChannel::grant(const PcGrant& grant) {
  request_.pc_grant = grant;
  return write_control();
}

Status ShimChannel::set_tier(gpuprof_tier tier) {
  request_.tier = tier;
  return write_control();
}

Status ShimChannel::release() { return set_tier(GPUPROF_TIER_OFF); }

}  // namespace gpuprof::target
