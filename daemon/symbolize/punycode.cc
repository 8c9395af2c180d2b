// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/punycode.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace gpuprof::symbolize {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

}  // namespace

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLead[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
}

std::optional<std::string> decode_punycode(std::string_view text) {
  constexpr uint32_t kBase = 36, kMin = 1, kMax = 26, kSkew = 38, kDamp = 700;
  std::vector<uint32_t> out;
  if (const size_t split = text.rfind('_'); split != std::string_view::npos) {
    out.assign(text.begin(), text.begin() + static_cast<ptrdiff_t>(split));
    text.remove_prefix(split + 1);
  }
  uint64_t code = 0x80, index = 0, bias = 72;
  bool first = true;
  while (!text.empty()) {
    const uint64_t before = index;
    uint64_t weight = 1;
    for (uint64_t k = kBase;; k += kBase) {
      if (text.empty()) return std::nullopt;
      const char c = text.front();
      text.remove_prefix(1);
      if (!is_lower(c) && !is_digit(c)) return std::nullopt;
      const uint64_t digit = static_cast<uint64_t>(is_lower(c) ? c - 'a' : c - '0' + 26);
      index += digit * weight;
      const uint64_t threshold = k <= bias ? kMin : std::min<uint64_t>(k - bias, kMax);
      if (index > std::numeric_limits<uint32_t>::max()) return std::nullopt;
      if (digit < threshold) break;
      weight *= kBase - threshold;
      if (weight > std::numeric_limits<uint32_t>::max()) return std::nullopt;
    }
    const uint64_t count = out.size() + 1;
    uint64_t delta = (index - before) / (first ? kDamp : 2);
    first = false;
    delta += delta / count;
    uint64_t k = 0;
    for (; delta > (kBase - kMin) * kMax / 2; k += kBase) delta /= kBase - kMin;
    bias = k + (kBase - kMin + 1) * delta / (delta + kSkew);
    code += index / count;
    index %= count;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return std::nullopt;
    out.insert(out.begin() + static_cast<ptrdiff_t>(index++), static_cast<uint32_t>(code));
  }
  std::string utf8;
  for (const uint32_t c : out) append_utf8(utf8, c);
  return utf8;
}

}  // namespace gpuprof::symbolize
