// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/elf_library.h"

#include <elf.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "daemon/base/root_file.h"
#include "daemon/probe/usdt_notes.h"

namespace gpuprof::doctor {
namespace {

unsigned take_part(std::string_view& text) {
  unsigned out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with('.')) text.remove_prefix(1);
  return error == std::errc() ? out : 0;
}

}  // namespace

int compare_versions(std::string_view left, std::string_view right) {
  while (!left.empty() || !right.empty()) {
    const size_t before = left.size() + right.size();
    const unsigned a = take_part(left), b = take_part(right);
    if (a != b) return a < b ? -1 : 1;
    if (left.size() + right.size() == before) return left.compare(right);
  }
  return 0;
}

Result<ElfLibrary> ElfLibrary::read(const UniqueFd& pinned) {
  struct stat info = {};
  const UniqueFd file = reopen_regular(pinned, info);
  if (!file.valid()) return fail_errno(Code::kPermission, errno, "cannot be read");
  if (info.st_size == 0) return fail(Code::kCorrupt, "is empty");
  auto bytes = probe::read_shim_file(file.get());
  if (!bytes) return fail(bytes.error().code, "cannot be read: " + bytes.error().message);
  ElfLibrary out;
  out.bytes_ = std::move(*bytes);
  auto image = elfgate::ElfImage::from_memory(out.bytes_);
  if (!image) return fail(Code::kCorrupt, "is no library: " + image.error());
  out.image_ = std::make_unique<elfgate::ElfImage>(std::move(*image));
  auto facts = elfgate::read_facts(*out.image_);
  if (!facts) return fail(Code::kCorrupt, "is damaged: " + facts.error());
  out.facts_ = std::make_unique<elfgate::Facts>(std::move(*facts));
  return out;
}

bool ElfLibrary::exports(std::string_view name) const {
  return std::ranges::any_of(facts_->symbols, [&](const elfgate::Symbol& symbol) {
    return symbol.name == name && elfgate::is_export(symbol);
  });
}

bool ElfLibrary::defines(std::string_view version) const {
  return std::ranges::find(facts_->version_definitions, version) !=
         facts_->version_definitions.end();
}

std::string ElfLibrary::newest_version(std::string_view prefix) const {
  std::string_view best;
  for (std::string_view name : facts_->version_definitions) {
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    const char first = name[prefix.size()];
    if (first < '0' || first > '9') continue;  // GLIBC_PRIVATE
    if (best.empty() ||
        compare_versions(best.substr(prefix.size()), name.substr(prefix.size())) < 0)
      best = name;
  }
  return std::string(best);
}

std::string elf_machine(const UniqueFd& pinned) {
  struct stat info = {};
  const UniqueFd file = reopen_regular(pinned, info);
  Elf64_Ehdr header = {};  // e_machine lies in the same place of an Elf32_Ehdr
  if (!file.valid() || ::pread(file.get(), &header, sizeof header, 0) < 52 ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return {};
  if (header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB) {
    if (header.e_machine == EM_X86_64) return "x86-64";
    if (header.e_machine == EM_AARCH64) return "aarch64";
  }
  return header.e_ident[EI_CLASS] == ELFCLASS32 ? "a 32-bit processor" : "another processor";
}

}  // namespace gpuprof::doctor
