// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace gpuprof::target {
namespace {

// Length of the well-formed UTF-8 sequence at text[at], 0 if there is none (Unicode 15, table 3-7).
size_t sequence_length(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t lead = byte(0);
  const size_t length = lead < 0x80                    ? 1
                        : lead >= 0xc2 && lead <= 0xdf ? 2
                        : (lead & 0xf0) == 0xe0        ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;  // overlong
  if (lead == 0xed && byte(1) > 0x9f) return 0;  // surrogates
  if (lead == 0xf0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;  // above U+10FFFF
  return length;
}

bool is_control(std::string_view sequence) {
  const auto lead = static_cast<uint8_t>(sequence[0]);
  if (sequence.size() == 1) return lead < 0x20 || lead == 0x7f;
  return lead == 0xc2 && static_cast<uint8_t>(sequence[1]) < 0xa0;  // C1
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  text = text.substr(0, text.find('\0'));
  std::string out;
  for (size_t at = 0; at < text.size() && out.size() < max_bytes;) {
    const size_t length = sequence_length(text, at);
    if (length == 0 || is_control(text.substr(at, length))) {
      out += '?';
      at += length == 0 ? 1 : length;
      continue;
    }
    if (out.size() + length > max_bytes) break;
    out.append(text, at, length);
    at += length;
  }
  return out;
}

std::string gpu_uuid(std::span<const uint8_t, 16> uuid) {
  if (std::all_of(uuid.begin(), uuid.end(), [](uint8_t byte) { return byte == 0; })) return {};
  std::string out = "GPU-";
  char hex[3];
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    std::snprintf(hex, sizeof hex, "%02x", uuid[i]);
    out += hex;
  }
  return out;
}

}  // namespace gpuprof::target
