// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/mapped_objects.h"

#include <link.h>

#include <cstdio>
#include <cstring>

namespace gpuprof::cupti {
namespace {

// libcupti first: a mangled copy in a wheel keeps the beginning of its name.
constexpr const char* kInteresting[] = {"libcupti",    "libcuda.so", "libcudart",    "libtorch",
                                        "libc10_cuda", "libtriton",  "libcublas",    "libcudnn",
                                        "libnvrtc",    "libjax",     "libtensorflow"};

int add_object(dl_phdr_info* info, size_t, void* user) {
  if (info->dlpi_name != nullptr) static_cast<MappedObjects*>(user)->add(info->dlpi_name);
  return 0;
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
  count_ = 0;
  dl_iterate_phdr(add_object, this);
}

void MappedObjects::add(const char* path) noexcept {
  if (count_ == kMax || strlen(path) >= kPathBytes) return;
  const char* name = file_name(path);
  for (const char* prefix : kInteresting) {
    if (!starts_with(name, prefix)) continue;
    strcpy(paths_[count_++], path);
    return;
  }
}

const char* MappedObjects::find(const char* prefix) const noexcept {
  for (uint32_t i = 0; i < count_; ++i) {
    if (starts_with(file_name(paths_[i]), prefix)) return paths_[i];
  }
  return nullptr;
}

}  // namespace gpuprof::cupti
