// SPDX-License-Identifier: Apache-2.0
//
// JsonWriter: JSON text, in order, indented by two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpuprof::cli {

// begin/end calls must pair; inside an object every value goes by `key` first. Numbers are written
// exactly: 64-bit counts are no doubles.
class JsonWriter {
 public:
  void begin_object();
  void end_object() { close('}'); }
  void begin_array();
  void end_array() { close(']'); }
  JsonWriter& key(std::string_view name);

  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(uint64_t number) { raw(std::to_string(number)); }
  void value(int64_t number) { raw(std::to_string(number)); }
  void value(uint32_t number) { raw(std::to_string(number)); }
  void value(bool truth) { raw(truth ? "true" : "false"); }
  void null() { raw("null"); }

  template <class T>
  void field(std::string_view name, const T& thing) {
    key(name);
    value(thing);
  }

  [[nodiscard]] std::string take() { return std::move(out_) + "\n"; }

 private:
  void raw(std::string_view text);
  void open(char bracket);
  void close(char bracket);
  void separate();
  void quote(std::string_view text);

  std::string out_;
  std::vector<bool> filled_;  // one per open bracket: has an element
  bool after_key_ = false;
};

}  // namespace gpuprof::cli
