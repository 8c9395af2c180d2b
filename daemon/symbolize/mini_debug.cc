// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/mini_debug.h"

#include <lzma.h>

#include <algorithm>

#include "daemon/symbolize/elf_section.h"

namespace gpuprof::symbolize {
namespace {

// Nothing if it is no whole stream, or does not fit the bounds.
std::vector<uint8_t> unpack(const uint8_t* data, size_t size) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, kMaxMiniDebugMemory, 0) != LZMA_OK) return {};
  std::vector<uint8_t> out(std::min(std::max<size_t>(size * 4, 4096), kMaxMiniDebugBytes));
  stream.next_in = data;
  stream.avail_in = size;
  size_t used = 0;
  lzma_ret result = LZMA_OK;
  while (result == LZMA_OK) {
    if (used == out.size()) {
      if (used == kMaxMiniDebugBytes) break;
      out.resize(std::min(used * 2, kMaxMiniDebugBytes));
    }
    stream.next_out = out.data() + used;
    stream.avail_out = out.size() - used;
    result = lzma_code(&stream, LZMA_FINISH);
    used = out.size() - stream.avail_out;
  }
  lzma_end(&stream);
  if (result != LZMA_STREAM_END) return {};
  out.resize(used);
  out.shrink_to_fit();
  return out;
}

}  // namespace

MiniDebug read_mini_debug(Elf* elf) {
  MiniDebug out;
  Elf_Scn* scn = section_named(elf, {".gnu_debugdata"});
  out.has_section = scn != nullptr;
  const Elf_Data* data = scn == nullptr ? nullptr : elf_rawdata(scn, nullptr);
  if (data == nullptr || data->d_buf == nullptr) return out;
  out.image = unpack(static_cast<const uint8_t*>(data->d_buf), data->d_size);
  return out;
}

}  // namespace gpuprof::symbolize
