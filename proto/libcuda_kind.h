// SPDX-License-Identifier: Apache-2.0
//
// What the path of a mapped libcuda tells, alike for the shim, which writes it to the status page,
// and the daemon, which looks at processes without a shim. A release is the driver's own number
// ("580.159.04"); an empty string is one that is not known.
#pragma once

#include <cstdio>
#include <cstring>

#include "proto/memfd_layout.h"

namespace gpuprof {

// The next number of *text, which is moved behind it and a dot; 0 at the end.
inline unsigned next_number(const char** text) noexcept {
  unsigned out = 0;
  for (; **text >= '0' && **text <= '9'; ++*text) {
    if (out < 100'000'000u) out = out * 10u + static_cast<unsigned>(**text - '0');
  }
  if (**text == '.') ++*text;
  return out;
}

// Digits and single dots, from 100.x on: Tegra and WSL number their files 1.1.
inline bool is_release(const char* text) noexcept {
  const char* at = text;
  if (next_number(&at) < 100) return false;
  int dots = 0;
  for (at = text; *at != '\0'; ++at) {
    const bool digit = *at >= '0' && *at <= '9';
    if (!digit && (*at != '.' || at == text || at[1] < '0' || at[1] > '9')) return false;
    if (!digit) ++dots;
  }
  return dots > 0 && dots <= 3 && at - text < 32;
}

// "580.159.04" of ".../libcuda.so.580.159.04", a part of `path`; "" where the name tells none.
inline const char* release_in_name(const char* path) noexcept {
  const char* const slash = std::strrchr(path, '/');
  const char* const suffix = std::strstr(slash == nullptr ? path : slash, ".so.");
  return suffix != nullptr && is_release(suffix + 4) ? suffix + 4 : "";
}

// Below, above or equal to 0, as `left` is older, newer or the same; 0 too where one is unknown.
inline int compare_releases(const char* left, const char* right) noexcept {
  if (!is_release(left) || !is_release(right)) return 0;
  for (int field = 0; field < 4; ++field) {
    const unsigned a = next_number(&left), b = next_number(&right);
    if (a != b) return a < b ? -1 : 1;
  }
  return 0;
}

// /usr/local/cuda-13.0/compat/, a package's cuda_compat (Nix) or cuda-compat (conda); not a
// directory of just that name.
inline bool in_compat_directory(const char* path) noexcept {
  if (std::strstr(path, "cuda-compat") != nullptr || std::strstr(path, "cuda_compat") != nullptr)
    return true;
  const char* parent = path;
  for (const char* at = path; *at != '\0'; ++at) {
    if (*at != '/') continue;
    if (std::strncmp(at, "/compat/", 8) == 0 && std::strncmp(parent, "/cuda", 5) == 0) return true;
    parent = at;
  }
  return false;
}

// Which packaging a libcuda comes from, by its real path. One whose release differs from the kernel
// module's is the forward-compatibility one wherever it lies: the container toolkit mounts it among
// the driver's libraries. `kernel_release` "": not known, as on Tegra.
inline gpuprof_libcuda_kind libcuda_kind_of(const char* real_path,
                                            const char* kernel_release) noexcept {
  const char* const slash = std::strrchr(real_path, '/');
  const auto has = [&](const char* part) { return std::strstr(real_path, part) != nullptr; };
  const auto begins = [&](const char* with) {
    return std::strncmp(real_path, with, std::strlen(with)) == 0;
  };
  if (real_path[0] == '\0') return GPUPROF_LIBCUDA_UNKNOWN;
  if (in_compat_directory(real_path)) return GPUPROF_LIBCUDA_COMPAT;
  if (has("/wsl/")) return GPUPROF_LIBCUDA_WSL;
  // JetPack 4 and 5; NixOS and JetPack 7, whose paths have l4t; the file's name, in JetPack 6 too.
  if (has("/tegra/") || has("l4t-") ||
      std::strcmp(slash == nullptr ? real_path : slash + 1, "libcuda.so.1.1") == 0)
    return GPUPROF_LIBCUDA_TEGRA;
  if (compare_releases(release_in_name(real_path), kernel_release) != 0)
    return GPUPROF_LIBCUDA_COMPAT;
  if (begins("/nix/store/") || begins("/run/opengl-driver")) return GPUPROF_LIBCUDA_NIX;
  return GPUPROF_LIBCUDA_SYSTEM;
}

// Why CUDA or CUPTI failed with this libcuda, in one line that says what to do; "" and false where
// the releases explain nothing. A libcuda older than its kernel module answers 803 to cuInit and
// fails in every call, cuptiSubscribe with 999 (580.95.05 on 580.159.04, H200). A newer one answers
// 804 where the GPU's class has no forward compatibility (cuda.h).
inline bool explain_libcuda(char* out, size_t capacity, const char* real_path,
                            const char* kernel_release) noexcept {
  const int order = compare_releases(release_in_name(real_path), kernel_release);
  out[0] = '\0';
  if (order < 0)
    std::snprintf(out, capacity,
                  "%.200s is older than the kernel module %.31s, and no forward compatibility with "
                  "it (cuInit 803, cuptiSubscribe 999): take its directory out of LD_LIBRARY_PATH, "
                  "or, if a RUNPATH leads to it, put the driver's directory into LD_LIBRARY_PATH",
                  real_path, kernel_release);
  if (order > 0)
    std::snprintf(out, capacity,
                  "%.200s is newer than the kernel module %.31s, which works on data-center GPUs, "
                  "some RTX boards and Jetson only (elsewhere cuInit 804): use the driver's own, "
                  "and reboot if the driver was just updated (cuInit 803)",
                  real_path, kernel_release);
  return order != 0;
}

}  // namespace gpuprof
