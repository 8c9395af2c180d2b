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

namespace gpuprof::cupti {
namespace {

constexpr const char* kSonames[] = {
    "libcupti.so.13",
    "libcupti.so.12",
    "libcupti.so.11.8",
};

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
  Search(uint32_t driver_major, CuptiLibrary* library, Attempts* attempts) noexcept
      : driver_major_(driver_major), library_(library), attempts_(attempts) {}

  /// Loads one file or soname.
  bool open(const char* name, int extra_flags = 0) noexcept {
    dlerror();
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | extra_flags);
    if (handle == nullptr) {
      const char* error = dlerror();  // cleared by reading it
      if (extra_flags == 0) attempts_->add(name, error == nullptr ? "cannot be loaded" : error);
      return false;
    }
    library_->handle = handle;
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0') name = map->l_name;
    copy_path(name, library_->path, sizeof library_->path);
    return true;
  }

  bool refuse(const char* name) noexcept {
    attempts_->add(name, "neither a file nor a directory");
    return false;
  }

  /// Loads the newest suitable libcupti of a directory.
  bool open_newest_in(const char* directory) noexcept {
    DIR* listing = opendir(directory);
    if (listing == nullptr) {
      attempts_->add(directory, strerror(errno));
      return false;
    }
    char best[256] = {};
    uint32_t best_major = 0;
    bool newer = false;
    while (const dirent* entry = readdir(listing)) {
      const uint32_t major = major_of_file(entry->d_name);
      if (major == 0 || strlen(entry->d_name) >= sizeof best) continue;
      if (driver_major_ != 0 && major > driver_major_) {
        newer = true;
      } else if (major > best_major) {
        best_major = major;
        strcpy(best, entry->d_name);
      }
    }
    closedir(listing);
    if (best_major == 0) {
      attempts_->add(directory, newer ? "only a CUPTI newer than the driver" : "no libcupti there");
      return false;
    }
    char path[1024];
    return join_path(directory, best, path, sizeof path) && open(path);
  }

  /// The same for a directory given by a format.
  bool open_newest_in_format(const char* format, const char* a, const char* b) noexcept
      __attribute__((format(printf, 2, 0))) {
    char directory[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (snprintf(directory, sizeof directory, format, a, b) >= static_cast<int>(sizeof directory)) {
      return false;
    }
#pragma GCC diagnostic pop
    if (access_quietly(directory)) return open_newest_in(directory);
    return false;
  }

  bool open_soname() noexcept {
    for (const char* soname : kSonames) {
      if (driver_major_ != 0 && major_of_file(soname) > driver_major_) continue;
      if (open(soname)) return true;
    }
    return false;
  }

 private:
  static bool access_quietly(const char* directory) noexcept {
    struct stat status;
    return stat(directory, &status) == 0 && S_ISDIR(status.st_mode);
  }

  uint32_t driver_major_;
  CuptiLibrary* library_;
  Attempts* attempts_;
};

bool open_mapped(Search* search, const MappedObjects& objects) noexcept {
  const char* mapped = objects.find("libcupti");
  return mapped != nullptr && search->open(mapped, RTLD_NOLOAD);
}

bool open_override(Search* search, const char* path) noexcept {
  struct stat status;
  if (stat(path, &status) == 0) {
    if (S_ISDIR(status.st_mode)) return search->open_newest_in(path);
    if (!S_ISREG(status.st_mode))
      return search->refuse(path);  // loading a pipe would wait for ever
  }
  return search->open(path);
}

/// Directories relative to that of a mapped object. A directory that does not exist is not an
/// attempt worth a user's time, so only those that exist are named in the line.
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
  for (uint32_t i = 0; i < objects.count(); ++i) {
    const char* name = file_name(objects.path(i));
    if (starts_with(name, "libcuda.so") || starts_with(name, "libcupti")) continue;
    char directory[MappedObjects::kPathBytes];
    directory_of(objects.path(i), directory, sizeof directory);
    for (const char* relative : kRelative) {
      if (search->open_newest_in_format(relative, directory, "")) return true;
    }
  }
  return false;
}

