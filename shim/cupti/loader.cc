// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/loader.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "shim/cupti/file_version.h"
#include "shim/cupti/oldest_version.h"

namespace gpuprof::cupti {
namespace {

constexpr char kTooOld[] = "older than CUDA " GPUPROF_OLDEST_CUPTI_CUDA;

#if defined(__aarch64__)
constexpr const char* kMachine = "aarch64";
constexpr const char* kTargets[] = {"sbsa-linux", "aarch64-linux"};
#else
constexpr const char* kMachine = "x86_64";
constexpr const char* kTargets[] = {"x86_64-linux"};
#endif

/// One search: what it may load, and what it has tried.
class Search {
 public:
  Search(uint32_t driver_version, CuptiLibrary* library, Attempts* attempts) noexcept
      : driver_major_(driver_version / 1000), library_(library), attempts_(attempts) {
    snprintf(newer_, sizeof newer_, "newer than the driver's CUDA %u.%u", driver_major_,
             driver_version % 1000 / 10);
    snprintf(not_tried_, sizeof not_tried_, "not tried, %s", newer_);
  }

  /// Loads one file or soname.
  bool open(const char* name) noexcept { return open_with(name, 0); }

  /// Takes the copy that the process has mapped; "" is the program itself.
  bool open_mapped(const char* name) noexcept {
    library_->was_mapped = open_with(name, RTLD_NOLOAD);
    return library_->was_mapped;
  }

  bool refuse(const char* name, const char* why) noexcept {
    attempts_->add(name, why);
    return false;
  }

  /// Loads the newest suitable libcupti of a directory that can be loaded.
  bool open_newest_in(const char* directory) noexcept {
    NamedVersion tried;
    for (;;) {
      NamedVersion next;
      const Pick pick = pick_after(tried, directory, &next);
      if (pick == Pick::kUnreadable) return refuse(directory, strerror(errno));
      const bool any = !tried.empty();
      if (pick == Pick::kNone) return any ? false : refuse(directory, "no libcupti there");
      char path[1024];
      if (!join_path(directory, next.name, path, sizeof path)) return false;
      if (pick == Pick::kNewer) return any ? false : refuse(path, newer_);
      if (pick == Pick::kOlder) return any ? false : refuse(path, kTooOld);
      if (open(path)) return true;
      tried = next;
    }
  }

