// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/library_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/base/root_file.h"
#include "daemon/doctor/elf_library.h"
#include "daemon/target/text.h"

namespace gpuprof::doctor {
namespace {

using target::printable;

constexpr const char* kEntry = "InitializeInjection";
constexpr const char* kLibc = "libc.so.6";
// Where a loader looks that has not been told of other places.
constexpr const char* kFolders[] = {"/lib64",
                                    "/usr/lib64",
                                    "/lib/x86_64-linux-gnu",
                                    "/usr/lib/x86_64-linux-gnu",
                                    "/lib/aarch64-linux-gnu",
                                    "/usr/lib/aarch64-linux-gnu",
                                    "/lib",
                                    "/usr/lib"};

LibraryCheck found(LibraryFault fault, std::string text) { return {fault, std::move(text)}; }

std::string user_text(const FileUser& user) {
  return "its user (uid " + std::to_string(user.uid) + ")";
}

uint64_t nanoseconds(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

bool exists_here(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool is_same(const std::string& left, const std::string& right) {
  struct stat one = {}, other = {};
  return ::stat(left.c_str(), &one) == 0 && ::stat(right.c_str(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

LibraryCheck missing(const LoadingProcess& process, const std::string& path, const RootWalk& end) {
  const std::string where = printable(end.where);
  std::string what;
  if (end.stop == RootWalk::Stop::kDangling) {
    what = where + " is a link to " + printable(end.target) + ", which does not exist";
  } else if (end.where == path) {
    what = "there is no such file";
  } else {
    what = "there is no " + where;
  }
  if (process.is_our_root)
    return found(LibraryFault::kMissing,
                 what + ": install the shim there, or correct the variable, then restart it");
  return found(LibraryFault::kMissing,
               what + " in its root file system" +
                   (exists_here(path) ? " (there is one outside of it)" : "") +
                   ": mount the shim there (docker run -v, a volume), then restart it");
}

std::optional<LibraryCheck> check_walk(const LoadingProcess& process, const std::string& path,
                                       const RootWalk& end) {
  using Stop = RootWalk::Stop;
  const std::string where = printable(end.where);
  switch (end.stop) {
    case Stop::kNowhere:
      return {};
    case Stop::kMissing:
    case Stop::kDangling:
      return missing(process, path, end);
    case Stop::kNoSearch:
      return found(LibraryFault::kNotSearchable,
                   user_text(process.user) + " may not enter the directory " + where +
                       ": chmod o+x " + where + ", or put the shim elsewhere, then restart it");
    case Stop::kNotFolder:
      return found(LibraryFault::kMissing,
                   where + " is no directory: correct the variable, then restart it");
    case Stop::kLoop:
      return found(LibraryFault::kMissing,
                   where + " is a link in a circle: mend it, then restart it");
    case Stop::kUnseen:
      break;
  }
  return found(LibraryFault::kUnseen, "it cannot be looked at (" + where + ": " +
                                          std::strerror(end.error) + "): run doctor as root");
}

// What needs the file's inode alone.
std::optional<LibraryCheck> check_file(const LoadingProcess& process, const std::string& path,
                                       const UniqueFd& file) {
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0)
    return found(LibraryFault::kUnseen,
                 std::string("it cannot be looked at: ") + std::strerror(errno));
  if (S_ISDIR(info.st_mode))
    return found(LibraryFault::kNoFile,
                 "that is a directory (docker run -v makes one where the source is missing): mount "
                 "the shim's file there, then restart it");
  if (!S_ISREG(info.st_mode))
    return found(LibraryFault::kNoFile,
                 "that is no regular file: correct the variable, then restart it");
  if (!may_read(file, process.user))
    return found(LibraryFault::kNotReadable, user_text(process.user) +
                                                 " may not read it: chmod o+r " + printable(path) +
                                                 ", then restart it");
  struct statvfs mount = {};
  if (::fstatvfs(file.get(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0)
    return found(LibraryFault::kNoexec,
                 "it lies on a file system that is mounted noexec, so that it cannot be mapped: "
                 "mount it without, or put the shim elsewhere, then restart it");
  return {};
}

// The library of that soname that the process has mapped, else one where loaders look.
std::optional<ElfLibrary> provider(const LoadingProcess& process, std::string_view soname,
                                   std::string& path) {
  const std::string_view stem = soname.substr(0, soname.find('.'));
  std::vector<std::string> places;
  for (const target::Mapping& mapping : process.mappings) {
    const std::string_view name = mapping.file_name();
    if (name.starts_with(stem) && name.size() > stem.size() &&
        (name[stem.size()] == '.' || name[stem.size()] == '-') &&
        std::ranges::find(places, mapping.path) == places.end())
      places.push_back(mapping.path);
  }
  for (const char* folder : kFolders) places.push_back(folder + ("/" + std::string(soname)));
  for (const std::string& place : places) {
    auto library = ElfLibrary::read(open_in_root(process.root, place, O_PATH));
    if (!library || library->facts().soname != soname ||
        (!process.machine.empty() && library->facts().machine != process.machine))
      continue;
    path = printable(place);
    return std::move(*library);
  }
  return {};
}

bool is_musl(const LoadingProcess& process) {
  return std::ranges::any_of(process.mappings, [](const target::Mapping& mapping) {
    return mapping.file_name().starts_with("ld-musl-");
  });
}

// The check that elfgate makes, against the libraries that are there.
std::optional<LibraryCheck> check_versions(const LoadingProcess& process,
                                           const ElfLibrary& library) {
  std::string path;
  const auto libc = provider(process, kLibc, path);
  if (!libc && is_musl(process))
    return found(LibraryFault::kMusl,
                 "the process has musl for its C library, and CUDA and the shim need glibc: run it "
                 "in an image with glibc");
  std::set<std::string_view> seen;
  for (const elfgate::VersionNeed& need : library.facts().version_needs) {
    if (need.is_weak || !seen.insert(need.file).second) continue;
    const auto file = provider(process, need.file, path);
    if (!file) continue;
    std::string_view lacking;
    for (const elfgate::VersionNeed& other : library.facts().version_needs) {
      if (other.file != need.file || other.is_weak || file->defines(other.name)) continue;
      if (lacking.empty() || compare_versions(lacking, other.name) < 0) lacking = other.name;
    }
    if (lacking.empty()) continue;
    const std::string has = file->newest_version("GLIBC_");
    return found(LibraryFault::kOldLibc,
                 "it needs " + printable(lacking) + " of " + printable(need.file) + ", and " +
                     path +
                     (has.empty() ? " does not have it" : " has no more than " + printable(has)) +
                     ": use the portable shim (glibc 2.17 and newer; scripts/build-portable), then "
                     "restart it");
  }
  return {};
}

std::optional<LibraryCheck> check_needed(const LoadingProcess& process, const ElfLibrary& library) {
  if (library.facts().runpath || library.facts().rpath) return {};
  for (const std::string_view name : library.facts().needed) {
    std::string path;
    const bool known = name == kLibc || name.starts_with("ld-linux") || name.find('/') != name.npos;
    if (known || provider(process, name, path)) continue;
    return found(LibraryFault::kNoDependency,
                 "it needs " + printable(name) +
                     ", which was not found where loaders look: use the portable shim "
                     "(scripts/build-portable), which needs libc alone, then restart it");
  }
  return {};
}

std::string started_text(uint64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  tm local = {};
  char text[32] = "";
  if (::localtime_r(&seconds, &local) != nullptr)
    ::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

}  // namespace

const char* library_fault_name(LibraryFault fault) {
  constexpr const char* kNames[] = {"none",           "no-path",       "missing",  "no-file",
                                    "not-searchable", "not-readable",  "noexec",   "no-elf",
                                    "other-machine",  "musl",          "old-libc", "no-dependency",
                                    "no-export",      "changed-since", "unseen"};
  static_assert(std::size(kNames) == static_cast<size_t>(LibraryFault::kUnseen) + 1);
  return kNames[static_cast<size_t>(fault)];
}

Result<LoadingProcess> loading_process(uint32_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  auto mappings = target::file_mappings(pid);
  if (!mappings) return tl::unexpected<Error>(mappings.error());
  LoadingProcess out;
  out.mappings = std::move(*mappings);
  out.root.reset(::open((proc + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!out.root.valid()) return fail_errno(Code::kPermission, errno, proc + "/root");
  // Of two mount namespaces one may have other mounts on the same root.
  out.is_our_root = is_same(proc + "/root", "/") && is_same(proc + "/ns/mnt", "/proc/self/ns/mnt");
  if (auto user = file_user(pid)) out.user = std::move(*user);
  out.machine = elf_machine(UniqueFd(::open((proc + "/exe").c_str(), O_PATH | O_CLOEXEC)));
  timespec real = {}, boot = {};
  if (const auto stat = target::process_stat(pid); stat &&
                                                   ::clock_gettime(CLOCK_REALTIME, &real) == 0 &&
                                                   ::clock_gettime(CLOCK_BOOTTIME, &boot) == 0)
    out.started_unix_ns =
        nanoseconds(real) - nanoseconds(boot) + stat->start_ticks * kNsPerStartTick;
  return out;
}

LibraryCheck check_library(const LoadingProcess& process, const std::string& path) {
  if (!path.starts_with('/'))
    return found(LibraryFault::kNoPath,
                 path.empty() ? "it is empty: set it to the shim, then restart it"
                              : "that is no absolute path: give one, then restart it");
  const RootWalk end = walk(process.root, path, process.user);
  if (auto fault = check_walk(process, path, end)) return *fault;
  if (auto fault = check_file(process, path, end.file)) return *fault;
  auto library = ElfLibrary::read(end.file);
  const std::string machine = elf_machine(end.file);
  if (!machine.empty() && !process.machine.empty() && machine != process.machine)
    return found(LibraryFault::kOtherMachine, "it is for " + machine +
                                                  ", and the process runs on " + process.machine +
                                                  ": name the shim for that, then restart it");
  if (!library) {
    const bool unseen = library.error().code == Code::kPermission;
    return found(unseen ? LibraryFault::kUnseen : LibraryFault::kNoElf,
                 "it " + library.error().message +
                     (unseen ? ": run doctor as root" : ": copy the shim anew, then restart it"));
  }
  if (auto fault = check_versions(process, *library)) return *fault;
  if (!library->exports(kEntry))
    return found(LibraryFault::kNoExport, "it has no function " + std::string(kEntry) +
                                              ", so it is no injection library: name the shim (" +
                                              "libgpu-profiled-cupti.so), then restart it");
  struct stat info = {};
  if (process.started_unix_ns != 0 && ::fstat(end.file.get(), &info) == 0 &&
      nanoseconds(info.st_ctim) > process.started_unix_ns)
    return found(LibraryFault::kChangedSince,
                 "it can be loaded now, but was put there or changed after the process started (" +
                     started_text(process.started_unix_ns) + "): restart it");
  if (auto fault = check_needed(process, *library)) return *fault;
  return {};
}

}  // namespace gpuprof::doctor