bool open_toolkit(Search* search) noexcept {
  constexpr const char* kVariables[] = {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"};
  constexpr const char* kBelow[] = {"%s/lib64%s", "%s/extras/CUPTI/lib64%s", "%s/lib%s"};
  for (const char* variable : kVariables) {
    const char* root = getenv(variable);
    if (root == nullptr || root[0] != '/') continue;
    for (const char* below : kBelow) {
      if (search->open_newest_in_format(below, root, "")) return true;
    }
  }
  constexpr const char* kRoots[] = {"/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12",
                                    "/usr/local/cuda-11", "/opt/cuda"};
  for (const char* root : kRoots) {
    for (const char* below : kBelow) {
      if (search->open_newest_in_format(below, root, "")) return true;
    }
    for (const char* target : kTargets) {
      if (search->open_newest_in_format("%s/targets/%s/lib", root, target)) return true;
    }
  }
  return search->open_newest_in_format("/usr/lib/%s-linux-gnu%s", kMachine, "") ||
         search->open_newest_in_format("/usr/lib64%s%s", "", "") ||
         search->open_newest_in_format("/run/opengl-driver/lib%s%s", "", "") ||
         search->open_newest_in_format("/usr/lib/%s-linux-gnu/%s", kMachine, "tegra") ||
         search->open_newest_in_format("/usr/lib/%s-linux-gnu/%s", kMachine, "nvidia");
}

}  // namespace

/// Whether the name is in the list: a directory can be one by CUDA_HOME and one by itself.
bool Attempts::named(const char* name) const noexcept {
  const size_t length = strlen(name);
  for (const char* at = text_; (at = strstr(at, name)) != nullptr; at += length) {
    const bool begins = at == text_ || at[-1] == ' ';
    if (begins && (at[length] == ',' || at[length] == ':')) return true;
  }
  return false;
}

void Attempts::add(const char* name, const char* error) noexcept {
  if (used_ == sizeof text_ - 1) return;  // cut already
  const size_t name_length = strlen(name);
  if (strncmp(error, name, name_length) == 0 && strncmp(error + name_length, ": ", 2) == 0) {
    error += name_length + 2;
  }
  // Not where it is a library that libcupti needs: that one's name comes first.
  if (strcmp(error, "cannot open shared object file: No such file or directory") == 0) {
    error = "not found";
  }
  if (named(name)) return;
  const char* separator = used_ == 0 ? "" : "; ";
  if (used_ != 0 && strcmp(text_ + error_at_, error) == 0) {
    used_ = error_at_ - 2;  // the ": " before it
    separator = ", ";
  }
  const int written =
      snprintf(text_ + used_, sizeof text_ - used_, "%s%s: %s", separator, name, error);
  if (written > 0) used_ += static_cast<size_t>(written);
  if (used_ >= sizeof text_) {  // say that the list goes on
    used_ = sizeof text_ - 1;
    memcpy(text_ + sizeof text_ - 4, "...", 4);
    return;
  }
  error_at_ = used_ - strlen(error);
}

uint32_t major_of_file(const char* file) noexcept {
  constexpr const char kStem[] = "libcupti.so.";
  if (!starts_with(file, kStem)) return 0;
  char* end = nullptr;
  const unsigned long major = strtoul(file + sizeof kStem - 1, &end, 10);
  if (end == file + sizeof kStem - 1 || major < 11 || major > 99) return 0;
  return *end == '\0' || *end == '.' ? static_cast<uint32_t>(major) : 0;
}

LoadResult load_cupti(const MappedObjects& objects, const char* override_path,
                      uint32_t driver_major, CuptiLibrary* library, Attempts* attempts) noexcept {
  Search search(driver_major, library, attempts);
  if (open_mapped(&search, objects)) {
    const uint32_t major = major_of_file(file_name(library->path));
    const bool newer = driver_major != 0 && major > driver_major;
    return newer ? LoadResult::kNewerThanDriver : LoadResult::kLoaded;
  }
  if (override_path[0] != '\0') {
    return open_override(&search, override_path) ? LoadResult::kLoaded : LoadResult::kNotFound;
  }
  const bool found =
      open_neighbour(&search, objects) || search.open_soname() || open_toolkit(&search);
  return found ? LoadResult::kLoaded : LoadResult::kNotFound;
}

}  // namespace gpuprof::cupti
