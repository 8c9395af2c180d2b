// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/file_version.h"

#include <cstring>

#include "shim/cupti/mapped_objects.h"

namespace gpuprof::cupti {
namespace {

constexpr uint32_t kMaxNumber = 99'999;

/// A number at `*at`, which is moved behind it; false where there is none, or one too large.
bool read_number(const char** at, uint32_t* number) noexcept {
  if (**at < '0' || **at > '9') return false;
  uint32_t value = 0;
  for (; **at >= '0' && **at <= '9'; ++*at) {
    value = value * 10 + static_cast<uint32_t>(**at - '0');
    if (value > kMaxNumber) return false;
  }
  *number = value;
  return true;
}

bool is_soname(const char* name) noexcept {
  for (const char* soname : kCuptiSonames) {
    if (strcmp(name, soname) == 0) return true;
  }
  return false;
}

}  // namespace

FileVersion version_after(const char* stem, const char* file) noexcept {
  if (!starts_with(file, stem)) return {};
  const char* at = file + strlen(stem);
  FileVersion version;
  uint32_t rest = 0;
  uint32_t* const parts[] = {&version.major, &version.minor, &version.patch};
  for (uint32_t count = 0;; ++count) {
    if (!read_number(&at, count < 3 ? parts[count] : &rest)) return {};
    if (*at == '\0') return version;
    if (*at++ != '.') return {};
  }
}

FileVersion version_of_file(const char* file) noexcept {
  const FileVersion version = version_after("libcupti.so.", file);
  return version.major < 11 || version.major > 99 ? FileVersion{} : version;
}

bool NamedVersion::goes_before(const NamedVersion& other) const noexcept {
  if (version.major != other.version.major) return version.major > other.version.major;
  if (is_soname(name) != is_soname(other.name)) return is_soname(name);
  if (version.minor != other.version.minor) return version.minor > other.version.minor;
  if (version.patch != other.version.patch) return version.patch > other.version.patch;
  return strcmp(name, other.name) < 0;
}

NamedVersion named_version(const char* entry, const FileVersion& version) noexcept {
  NamedVersion named;
  if (version.major == 0 || strlen(entry) >= sizeof named.name) return named;
  named.version = version;
  strcpy(named.name, entry);
  return named;
}

}  // namespace gpuprof::cupti
