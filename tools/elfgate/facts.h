// SPDX-License-Identifier: Apache-2.0
//
// Facts: what an ELF file asks of the process and the system that load it, and what it brings
// along. Plain data; names are the file's own bytes, so its image must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuprof::elfgate {

// A version that the loader looks for in another file (Elf64_Vernaux).
struct VersionNeed {
  std::string_view file;
  std::string_view name;
  bool is_weak = false;                   // VER_FLG_WEAK: its absence is no error of its own
  std::vector<std::string_view> symbols;  // the first of those that need it
  uint64_t symbol_count = 0;
  uint64_t strong_symbol_count = 0;  // those that the loader must find, with that version
};

// A library in whose place, or before which, the loader looks up this file's symbols; it is loaded
// like a needed one.
struct Filtee {
  std::string_view tag;  // DT_FILTER or DT_AUXILIARY
  std::string_view name;
};

// One entry of the dynamic symbol table.
struct Symbol {
  std::string_view name;
  std::string_view version;         // empty: none
  bool is_default_version = false;  // name@@version
  bool is_defined = false;
  bool is_absolute = false;
  uint8_t type = 0;        // STT_*
  uint8_t binding = 0;     // STB_*
  uint8_t visibility = 0;  // STV_*

  // name, name@version or name@@version, as readelf writes it: a version's own mark has no version.
  [[nodiscard]] std::string spelled() const {
    std::string text(name);
    if (!version.empty() && version != name)
      text.append(is_defined && is_default_version ? "@@" : "@").append(version);
    return text;
  }
};

struct Relocations {
  uint64_t count = 0;              // DT_RELA, DT_REL and DT_JMPREL together
  uint64_t initial_exec = 0;       // TPOFF64, TPREL: a place in the static TLS block
  uint64_t tls_module = 0;         // DTPMOD: the classic general-dynamic model
  uint64_t tls_descriptors = 0;    // TLSDESC
  uint64_t irelative = 0;          // resolved by running code of this file
  uint64_t packed_size_bytes = 0;  // DT_RELRSZ
};

struct UsdtProbe {
  std::string_view provider;
  std::string_view name;
  std::string_view arguments;
  uint64_t site = 0;
  uint64_t semaphore = 0;  // 0: none
  bool is_site_code = false;
  std::string_view semaphore_section;
};

enum class Kind { kLibrary, kExecutable };
enum class Stack { kNoHeader, kExecutable, kPlain };
enum class Relro { kNone, kPartial, kFull };

struct Facts {
  std::string_view machine;  // x86-64 or aarch64
  Kind kind = Kind::kLibrary;
  uint8_t os_abi = 0;
  uint8_t abi_version = 0;
  uint32_t elf_version = 0;        // e_version
  bool has_ident_padding = false;  // e_ident ends in bytes other than 0
  bool is_dynamic = false;
  std::string_view interpreter;  // empty: none

  std::optional<std::string_view> soname;
  std::vector<std::string_view> needed;
  std::vector<Filtee> filtees;
  std::optional<std::string_view> rpath;    // DT_RPATH as it is, entries between colons
  std::optional<std::string_view> runpath;  // DT_RUNPATH
  uint64_t flags = 0;                       // DT_FLAGS
  uint64_t flags_1 = 0;                     // DT_FLAGS_1
  bool has_textrel = false;
  bool has_gnu_hash = false;
  bool has_sysv_hash = false;

  std::vector<VersionNeed> version_needs;
  std::vector<std::string_view> version_definitions;  // without the base, which is the SONAME
  std::vector<Symbol> symbols;

  Relocations relocations;
  bool has_tls_segment = false;
  uint64_t tls_size_bytes = 0;

  Stack stack = Stack::kNoHeader;
  Relro relro = Relro::kNone;
  uint64_t load_align_bytes = 0;  // least p_align of a PT_LOAD

  std::string build_id;           // hex, empty: none
  uint32_t x86_isa_needed = 0;    // GNU_PROPERTY_X86_ISA_1_NEEDED
  uint32_t machine_features = 0;  // GNU_PROPERTY_X86_FEATURE_1_AND or _AARCH64_FEATURE_1_AND
  std::vector<UsdtProbe> probes;
};

// Symbols that other files can bind to.
[[nodiscard]] bool is_export(const Symbol& symbol);
// A reference that must be found, under that name alone.
[[nodiscard]] bool is_unversioned_import(const Symbol& symbol);

}  // namespace gpuprof::elfgate
