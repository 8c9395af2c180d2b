// SPDX-License-Identifier: Apache-2.0
//
// Result<T>: a value, or one line that says what could not be read and why. Nothing throws.
#pragma once

#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace gpuprof::elfgate {

template <class T>
class [[nodiscard]] Result : public tl::expected<T, std::string> {
 public:
  using tl::expected<T, std::string>::expected;
};

using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<std::string> fail(std::string message) {
  return tl::unexpected<std::string>(std::move(message));
}

}  // namespace gpuprof::elfgate
