// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_setup.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "shim/core/log.h"

namespace gpuprof::cupti {

void preload_perfworks(const void* cupti_function) noexcept {
  constexpr char kName[] = "libnvperf_host.so";
  Dl_info info;
  if (cupti_function == nullptr || dladdr(cupti_function, &info) == 0) return;
  const char* slash = info.dli_fname == nullptr ? nullptr : strrchr(info.dli_fname, '/');
  if (slash == nullptr) return;
  char path[1024];
  const int length = snprintf(path, sizeof path, "%.*s/%s",
                              static_cast<int>(slash - info.dli_fname), info.dli_fname, kName);
  if (length < 0 || static_cast<size_t>(length) >= sizeof path || access(path, R_OK) != 0) return;
  void* library = dlopen(kName, RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) return;  // somebody's is mapped; ours or not, it is what CUPTI will get
  library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  shim::log_line("%s: %s", path, library != nullptr ? "loaded" : "cannot be loaded");
  if (library == nullptr) (void)dlerror();
}

}  // namespace gpuprof::cupti
