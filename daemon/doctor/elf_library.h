// SPDX-License-Identifier: Apache-2.0
//
// ElfLibrary: what a library of a process asks for and brings, as elfgate reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "tools/elfgate/read_facts.h"

namespace gpuprof::doctor {

// Read whole into memory: its owner may cut or change the file at any time.
class ElfLibrary {
 public:
  // `pinned` is an O_PATH descriptor. Errors: one line without the file's name: empty, cut, no ELF
  // file, of another word size.
  static Result<ElfLibrary> read(const UniqueFd& pinned);

  [[nodiscard]] const elfgate::Facts& facts() const { return *facts_; }
  [[nodiscard]] bool exports(std::string_view name) const;
  [[nodiscard]] bool defines(std::string_view version) const;
  // "GLIBC_2.31" of all that begin with "GLIBC_"; empty: none.
  [[nodiscard]] std::string newest_version(std::string_view prefix) const;

 private:
  std::vector<uint8_t> bytes_;
  std::unique_ptr<elfgate::ElfImage> image_;
  std::unique_ptr<elfgate::Facts> facts_;
};

// "x86-64" or "aarch64" of the first bytes of an ELF file, "another processor" of others; empty: no
// ELF file.
std::string elf_machine(const UniqueFd& pinned);

// Below, above or equal to 0 as the dotted numbers are: 2.4 < 2.17.
int compare_versions(std::string_view left, std::string_view right);

}  // namespace gpuprof::doctor
