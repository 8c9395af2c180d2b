// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/read_facts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tools/elfgate/dynamic_section.h"
#include "tools/elfgate/notes.h"
#include "tools/elfgate/symbol_versions.h"
#include "tools/elfgate/symbols.h"

namespace gpuprof::elfgate {
namespace {

Status read_segments(const ElfImage& image, Facts& facts) {
  for (const GElf_Phdr& segment : image.segments()) {
    switch (segment.p_type) {
      case PT_LOAD:
        if (facts.load_align_bytes == 0 || segment.p_align < facts.load_align_bytes) {
          facts.load_align_bytes = segment.p_align;
        }
        break;
      case PT_TLS:
        facts.has_tls_segment = true;
        facts.tls_size_bytes = segment.p_memsz;
        break;
      case PT_GNU_STACK:
        facts.stack = (segment.p_flags & PF_X) != 0 ? Stack::kExecutable : Stack::kPlain;
        break;
      case PT_GNU_RELRO:
        facts.relro = Relro::kPartial;
        break;
      case PT_INTERP: {
        const auto bytes = image.at_offset(segment.p_offset, segment.p_filesz, "PT_INTERP");
        if (!bytes) return fail(bytes.error());
        facts.interpreter = {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
        facts.interpreter = facts.interpreter.substr(0, facts.interpreter.find('\0'));
        break;
      }
      default:
        break;
    }
  }
  return {};
}

void read_identification(const GElf_Ehdr& header, Facts& facts) {
  facts.os_abi = header.e_ident[EI_OSABI];
  facts.abi_version = header.e_ident[EI_ABIVERSION];
  facts.elf_version = header.e_version;
  facts.has_ident_padding = std::any_of(std::begin(header.e_ident) + EI_PAD,
                                        std::end(header.e_ident), [](auto byte) { return byte; });
}

Status read_entry(const DynamicSection& dynamic, const Elf64_Dyn& entry, Facts& facts) {
  switch (entry.d_tag) {
    case DT_NEEDED: {
      const auto name = dynamic.string_at(entry.d_un.d_val, "a name in DT_NEEDED");
      if (!name) return fail(name.error());
      facts.needed.push_back(*name);
      break;
    }
    case DT_FILTER:
    case DT_AUXILIARY: {
      const auto name = dynamic.string_at(entry.d_un.d_val, "a name in DT_FILTER or DT_AUXILIARY");
      if (!name) return fail(name.error());
      facts.filtees.push_back({entry.d_tag == DT_FILTER ? "DT_FILTER" : "DT_AUXILIARY", *name});
      break;
    }
    case DT_SONAME:
    case DT_RPATH:
    case DT_RUNPATH: {
      const auto text = dynamic.string_at(entry.d_un.d_val, "DT_SONAME, DT_RPATH or DT_RUNPATH");
      if (!text) return fail(text.error());
      (entry.d_tag == DT_SONAME  ? facts.soname
       : entry.d_tag == DT_RPATH ? facts.rpath
                                 : facts.runpath) = *text;
      break;
    }
    case DT_FLAGS:
      facts.flags = entry.d_un.d_val;
      break;
    case DT_FLAGS_1:
      facts.flags_1 = entry.d_un.d_val;
      break;
    case DT_TEXTREL:
      facts.has_textrel = true;
      break;
    case DT_GNU_HASH:
      facts.has_gnu_hash = true;
      break;
    case DT_HASH:
      facts.has_sysv_hash = true;
      break;
    default:
      break;
  }
  return {};
}

void settle(const ElfImage& image, const DynamicSection& dynamic, Facts& facts) {
  facts.has_textrel |= (facts.flags & DF_TEXTREL) != 0;
  const bool binds_now = dynamic.value(DT_BIND_NOW) || (facts.flags & DF_BIND_NOW) != 0 ||
                         (facts.flags_1 & DF_1_NOW) != 0;
  if (facts.relro == Relro::kPartial && binds_now) facts.relro = Relro::kFull;
  // A PIE without DF_1_PIE (old linkers) has an interpreter; so do libraries that print something
  // when they are run (libc.so.6), but those have a SONAME.
  const bool is_program = image.header().e_type == ET_EXEC || (facts.flags_1 & DF_1_PIE) != 0 ||
                          (!facts.interpreter.empty() && !facts.soname);
  facts.kind = is_program ? Kind::kExecutable : Kind::kLibrary;
}

}  // namespace

bool is_export(const Symbol& symbol) {
  return symbol.is_defined && symbol.binding != STB_LOCAL && symbol.visibility != STV_HIDDEN &&
         symbol.visibility != STV_INTERNAL;
}

bool is_unversioned_import(const Symbol& symbol) {
  return !symbol.is_defined && !symbol.name.empty() && symbol.version.empty() &&
         symbol.binding != STB_LOCAL && symbol.binding != STB_WEAK;
}

Result<Facts> read_facts(const ElfImage& image) {
  Facts facts;
  facts.machine = image.header().e_machine == EM_X86_64 ? "x86-64" : "aarch64";
  read_identification(image.header(), facts);
  if (Status read = read_segments(image, facts); !read) return fail(read.error());
  const auto dynamic = DynamicSection::read(image);
  if (!dynamic) return fail(dynamic.error());
  facts.is_dynamic = dynamic->is_present();
  for (const Elf64_Dyn& entry : dynamic->entries()) {
    if (Status read = read_entry(*dynamic, entry, facts); !read) return fail(read.error());
  }
  settle(image, *dynamic, facts);
  auto versions = SymbolVersions::read(image, *dynamic);
  if (!versions) return fail(versions.error());
  uint64_t highest_symbol = 0;
  const auto relocations = read_relocations(image, *dynamic, highest_symbol);
  if (!relocations) return fail(relocations.error());
  facts.relocations = *relocations;
  auto symbols = read_symbols(image, *dynamic, highest_symbol, *versions);
  if (!symbols) return fail(symbols.error());
  facts.symbols = std::move(*symbols);
  facts.version_needs = std::move(versions->needs);
  facts.version_definitions = std::move(versions->definitions);
  if (Status read = read_notes(image, facts); !read) return fail(read.error());
  return facts;
}

}  // namespace gpuprof::elfgate
