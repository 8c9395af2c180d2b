// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/mapped_objects.h"

#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "shim/cupti/loaded_elf.h"

namespace gpuprof::cupti {
namespace {

constexpr const char* kInteresting[] = {"libcuda.so", "libcudart",    "libtorch", "libc10_cuda",
                                        "libtriton",  "libcublas",    "libcudnn", "libnvrtc",
                                        "libjax",     "libtensorflow"};

// What tells a libcupti from a library that is called like one, and from one that forwards to it.
constexpr const char* kCuptiExports[] = {"cuptiGetVersion", "cuptiSubscribe",
                                         "cuptiActivityRegisterCallbacks"};

bool exports_cupti(const LoadedElf& elf) noexcept {
  for (const char* function : kCuptiExports) {
    if (!elf.exports(function)) return false;
  }
  return true;
}

int add_object(dl_phdr_info* info, size_t, void* user) {
  if (info->dlpi_name == nullptr) return 0;
  auto* objects = static_cast<MappedObjects*>(user);
  const LoadedElf elf(*info);
  if (exports_cupti(elf)) objects->add_cupti(info->dlpi_name, elf.soname());
  objects->add(info->dlpi_name);
  objects->add_run_path(elf.run_path(), info->dlpi_name);
  return 0;
}

bool holds_cupti(const char* directory) noexcept {
  char file[MappedObjects::kPathBytes];
  struct stat status;
  for (const char* name : kCuptiSonames) {
    if (join_path(directory, name, file, sizeof file) && stat(file, &status) == 0) return true;
  }
  return false;
}

/// One directory of a run path, `length` bytes of `text`, with $ORIGIN put in; false if it is no
/// absolute path then, or too long.
bool expand(const char* text, size_t length, const char* path, char* out, size_t size) noexcept {
  char origin[MappedObjects::kPathBytes];
  for (const char* word : {"$ORIGIN", "${ORIGIN}"}) {
    const size_t word_length = strlen(word);
    if (length < word_length || strncmp(text, word, word_length) != 0) continue;
    if (path[0] != '\0') {
      directory_of(path, origin, sizeof origin);
    } else {  // the program
      const ssize_t bytes = readlink("/proc/self/exe", origin, sizeof origin - 1);
      if (bytes <= 0) return false;
      origin[bytes] = '\0';
      *const_cast<char*>(file_name(origin)) = '\0';
    }
    const int written = snprintf(out, size, "%s%.*s", origin,
                                 static_cast<int>(length - word_length), text + word_length);
    return written > 0 && static_cast<size_t>(written) < size && out[0] == '/';
  }
  if (length == 0 || length >= size || text[0] != '/' || memchr(text, '$', length) != nullptr) {
    return false;
  }
  memcpy(out, text, length);
  out[length] = '\0';
  return true;
}

}  // namespace

const char* file_name(const char* path) noexcept {
  const char* slash = strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

void directory_of(const char* path, char* out, size_t capacity) noexcept {
  const char* slash = strrchr(path, '/');
  if (slash == nullptr) {
    snprintf(out, capacity, ".");
    return;
  }
  snprintf(out, capacity, "%.*s", static_cast<int>(slash - path), path);
}

bool copy_path(const char* from, char* to, size_t capacity) noexcept {
  const size_t length = strnlen(from, capacity);
  const bool fits = length < capacity;
  memcpy(to, from, fits ? length : capacity - 1);
  to[fits ? length : capacity - 1] = '\0';
  return fits;
}

bool join_path(const char* directory, const char* name, char* to, size_t capacity) noexcept {
  const size_t directory_length = strlen(directory);
  if (directory_length + 1 >= capacity) return copy_path(directory, to, capacity);
  memcpy(to, directory, directory_length);
  to[directory_length] = '/';
  return copy_path(name, to + directory_length + 1, capacity - directory_length - 1);
}

bool starts_with(const char* text, const char* prefix) noexcept {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

void MappedObjects::read() noexcept {
  count_ = run_path_count_ = site_count_ = 0;
  has_cupti_ = cupti_by_name_ = false;
  dl_iterate_phdr(add_object, this);
}

void MappedObjects::add(const char* path) noexcept {
  add_site(path);
  if (count_ == kMax || strlen(path) >= kPathBytes) return;
  const char* name = file_name(path);
  for (const char* prefix : kInteresting) {
    if (!starts_with(name, prefix)) continue;
    // Neighbours are looked for by directory: a second object of one says nothing new.
    const auto directory_bytes = static_cast<size_t>(name - path);
    for (uint32_t i = 0; i < count_ && !starts_with(name, "libcuda.so"); ++i) {
      if (starts_with(file_name(paths_[i]), "libcuda.so")) continue;
      if (static_cast<size_t>(file_name(paths_[i]) - paths_[i]) == directory_bytes &&
          strncmp(paths_[i], path, directory_bytes) == 0) {
        return;
      }
    }
    strcpy(paths_[count_++], path);
    return;
  }
}

void MappedObjects::add_site(const char* path) noexcept {
  if (path[0] != '/') return;
  for (const char* folder : {"/site-packages/", "/dist-packages/"}) {
    const char* at = strstr(path, folder);
    if (at == nullptr) continue;
    const auto length = static_cast<size_t>(at - path) + strlen(folder) - 1;
    for (uint32_t i = 0; i < site_count_; ++i) {
      if (strlen(sites_[i]) == length && strncmp(sites_[i], path, length) == 0) return;
    }
    if (site_count_ == kMaxSites || length >= kPathBytes) return;
    memcpy(sites_[site_count_], path, length);
    sites_[site_count_++][length] = '\0';
    return;
  }
}

void MappedObjects::add_run_path(const char* run_path, const char* path) noexcept {
  for (const char* at = run_path; *at != '\0';) {
    const size_t length = strcspn(at, ":");
    char directory[kPathBytes];
    if (expand(at, length, path, directory, sizeof directory)) add_directory(directory);
    at += length;
    if (*at == ':') ++at;
  }
}

void MappedObjects::add_directory(const char* directory) noexcept {
  for (uint32_t i = 0; i < run_path_count_; ++i) {
    if (strcmp(run_paths_[i], directory) == 0) return;
  }
  if (run_path_count_ == kMaxRunPaths || !holds_cupti(directory)) return;
  strcpy(run_paths_[run_path_count_++], directory);
}

void MappedObjects::add_cupti(const char* path, const char* soname) noexcept {
  const bool by_name = starts_with(file_name(path), "libcupti") || starts_with(soname, "libcupti");
  if (has_cupti_ && (cupti_by_name_ || !by_name)) return;
  has_cupti_ = true;
  cupti_by_name_ = by_name;
  (void)copy_path(path, cupti_, sizeof cupti_);
}

const char* MappedObjects::find(const char* prefix) const noexcept {
  for (uint32_t i = 0; i < count_; ++i) {
    if (starts_with(file_name(paths_[i]), prefix)) return paths_[i];
  }
  return nullptr;
}

}  // namespace gpuprof::cupti
