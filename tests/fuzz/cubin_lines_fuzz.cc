// SPDX-License-Identifier: Apache-2.0
//
// Line number programs alone: a fuzzer that has to keep an ELF file whole rarely gets this far. The
// input is .debug_line; every address of it is relocated to one function or the other.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "daemon/cubin/elf_image.h"
#include "daemon/cubin/line_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpuprof::cubin;
  static constexpr std::string_view kNames("first\0second\0\0third\0no end", 26);
  ElfImage elf;
  elf.texts = {{1, "a", 0x1000}, {2, "b", 0x400}};
  elf.debug_line = std::as_bytes(std::span(data, size));
  elf.debug_str = std::as_bytes(std::span(kNames.data(), kNames.size()));
  for (uint64_t i = 0; i < size; ++i) {
    if (i % 13 != 0)
      elf.line_addresses.push_back({i, static_cast<uint32_t>(i % 3 / 2), 0, i % 5 == 0});
  }
  const auto lines = LineTable::build(elf);
  if (!lines) return 0;
  for (uint32_t text = 0; text < elf.texts.size(); ++text) {
    for (uint32_t offset = 0; offset < elf.texts[text].size_bytes; offset += 8) {
      const auto found = lines->find(text, offset, offset / 2);
      uint32_t depth = 0;
      for (uint32_t at = found ? *found + 1 : 0; at != 0; at = lines->location(at - 1).caller) {
        const LineLocation& location = lines->location(at - 1);
        // "second" is a name, "econd" is not.
        const std::string_view function = lines->function(location);
        if (!function.empty() && function != "first" && function != "second" &&
            function != "third") {
          std::abort();
        }
        volatile size_t read = lines->file(location).size();
        (void)read;
        if (++depth > 2000) std::abort();
      }
    }
  }
  return 0;
}
