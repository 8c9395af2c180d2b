// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/shim_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "daemon/base/root_file.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"
#include "proto/memfd_layout.h"

namespace gpuprof::target {
namespace {

Result<ShimFile> verified(UniqueFd fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return fail_errno(Code::kIo, errno, path);
  if (!S_ISREG(info.st_mode)) return fail(Code::kCorrupt, path + ": not a regular file");
  return ShimFile{std::move(fd), info.st_dev, info.st_ino, path};
}

// The mapped file itself, whatever its path names now. Needs CAP_CHECKPOINT_RESTORE or
// CAP_SYS_ADMIN. O_PATH first: opening a device or a FIFO may have effects.
Result<ShimFile> open_mapped(uint32_t pid, const Mapping& mapping) {
  const std::string shown = printable(mapping.path);
  const std::string link =
      "/proc/" + std::to_string(pid) + "/map_files/" + mapping.map_files_name();
  const UniqueFd pinned(::open(link.c_str(), O_PATH | O_CLOEXEC));
  if (!pinned.valid()) return fail_errno(Code::kPermission, errno, link);
  struct stat info = {};
  if (::fstat(pinned.get(), &info) != 0) return fail_errno(Code::kIo, errno, link);
  if (!S_ISREG(info.st_mode)) return fail(Code::kCorrupt, shown + ": not a regular file");
  const std::string again = "/proc/self/fd/" + std::to_string(pinned.get());
  UniqueFd fd(::open(again.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail_errno(Code::kIo, errno, shown);
  return verified(std::move(fd), shown);
}

// By path in the target's root, and only if it is still the file that is mapped. The device number
// in maps differs from st_dev on btrfs and on some overlays, so the inode decides.
Result<ShimFile> open_in_root(uint32_t pid, const Mapping& mapping) {
  const std::string shown = printable(mapping.path);
  const std::string root = "/proc/" + std::to_string(pid) + "/root";
  const UniqueFd root_fd(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root_fd.valid()) return fail_errno(Code::kPermission, errno, root);
  UniqueFd fd = gpuprof::open_in_root(root_fd, mapping.path, O_RDONLY | O_NONBLOCK);
  if (!fd.valid()) return fail_errno(Code::kIo, errno, shown);
  auto file = verified(std::move(fd), shown);
  if (file && file->inode != mapping.inode)
    return fail(Code::kNotFound, shown + ": the file was replaced since process " +
                                     std::to_string(pid) + " loaded it; restart the process");
  return file;
}

Result<ShimFile> open_mapping(uint32_t pid, const Mapping& mapping) {
  auto file = open_mapped(pid, mapping);
  return file ? std::move(file) : open_in_root(pid, mapping);
}

// Every shim that runs has one; nothing else is worth reading a process's libraries for.
bool maps_memfd(const std::vector<Mapping>& mappings) {
  return std::ranges::any_of(mappings, [](const Mapping& mapping) {
    return mapping.file_name() == "memfd:" GPUPROF_MEMFD_NAME;
  });
}

// Each executable file once, those named like the injected library first: a process may map
// hundreds. The variable may have been set after the start, so the others follow.
std::vector<const Mapping*> candidates(uint32_t pid, const std::vector<Mapping>& mappings) {
  std::vector<const Mapping*> out;
  std::set<std::pair<dev_t, uint64_t>> seen;
  for (const Mapping& mapping : mappings) {
    if (mapping.executable && seen.emplace(mapping.device, mapping.inode).second)
      out.push_back(&mapping);
  }
  const auto injection = environment_value(pid, "CUDA_INJECTION64_PATH");
  if (injection && *injection) {
    const std::string name = (*injection)->substr((*injection)->rfind('/') + 1);
    // Not std::ranges': what that returns does not compile with clang 14 (scripts/fuzz).
    std::stable_partition(out.begin(), out.end(),
                          [&](const Mapping* mapping) { return mapping->file_name() == name; });
  }
  return out;
}

}  // namespace

Result<ShimFile> ShimFile::find(uint32_t pid, const std::function<bool(int)>& has_our_probes) {
  auto mappings = file_mappings(pid);
  if (!mappings) return tl::unexpected<Error>(mappings.error());
  for (const Mapping& mapping : *mappings) {
    if (mapping.executable && mapping.file_name() == kShimFileName)
      return open_mapping(pid, mapping);
  }
  if (has_our_probes && maps_memfd(*mappings)) {
    for (const Mapping* mapping : candidates(pid, *mappings)) {
      auto file = open_mapping(pid, *mapping);
      if (file && has_our_probes(file->fd.get())) return file;
    }
  }
  return fail(Code::kNoTarget, "process " + std::to_string(pid) + " has no shim mapped");
}

Result<ShimFile> ShimFile::open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail_errno(Code::kNotFound, errno, path);
  return verified(std::move(fd), path);
}

}  // namespace gpuprof::target
