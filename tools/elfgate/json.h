// SPDX-License-Identifier: Apache-2.0
//
// Json: JSON text on one line, written in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace gpuprof::elfgate {

// open/close calls must pair; inside an object every value goes by `key` first. Bytes that are not
// UTF-8 become U+FFFD.
class Json {
 public:
  Json& open(char bracket);
  Json& close(char bracket);
  Json& key(std::string_view name);
  Json& text(std::string_view value);
  Json& number(uint64_t value);
  Json& truth(bool value);
  Json& null();

  [[nodiscard]] std::string take() { return std::exchange(out_, {}); }

 private:
  void separate();
  void quote(std::string_view value);

  std::string out_;
  bool needs_comma_ = false;
};

// Control characters and bytes beyond ASCII as \xNN, so that a name cannot forge a line or colours;
// cut after 300 bytes.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace gpuprof::elfgate
