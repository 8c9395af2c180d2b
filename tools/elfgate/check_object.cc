// SPDX-License-Identifier: Apache-2.0
//
// For which machine and in which role a file can be used at all.
#include <elf.h>

#include <bit>
#include <string>
#include <utility>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

constexpr std::string_view kProperty = "NT_GNU_PROPERTY_TYPE_0";

struct Feature {
  std::string_view check;
  std::string_view machine;
  std::string_view name;
  uint32_t bit;
  Rule Policy::*rule;
  std::string_view flag;
};

constexpr Feature kFeatures[] = {
    {"cet", "x86-64", "IBT", GNU_PROPERTY_X86_FEATURE_1_IBT, &Policy::ibt,
     "-fcf-protection=branch"},
    {"cet", "x86-64", "SHSTK", GNU_PROPERTY_X86_FEATURE_1_SHSTK, &Policy::shstk,
     "-fcf-protection=return"},
    {"bti-pac", "aarch64", "BTI", GNU_PROPERTY_AARCH64_FEATURE_1_BTI, &Policy::bti,
     "-mbranch-protection=bti"},
    {"bti-pac", "aarch64", "PAC", GNU_PROPERTY_AARCH64_FEATURE_1_PAC, &Policy::pac,
     "-mbranch-protection=pac-ret"},
};

void check_feature(const Facts& facts, const Policy& policy, const Feature& feature,
                   Findings& findings) {
  if (facts.machine != feature.machine) return;
  const bool has = (facts.machine_features & feature.bit) != 0;
  const Rule rule = policy.*feature.rule;
  if (rule == Rule::kRequire && !has) {
    findings.add({feature.check, "is not marked for " + std::string(feature.name),
                  std::string(kProperty),
                  "a process that loads it loses the protection, or, where that is enforced, "
                  "refuses the file",
                  "compile and assemble everything in it with " + std::string(feature.flag)});
  } else if (rule == Rule::kForbid && has) {
    findings.add({feature.check, "is marked for " + std::string(feature.name),
                  std::string(kProperty),
                  "code in it that is not made for that faults once a target enforces it",
                  "compile without " + std::string(feature.flag)});
  }
}

void check_os_abi(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!policy.os_abi) return;
  const bool is_fine =
      facts.os_abi == ELFOSABI_NONE || (*policy.os_abi == "gnu" && facts.os_abi == ELFOSABI_GNU);
  if (is_fine) return;
  findings.add({"os-abi", "OS ABI is " + std::to_string(facts.os_abi) + ", not " + *policy.os_abi,
                "EI_OSABI", "loaders that do not know it refuse the file",
                "leave out what sets it: IFUNC and unique symbols, or another OS's linker"});
}

// What glibc's loader compares before it looks at anything else (elf/dl-load.c, open_verify).
void check_identification(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!policy.os_abi) return;
  const auto add = [&findings](std::string what, std::string where, const char* error) {
    findings.add({"os-abi", std::move(what), std::move(where),
                  std::string("glibc refuses the file: ") + error,
                  "link with a linker for GNU/Linux"});
  };
  if (facts.abi_version != 0) {
    add("the ABI version is " + std::to_string(facts.abi_version) + ", not 0", "EI_ABIVERSION",
        "ELF file ABI version invalid");
  }
  if (facts.elf_version != EV_CURRENT) {
    add("the ELF version is " + std::to_string(facts.elf_version) + ", not 1", "e_version",
        "ELF file version does not match current one");
  }
  if (facts.has_ident_padding) {
    add("the identification's padding is not 0", "EI_PAD", "nonzero padding in e_ident");
  }
}

}  // namespace

void check_object(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.machine && facts.machine != *policy.machine) {
    findings.add(
        {"machine", "is made for " + std::string(facts.machine) + ", not " + *policy.machine,
         "e_machine", "no loader of another machine takes it", "build for " + *policy.machine});
  }
  if (policy.kind) {
    const std::string is = facts.kind == Kind::kLibrary ? "library" : "executable";
    if (is != *policy.kind) {
      findings.add(
          {"kind", "is made as " + is + ", not " + *policy.kind, "e_type, DF_1_PIE and PT_INTERP",
           is == "executable" ? "dlopen refuses programs" : "it has no entry point to start at",
           is == "executable" ? "link with -shared" : "link without -shared"});
    } else if (is == "library" && (facts.flags_1 & DF_1_NOOPEN) != 0) {
      findings.add({"kind", "may not be dlopened", "DF_1_NOOPEN", "dlopen refuses it",
                    "link without -Wl,-z,nodlopen"});
    }
  }
  check_os_abi(facts, policy, findings);
  check_identification(facts, policy, findings);
}

void check_features(const Facts& facts, const Policy& policy, Findings& findings) {
  for (const Feature& feature : kFeatures) check_feature(facts, policy, feature, findings);
  // One bit a level, from x86-64-v1 on; those below the highest may be left out.
  const auto level = static_cast<uint32_t>(std::bit_width(facts.x86_isa_needed));
  if (policy.max_isa_level != 0 && level > policy.max_isa_level) {
    findings.add({"isa-level",
                  "needs x86-64-v" + std::to_string(level) + ", more than v" +
                      std::to_string(policy.max_isa_level),
                  "GNU_PROPERTY_X86_ISA_1_NEEDED",
                  "glibc refuses it on a CPU below: CPU ISA level is lower than required",
                  "compile with -march=x86-64" +
                      (policy.max_isa_level == 1 ? std::string()
                                                 : "-v" + std::to_string(policy.max_isa_level))});
  }
}

}  // namespace gpuprof::elfgate
