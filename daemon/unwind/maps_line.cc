// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/maps_line.h"

#include <sys/sysmacros.h>

#include <charconv>

namespace gpuprof::unwind {
namespace {

// Reads a number and the `separator` after it; false if either is missing.
template <class T>
bool take_number(std::string_view& text, T& value, int base, char separator) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || at == text.data()) return false;
  text.remove_prefix(static_cast<size_t>(at - text.data()));
  if (separator == '\0') return true;
  if (text.empty() || text.front() != separator) return false;
  text.remove_prefix(1);
  return true;
}

// The kernel writes a newline in a name as \012 (and only that, fs/seq_file.c seq_path).
std::string unescape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 4) == "\\012") {
      out += '\n';
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Bytes of the first code point of `text`, 0 if they are not UTF-8 (RFC 3629: no overlong forms, no
// surrogates, at most U+10FFFF).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const size_t n = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool bad = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) > 0x9f) ||
                   (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) > 0x8f);
  return bad ? 0 : n;
}

}  // namespace

std::optional<MapsLine> parse_maps_line(std::string_view text) {
  MapsLine line;
  uint32_t major = 0;
  uint32_t minor = 0;
  if (!take_number(text, line.start, 16, '-') || !take_number(text, line.end, 16, ' ') ||
      line.start >= line.end || text.size() < 5 || text[4] != ' ') {
    return std::nullopt;
  }
  line.executable = text[2] == 'x';
  text.remove_prefix(5);
  if (!take_number(text, line.file_offset, 16, ' ') || !take_number(text, major, 16, ':') ||
      !take_number(text, minor, 16, ' ') || !take_number(text, line.inode, 10, '\0')) {
    return std::nullopt;
  }
  line.dev = makedev(major, minor);
  const size_t name = text.find_first_not_of(' ');
  if (name == std::string_view::npos) return line;
  text.remove_prefix(name);
  constexpr std::string_view kDeleted = " (deleted)";
  if (line.inode != 0 && text.ends_with(kDeleted)) {
    line.deleted = true;
    text.remove_suffix(kDeleted.size());
  }
  line.path = unescape(text);
  return line;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (n == 0 || first < 0x20 || first == 0x7f) {
      out += '?';
      text.remove_prefix(1);
    } else {
      out += text.substr(0, n);
      text.remove_prefix(n);
    }
  }
  return out;
}

}  // namespace gpuprof::unwind
