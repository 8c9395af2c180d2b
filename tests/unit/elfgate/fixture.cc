// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/elfgate/fixture.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "tools/elfgate/elf_image.h"
#include "tools/elfgate/policy.h"
#include "tools/elfgate/read_facts.h"

namespace gpuprof::elfgate {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

std::vector<uint8_t> yaml2obj(const std::string& text) {
  std::string folder = (std::filesystem::temp_directory_path() / "elfgate.XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/in.yaml") << text;
  const std::string command =
      std::string(YAML2OBJ) + " " + folder + "/in.yaml -o " + folder + "/out";
  EXPECT_EQ(std::system(command.c_str()), 0) << text;
  const std::string bytes = read_file(folder + "/out");
  std::filesystem::remove_all(folder);
  return {bytes.begin(), bytes.end()};
}

// The bytes of .dynstr, found by its section header.
std::string dynamic_strings(const std::vector<uint8_t>& image) {
  const auto elf = ElfImage::from_memory(image);
  const Section* section = elf ? elf->section(".dynstr") : nullptr;
  EXPECT_TRUE(section) << (elf ? "no .dynstr" : elf.error());
  if (!section) return {};
  const auto bytes = elf->at_offset(section->header.sh_offset, section->header.sh_size, ".dynstr");
  return {bytes->begin(), bytes->end()};
}

}  // namespace

Fixture::Fixture() : text_(read_file(LIBRARY_YAML)) {}

Fixture& Fixture::set(const std::string& key, const std::string& value) {
  EXPECT_NE(text_.find("[[" + key + "="), std::string::npos) << key;
  values_[key] = value;
  return *this;
}

Fixture& Fixture::add(const std::string& place, const std::string& line) {
  const size_t at = text_.find("#+ " + place + "\n");
  EXPECT_NE(at, std::string::npos) << place;
  const std::string indent(at - text_.rfind('\n', at) - 1, ' ');
  text_.insert(at, line + "\n" + indent);
  return *this;
}

Fixture& Fixture::add_dynamic_text(const std::string& tag, const std::string& text) {
  return add("dynamic", "- { Tag: " + tag + ", Value: '@" + text + "@' }");
}

Fixture& Fixture::add_dynamic(const std::string& tag, uint64_t value) {
  return add("dynamic", "- { Tag: " + tag + ", Value: " + std::to_string(value) + " }");
}

Fixture& Fixture::add_probe(const std::string& name, const std::string& arguments, uint64_t site,
                            uint64_t semaphore) {
  const uint64_t addresses[] = {site, 0, semaphore};
  std::string desc(sizeof(addresses), '\0');
  std::memcpy(desc.data(), addresses, sizeof(addresses));
  desc += std::string("small") + '\0' + name + '\0' + arguments + '\0';
  if (!probes_.empty()) probes_ += ", ";
  probes_ += "{ Name: stapsdt, Type: 3, Desc: " + hex_of(desc) + " }";
  return *this;
}

std::vector<uint8_t> Fixture::build() const {
  std::string text = text_;
  std::smatch match;
  const std::regex key("\\[\\[([A-Z0-9_]+)=([^\\]]*)\\]\\]");
  while (std::regex_search(text, match, key)) {
    const auto value = values_.find(match[1]);
    std::string to = value != values_.end() ? value->second : match[2].str();
    if (match[1] == "PROBES") to = " " + probes_ + " ";
    text.replace(static_cast<size_t>(match.position()), static_cast<size_t>(match.length()), to);
  }
  // Once for the texts to have their places, once more with the places.
  std::set<std::string> texts;
  const std::regex reference("'@([^@]*)@'");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), reference);
       at != std::sregex_iterator(); ++at) {
    if ((*at)[1] != "size" && (*at)[1] != "") texts.insert((*at)[1]);
  }
  std::string names;
  for (const std::string& name : texts) names += (names.empty() ? "'" : ", '") + name + "'";
  replace_all(text, "[[TEXTS]]", names);
  const std::string strings = dynamic_strings(yaml2obj(std::regex_replace(text, reference, "1")));
  const auto place_of = [&strings](const std::string& name) {
    const size_t place = name.empty() ? 0 : strings.find(name + '\0');
    EXPECT_NE(place, std::string::npos) << name;
    return std::to_string(place);
  };
  replace_all(text, "'@size@'", std::to_string(strings.size()));
  replace_all(text, "'@@'", "0");
  for (const std::string& name : texts) replace_all(text, "'@" + name + "@'", place_of(name));
  return yaml2obj(text);
}

std::vector<std::string> violations_of(const std::vector<uint8_t>& image, std::string_view policy,
                                       std::string_view file_name) {
  Policy parsed;
  if (const Status added = add_policy_text(parsed, policy, "policy", "."); !added)
    return {added.error()};
  const auto elf = ElfImage::from_memory(image);
  if (!elf) return {elf.error()};
  const auto facts = read_facts(*elf);
  if (!facts) return {facts.error()};
  std::vector<std::string> lines;
  for (const Violation& found : check_file(*facts, parsed, file_name)) {
    lines.push_back(std::string(found.check) + ": " + found.what + " (" + found.where + ")");
    EXPECT_FALSE(found.why.empty() || found.mend.empty()) << lines.back();
  }
  return lines;
}

std::vector<std::string> violations_of(const Fixture& fixture, std::string_view policy) {
  return violations_of(fixture.build(), policy);
}

std::string error_of(const std::vector<uint8_t>& image) {
  const auto elf = ElfImage::from_memory(image);
  if (!elf) return elf.error();
  const auto facts = read_facts(*elf);
  return facts ? "no error" : facts.error();
}

std::string hex_of(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    hex += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return hex;
}

}  // namespace gpuprof::elfgate
