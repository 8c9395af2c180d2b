// SPDX-License-Identifier: Apache-2.0
//
// Fixture: an ELF file made by yaml2obj of library.yaml, with what a test changes in it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/elfgate/checks.h"
#include "tools/elfgate/facts.h"

namespace gpuprof::elfgate {

class Fixture {
 public:
  Fixture();

  // The value of [[KEY=...]].
  Fixture& set(const std::string& key, const std::string& value);
  // Lines before `#+ place`; see library.yaml.
  Fixture& add(const std::string& place, const std::string& line);
  // {tag, text in .dynstr}
  Fixture& add_dynamic_text(const std::string& tag, const std::string& text);
  Fixture& add_dynamic(const std::string& tag, uint64_t value);
  // A note of the provider "small".
  Fixture& add_probe(const std::string& name, const std::string& arguments, uint64_t site,
                     uint64_t semaphore);

  [[nodiscard]] std::vector<uint8_t> build() const;

 private:
  std::string text_;
  std::map<std::string, std::string> values_;
  std::string probes_;
};

// "CHECK: WHAT (WHERE)" of each violation, or the one line of an error.
std::vector<std::string> violations_of(const std::vector<uint8_t>& image, std::string_view policy,
                                       std::string_view file_name = "libsmall.so.1");
std::vector<std::string> violations_of(const Fixture& fixture, std::string_view policy);

// "no error", or the line.
std::string error_of(const std::vector<uint8_t>& image);

std::string hex_of(std::string_view bytes);

}  // namespace gpuprof::elfgate
