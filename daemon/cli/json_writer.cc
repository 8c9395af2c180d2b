// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/json_writer.h"

#include <cstdio>

namespace gpuprof::cli {

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (filled_.empty()) return;
  if (filled_.back()) out_ += ',';
  filled_.back() = true;
  out_ += '\n';
  out_.append(2 * filled_.size(), ' ');
}

void JsonWriter::quote(std::string_view text) {
  out_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out_ += escape;
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

void JsonWriter::raw(std::string_view text) {
  separate();
  out_ += text;
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  filled_.push_back(false);
}

void JsonWriter::close(char bracket) {
  const bool filled = filled_.back();
  filled_.pop_back();
  if (filled) {
    out_ += '\n';
    out_.append(2 * filled_.size(), ' ');
  }
  out_ += bracket;
}

void JsonWriter::begin_object() { open('{'); }
void JsonWriter::begin_array() { open('['); }

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  out_ += ": ";
  after_key_ = true;
  return *this;
}

void JsonWriter::value(std::string_view text) {
  separate();
  quote(text);
}

}  // namespace gpuprof::cli
