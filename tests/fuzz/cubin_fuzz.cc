// SPDX-License-Identifier: Apache-2.0
//
// A cubin as a process hands it over: parsed, then asked about every function, and so for the
// callers of those inside kernels.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/cubin/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using gpuprof::cubin::Image;
  using gpuprof::cubin::SourceStatus;
  const auto* const bytes = reinterpret_cast<const std::byte*>(data);
  const auto image = Image::parse({bytes, bytes + size});
  if (!image) return 0;
  std::unordered_map<std::string_view, size_t> named;
  for (const auto& function : (*image)->functions()) ++named[function.mangled];
  int questions = 2000;  // an input of many functions costs no more than a real one
  for (const auto& function : (*image)->functions()) {
    const uint64_t step = function.size_bytes / 16 + 1;
    for (uint64_t pc = 0; pc <= function.size_bytes + 1 && questions > 0; pc += step, --questions) {
      const auto resolution = (*image)->resolve(function.mangled, pc);
      const bool mapped = resolution.status != SourceStatus::kUnmapped;
      if (mapped == resolution.frames.empty()) std::abort();
      // 1,024 inlined calls, and 64 frames of callers.
      if (resolution.frames.size() > 1024 + 1 + 64) std::abort();
      // Where several functions have the name, no address is told.
      const bool is_ambiguous = resolution.address == 0 && named[function.mangled] > 1;
      if (mapped && !is_ambiguous &&
          (resolution.address == 0 || resolution.address >= (*image)->limit())) {
        std::abort();
      }
      for (const auto& frame : resolution.frames) {
        volatile size_t read = 0;
        for (const char c : frame.mangled) read = read + static_cast<unsigned char>(c);
        for (const char c : frame.file) read = read + static_cast<unsigned char>(c);
      }
    }
  }
  return 0;
}
