// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/json.h"

namespace gpuprof::elfgate {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

// Length of the UTF-8 sequence that `text` begins with, 0 if it is none (RFC 3629).
size_t utf8_bytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) >= 0xa0) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;
  return length;
}

}  // namespace

void Json::separate() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

Json& Json::open(char bracket) {
  separate();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

Json& Json::close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

Json& Json::key(std::string_view name) {
  separate();
  quote(name);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

Json& Json::text(std::string_view value) {
  separate();
  quote(value);
  return *this;
}

Json& Json::number(uint64_t value) {
  separate();
  out_ += std::to_string(value);
  return *this;
}

Json& Json::truth(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

Json& Json::null() {
  separate();
  out_ += "null";
  return *this;
}

void Json::quote(std::string_view value) {
  out_ += '"';
  while (!value.empty()) {
    const size_t length = utf8_bytes(value);
    const auto byte = static_cast<uint8_t>(value[0]);
    if (length == 0) {
      out_ += "\\ufffd";
    } else if (byte < 0x20 || byte == 0x7f) {
      out_.append("\\u00") += {kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      if (byte == '"' || byte == '\\') out_ += '\\';
      out_.append(value.substr(0, length));
    }
    value.remove_prefix(length == 0 ? 1 : length);
  }
  out_ += '"';
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 300;
  std::string out;
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out.append("\\x") += {kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  if (text.size() > kMaxBytes) out += "...";
  return out;
}

}  // namespace gpuprof::elfgate
