// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/report.h"

#include <elf.h>

#include "tools/elfgate/json.h"

namespace gpuprof::elfgate {
namespace {

std::string_view binding_name(uint8_t binding) {
  switch (binding) {
    case STB_GLOBAL:
      return "global";
    case STB_WEAK:
      return "weak";
    case STB_GNU_UNIQUE:
      return "unique";
    default:
      return "other";
  }
}

std::string_view type_name(uint8_t type) {
  switch (type) {
    case STT_FUNC:
      return "function";
    case STT_GNU_IFUNC:
      return "ifunc";
    case STT_OBJECT:
      return "object";
    case STT_TLS:
      return "tls";
    default:
      return "other";
  }
}

std::string_view stack_name(Stack stack) {
  return stack == Stack::kPlain        ? "plain"
         : stack == Stack::kExecutable ? "executable"
                                       : "no-header";
}

std::string_view relro_name(Relro relro) {
  return relro == Relro::kFull ? "full" : relro == Relro::kPartial ? "partial" : "none";
}

template <class Texts>
void texts(Json& json, std::string_view key, const Texts& values) {
  json.key(key).open('[');
  for (const std::string_view value : values) json.text(value);
  json.close(']');
}

void optional_text(Json& json, std::string_view key, const std::optional<std::string_view>& value) {
  json.key(key);
  if (value) {
    json.text(*value);
  } else {
    json.null();
  }
}

void write_object(Json& json, const Facts& facts) {
  json.key("machine").text(facts.machine);
  json.key("kind").text(facts.kind == Kind::kLibrary ? "library" : "executable");
  json.key("os_abi").number(facts.os_abi).key("abi_version").number(facts.abi_version);
  json.key("elf_version").number(facts.elf_version);
  json.key("ident_padding").truth(facts.has_ident_padding);
  json.key("dynamic").truth(facts.is_dynamic);
  json.key("interpreter").text(facts.interpreter);
  optional_text(json, "soname", facts.soname);
  texts(json, "needed", facts.needed);
  json.key("filtees").open('[');
  for (const Filtee& filtee : facts.filtees) {
    json.open('{').key("tag").text(filtee.tag).key("name").text(filtee.name).close('}');
  }
  json.close(']');
  optional_text(json, "rpath", facts.rpath);
  optional_text(json, "runpath", facts.runpath);
}

void write_versions(Json& json, const Facts& facts) {
  json.key("version_needs").open('[');
  for (const VersionNeed& need : facts.version_needs) {
    json.open('{').key("file").text(need.file).key("name").text(need.name);
    json.key("weak").truth(need.is_weak).key("symbol_count").number(need.symbol_count);
    json.key("strong_symbol_count").number(need.strong_symbol_count);
    texts(json, "symbols", need.symbols);
    json.close('}');
  }
  json.close(']');
  texts(json, "version_definitions", facts.version_definitions);
}

void write_symbols(Json& json, const Facts& facts) {
  json.key("exports").open('[');
  for (const Symbol& symbol : facts.symbols) {
    if (!is_export(symbol)) continue;
    json.open('{').key("name").text(symbol.spelled());
    json.key("binding").text(binding_name(symbol.binding));
    json.key("type").text(type_name(symbol.type)).close('}');
  }
  json.close(']').key("imports").open('[');
  for (const Symbol& symbol : facts.symbols) {
    if (!symbol.is_defined && !symbol.name.empty()) json.text(symbol.spelled());
  }
  json.close(']').key("unversioned_imports").open('[');
  for (const Symbol& symbol : facts.symbols) {
    if (is_unversioned_import(symbol)) json.text(symbol.name);
  }
  json.close(']');
}

void write_loading(Json& json, const Facts& facts) {
  const Relocations& relocations = facts.relocations;
  json.key("tls").open('{');
  json.key("segment").truth(facts.has_tls_segment).key("size_bytes").number(facts.tls_size_bytes);
  json.key("static").truth((facts.flags & DF_STATIC_TLS) != 0);
  json.key("initial_exec").number(relocations.initial_exec);
  json.key("module").number(relocations.tls_module);
  json.key("descriptors").number(relocations.tls_descriptors).close('}');
  json.key("relocations").number(relocations.count);
  json.key("irelative").number(relocations.irelative);
  json.key("packed_relocation_bytes").number(relocations.packed_size_bytes);
  json.key("textrel").truth(facts.has_textrel);
  json.key("stack").text(stack_name(facts.stack));
  json.key("relro").text(relro_name(facts.relro));
  json.key("nodelete").truth((facts.flags_1 & DF_1_NODELETE) != 0);
  json.key("gnu_hash").truth(facts.has_gnu_hash).key("sysv_hash").truth(facts.has_sysv_hash);
  json.key("load_align_bytes").number(facts.load_align_bytes);
}

void write_notes(Json& json, const Facts& facts) {
  json.key("build_id").text(facts.build_id);
  json.key("x86_isa_needed").number(facts.x86_isa_needed);
  json.key("machine_features").number(facts.machine_features);
  json.key("probes").open('[');
  for (const UsdtProbe& probe : facts.probes) {
    json.open('{').key("provider").text(probe.provider).key("name").text(probe.name);
    json.key("arguments").text(probe.arguments).key("site").number(probe.site);
    json.key("semaphore").number(probe.semaphore);
    json.key("semaphore_section").text(probe.semaphore_section).close('}');
  }
  json.close(']');
}

}  // namespace

std::string violation_line(std::string_view file, const Violation& violation) {
  std::string line = printable(file);
  line.append(": ").append(violation.check).append(": ").append(printable(violation.what));
  line.append(" (").append(printable(violation.where)).append("): ");
  return line.append(violation.why).append("; mend: ").append(printable(violation.mend));
}

std::string check_json(std::string_view file, std::span<const Violation> violations) {
  Json json;
  json.open('{').key("file").text(file).key("violations").open('[');
  for (const Violation& violation : violations) {
    json.open('{').key("check").text(violation.check).key("what").text(violation.what);
    json.key("where").text(violation.where).key("why").text(violation.why);
    json.key("mend").text(violation.mend).close('}');
  }
  return json.close(']').close('}').take();
}

std::string error_json(std::string_view file, std::string_view error) {
  Json json;
  return json.open('{').key("file").text(file).key("error").text(error).close('}').take();
}

std::string facts_json(std::string_view file, const Facts& facts) {
  Json json;
  json.open('{').key("file").text(file);
  write_object(json, facts);
  write_versions(json, facts);
  write_symbols(json, facts);
  write_loading(json, facts);
  write_notes(json, facts);
  return json.close('}').take();
}

}  // namespace gpuprof::elfgate
