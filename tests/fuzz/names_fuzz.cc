// SPDX-License-Identifier: Apache-2.0
//
// Single strings of a target: a line of its maps, its stat, a mangled name, anything that is shown.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "daemon/symbolize/demangle.h"
#include "daemon/target/process.h"
#include "daemon/unwind/maps_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpuprof;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto line = unwind::parse_maps_line(text)) {
    if (line->start > line->end || line->path.size() > size) std::abort();
  }
  if (const auto mapping = target::parse_mapping(text)) (void)mapping->file_name();
  (void)target::parse_stat(text);
  const std::string name = symbolize::demangle(std::string(text));
  if (name.size() > symbolize::kMaxDemangledBytes && name != text) std::abort();
  for (const char c : unwind::printable(text)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) std::abort();
  }
  return 0;
}
