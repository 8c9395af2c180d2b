// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/text.h"

#include <algorithm>
#include <cstdint>

namespace gpuprof::probe {
namespace {

// Bytes of the well-formed character at the front of `text` (Unicode 15, table 3-7), 0 if none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  size_t bytes = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (lead >= 0xc2 && lead <= 0xdf) {
    bytes = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    bytes = 3;
    if (lead == 0xe0) low = 0xa0;   // shorter form exists
    if (lead == 0xed) high = 0x9f;  // surrogates
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    bytes = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  }
  if (bytes == 0 || text.size() < bytes || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < bytes; i++) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return bytes;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;  // U+0080..U+009F
}

}  // namespace

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string sanitize(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    if (bytes == 0 || is_control(text.substr(0, bytes))) {
      clean.push_back('?');
    } else {
      clean.append(text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return clean;
}

}  // namespace gpuprof::probe
