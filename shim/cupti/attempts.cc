// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/attempts.h"

#include <cstdio>
#include <cstring>

namespace gpuprof::cupti {
namespace {

// Room for "; and 4294967295 more" at the end of the text.
constexpr size_t kEndBytes = 24;
constexpr int kHalfName = 120;
constexpr size_t kErrorBytes = 300;  // dlerror() may repeat a path of 4,096 bytes

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
  const size_t name_length = strlen(name);
  if (name_length == 0) return;
  if (strncmp(error, name, name_length) == 0 && strncmp(error + name_length, ": ", 2) == 0) {
    error += name_length + 2;
  }
  // Not where it is a library that libcupti needs: that one's name comes first.
  if (strcmp(error, "cannot open shared object file: No such file or directory") == 0) {
    error = "not found";
  }
  char short_error[kErrorBytes];
  snprintf(short_error, sizeof short_error, "%s", error);
  error = short_error;
  char short_name[2 * kHalfName + 4];
  if (name_length >= sizeof short_name) {
    snprintf(short_name, sizeof short_name, "%.*s...%s", kHalfName, name,
             name + name_length - kHalfName);
    name = short_name;
  }
  if (named(name)) return;
  // In place of an error that is the same, the ": " before it included.
  const bool same = used_ != 0 && strcmp(text_ + error_at_, error) == 0;
  const size_t at = same ? error_at_ - 2 : used_;
  const char* separator = used_ == 0 ? "" : same ? ", " : "; ";
  const size_t room = sizeof text_ - kEndBytes - at;
  const size_t needed = strlen(separator) + strlen(name) + 2 + strlen(error);
  if (left_out_ != 0 || needed >= room) {
    snprintf(text_ + used_, kEndBytes, "%sand %u more", used_ == 0 ? "" : "; ", ++left_out_);
    return;
  }
  used_ = at + static_cast<size_t>(snprintf(text_ + at, room, "%s%s: %s", separator, name, error));
  error_at_ = used_ - strlen(error);
}

}  // namespace gpuprof::cupti