  /// The same for a directory given by a format; false where there is none such.
  bool open_newest_in_format(const char* format, const char* a, const char* b) noexcept
      __attribute__((format(printf, 2, 0))) {
    char directory[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (snprintf(directory, sizeof directory, format, a, b) >= static_cast<int>(sizeof directory)) {
      return false;
    }
#pragma GCC diagnostic pop
    return is_directory(directory) && open_newest_in(directory);
  }

  bool open_soname() noexcept {
    for (const char* soname : kCuptiSonames) {
      if (driver_major_ != 0 && version_of_file(soname).major > driver_major_) {
        attempts_->add(soname, not_tried_);
      } else if (open(soname)) {
        return true;
      }
    }
    return false;
  }

  /// A toolkit: its library folders, or that there is none.
  bool open_toolkit(const char* root) noexcept {
    if (!is_directory(root)) return refuse(root, "not found");
    for (const char* below : {"%s/lib64%s", "%s/extras/CUPTI/lib64%s", "%s/lib%s"}) {
      if (open_newest_in_format(below, root, "")) return true;
    }
    for (const char* target : kTargets) {
      if (open_newest_in_format("%s/targets/%s/lib", root, target)) return true;
    }
    return false;
  }

  /// The toolkits DIRECTORY/cuda-X.Y whose CUDA the driver knows, the newest first.
  bool open_toolkits_in(const char* directory) noexcept {
    for (NamedVersion tried;;) {
      DIR* listing = opendir(directory);
      if (listing == nullptr) return false;
      NamedVersion next;
      while (const dirent* entry = readdir(listing)) {
        const NamedVersion found =
            named_version(entry->d_name, version_after("cuda-", entry->d_name));
        if (found.empty() || is_newer(found.version.major)) continue;
        if (is_next(found, tried, next)) next = found;
      }
      closedir(listing);
      char root[512];
      if (next.empty() || !join_path(directory, next.name, root, sizeof root)) return false;
      if (open_toolkit(root)) return true;
      tried = next;
    }
  }

  [[nodiscard]] bool is_newer(uint32_t major) const noexcept {
    return driver_major_ != 0 && major > driver_major_;
  }

 private:
  enum class Pick : uint8_t { kFound, kNone, kNewer, kOlder, kUnreadable };

  static bool is_directory(const char* path) noexcept {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
  }

  /// Of a file for another machine glibc says that it does not exist.
  static bool is_other_machines(const char* name, const char* error) noexcept {
    const size_t length = strlen(name);
    struct stat status;
    return name[0] == '/' && strncmp(error, name, length) == 0 &&
           strcmp(error + length, ": cannot open shared object file: No such file or directory") ==
               0 &&
           stat(name, &status) == 0;
  }

  bool open_with(const char* name, int flags) noexcept {
    dlerror();
    void* handle = dlopen(name[0] == '\0' ? nullptr : name, RTLD_NOW | RTLD_LOCAL | flags);
    if (handle == nullptr) {
      const char* error = dlerror();  // cleared by reading it
      if (error != nullptr && is_other_machines(name, error)) {
        error = "there, but not for this machine";
      }
      attempts_->add(name, error != nullptr ? error
                           : flags != 0     ? "mapped, and not to be opened"
                                            : "cannot be loaded");
      return false;
    }
    library_->handle = handle;
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0') name = map->l_name;
    copy_path(name[0] == '\0' ? "/proc/self/exe" : name, library_->path, sizeof library_->path);
    return true;
  }

  /// Whether `found` comes after what was tried and before `next`, the best so far.
  static bool is_next(const NamedVersion& found, const NamedVersion& tried,
                      const NamedVersion& next) noexcept {
    return (tried.empty() || tried.goes_before(found)) && (next.empty() || found.goes_before(next));
  }

  [[nodiscard]] Pick kind_of(const FileVersion& version) const noexcept {
    if (is_newer(version.major)) return Pick::kNewer;
    const bool is_older =
        version.major == GPUPROF_OLDEST_CUPTI_MAJOR && version.minor < GPUPROF_OLDEST_CUPTI_MINOR;
    return is_older ? Pick::kOlder : Pick::kFound;
  }

  /// The suitable libcupti of `directory` that is to be tried after `tried`; where there is none,
  /// one that is too new or too old.
  Pick pick_after(const NamedVersion& tried, const char* directory,
                  NamedVersion* next) const noexcept {
    DIR* listing = opendir(directory);
    if (listing == nullptr) return Pick::kUnreadable;
    NamedVersion unsuitable;
    while (const dirent* entry = readdir(listing)) {
      const NamedVersion found = named_version(entry->d_name, version_of_file(entry->d_name));
      if (found.empty()) continue;
      if (kind_of(found.version) != Pick::kFound) {
        if (is_next(found, {}, unsuitable)) unsuitable = found;
      } else if (is_next(found, tried, *next)) {
        *next = found;
      }
    }
    closedir(listing);
    if (!next->empty()) return Pick::kFound;
    *next = unsuitable;
    return unsuitable.empty() ? Pick::kNone : kind_of(unsuitable.version);
  }

  uint32_t driver_major_;
  CuptiLibrary* library_;
  Attempts* attempts_;
  char newer_[48];
  char not_tried_[64];
};

bool open_override(Search* search, const char* path) noexcept {
  struct stat status;
  if (stat(path, &status) == 0) {
    if (S_ISDIR(status.st_mode)) return search->open_newest_in(path);
    if (!S_ISREG(status.st_mode))
      return search->refuse(path, "neither a file nor a directory");  // a pipe would wait for ever
  }
  return search->open(path);
}

/// Directories that mapped objects lead to. One that does not exist is not an attempt worth a
/// user's time, so only those that exist are named in the line.
bool open_neighbour(Search* search, const MappedObjects& objects) noexcept {
  constexpr const char* kRelative[] = {
      "%s%s",                        // toolkit lib64, conda lib, pip nvidia/cu13/lib
      "%s/../../cuda_cupti/lib%s",   // pip, from nvidia/cuda_runtime/lib
      "%s/../../nvidia/cu13/lib%s",  // pip, from torch/lib
      "%s/../../nvidia/cuda_cupti/lib%s",
      "%s/../backends/nvidia/lib/cupti%s",  // Triton, from triton/_C
      "%s/../extras/CUPTI/lib64%s",         // toolkit
      "%s/../../../extras/CUPTI/lib64%s",   // toolkit, from targets/<arch>/lib
  };
  constexpr const char* kWheels[] = {
      "%s/nvidia/cu13/lib%s",
      "%s/nvidia/cuda_cupti/lib%s",
      "%s/triton/backends/nvidia/lib/cupti%s",
  };
  for (uint32_t i = 0; i < objects.run_path_count(); ++i) {
    if (search->open_newest_in(objects.run_path(i))) return true;
  }
  for (uint32_t i = 0; i < objects.count(); ++i) {
    if (starts_with(file_name(objects.path(i)), "libcuda.so")) continue;
    char directory[MappedObjects::kPathBytes];
    directory_of(objects.path(i), directory, sizeof directory);
    for (const char* relative : kRelative) {
      if (search->open_newest_in_format(relative, directory, "")) return true;
    }
  }
  for (uint32_t i = 0; i < objects.site_count(); ++i) {
    for (const char* wheel : kWheels) {
      if (search->open_newest_in_format(wheel, objects.site(i), "")) return true;
    }
  }
  return false;
}

bool open_toolkit(Search* search) noexcept {
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"}) {
    const char* root = getenv(variable);
    if (root != nullptr && root[0] == '/' && search->open_toolkit(root)) return true;
  }
  // The default one, as its administrator has set it, before newer ones beside it.
  return search->open_toolkit("/usr/local/cuda") || search->open_toolkits_in("/usr/local") ||
         search->open_toolkit("/opt/cuda") ||
         search->open_newest_in_format("/usr/lib/%s-linux-gnu%s", kMachine, "") ||
         search->open_newest_in_format("/usr/lib64%s%s", "", "") ||
         search->open_newest_in_format("/run/opengl-driver/lib%s%s", "", "") ||
         search->open_newest_in_format("/usr/lib/%s-linux-gnu/%s", kMachine, "tegra") ||
         search->open_newest_in_format("/usr/lib/%s-linux-gnu/%s", kMachine, "nvidia");
}

}  // namespace

uint32_t major_of_library(void* library) noexcept {
  // The names of its version definitions are its sonames.
  if (dlvsym(library, "cuptiGetVersion", "libcupti.so.13") != nullptr) return 13;
  if (dlvsym(library, "cuptiGetVersion", "libcupti.so.12") != nullptr) return 12;
  const char* oldest = "libcupti.so." GPUPROF_OLDEST_CUPTI_CUDA;
  return dlvsym(library, "cuptiGetVersion", oldest) != nullptr ? GPUPROF_OLDEST_CUPTI_MAJOR : 0;
}

LoadResult load_cupti(const MappedObjects& objects, const char* override_path,
                      uint32_t driver_version, CuptiLibrary* library, Attempts* attempts) noexcept {
  Search search(driver_version, library, attempts);
  if (const char* mapped = objects.cupti(); mapped != nullptr) {
    if (!search.open_mapped(mapped)) return LoadResult::kNotFound;
    const uint32_t by_symbols = major_of_library(library->handle);
    const uint32_t major =
        by_symbols != 0 ? by_symbols : version_of_file(file_name(library->path)).major;
    return search.is_newer(major) ? LoadResult::kNewerThanDriver : LoadResult::kLoaded;
  }
  if (override_path[0] != '\0') {
    return open_override(&search, override_path) ? LoadResult::kLoaded : LoadResult::kNotFound;
  }
  const bool found =
      open_neighbour(&search, objects) || search.open_soname() || open_toolkit(&search);
  return found ? LoadResult::kLoaded : LoadResult::kNotFound;
}

}  // namespace gpuprof::cupti
