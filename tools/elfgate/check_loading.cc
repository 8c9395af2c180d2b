// SPDX-License-Identifier: Apache-2.0
//
// How the file is mapped and relocated.
#include <elf.h>

#include <string>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

void check_mapping(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.textrel == Rule::kForbid && facts.has_textrel) {
    findings.add(
        {"textrel", "has relocations in read-only segments", "DT_TEXTREL",
         "SELinux and hardened kernels refuse to make code writable: the file does not load",
         "compile everything in it with -fPIC, assembly too; link with -Wl,-z,text to find it"});
  }
  if (policy.executable_stack == Rule::kForbid && facts.stack != Stack::kPlain) {
    const bool is_said = facts.stack == Stack::kExecutable;
    findings.add(
        {"exec-stack",
         is_said ? "asks for an executable stack" : "does not say that its stack is not executable",
         is_said ? "PT_GNU_STACK" : "PT_GNU_STACK is missing",
         "glibc from 2.41 on and SELinux refuse to dlopen it; others make all stacks executable",
         "add .section .note.GNU-stack,\"\",%progbits to assembly; link with -Wl,-z,noexecstack"});
  }
  if (policy.relro) {
    const Relro least = *policy.relro == "full" ? Relro::kFull : Relro::kPartial;
    if (facts.relro < least) {
      const bool has_some = facts.relro == Relro::kPartial;
      findings.add(
          {"relro",
           has_some ? "binds lazily, so that its relocations stay writable" : "has no PT_GNU_RELRO",
           has_some ? "neither DF_BIND_NOW nor DF_1_NOW" : "the program headers",
           "its function pointers can be overwritten in the target; a missing symbol ends it at "
           "the first call",
           has_some ? "link with -Wl,-z,now" : "link with -Wl,-z,relro -Wl,-z,now"});
    }
  }
  if (facts.load_align_bytes < policy.min_load_align_bytes) {
    findings.add({"load-align",
                  "segments are aligned to " + std::to_string(facts.load_align_bytes) +
                      " bytes, not " + std::to_string(policy.min_load_align_bytes),
                  "PT_LOAD",
                  "a kernel with larger pages (64 KiB on many aarch64 servers) cannot map it",
                  "link with -Wl,-z,max-page-size=" + std::to_string(policy.min_load_align_bytes)});
  }
}

struct HashTable {
  std::string tag;
  std::string why_required;
  std::string mend_missing;
  std::string mend_present;
};

void check_hash(Rule rule, bool has, const HashTable& table, Findings& findings) {
  if (rule == Rule::kRequire && !has) {
    findings.add(
        {"hash", "has no " + table.tag, "PT_DYNAMIC", table.why_required, table.mend_missing});
  } else if (rule == Rule::kForbid && has) {
    findings.add({"hash", "has " + table.tag, "PT_DYNAMIC", "the policy has no use for it",
                  table.mend_present});
  }
}

}  // namespace

void check_loading(const Facts& facts, const Policy& policy, Findings& findings) {
  check_mapping(facts, policy, findings);
  check_hash(policy.gnu_hash, facts.has_gnu_hash,
             {"DT_GNU_HASH", "loaders look its symbols up slowly, and some only know this table",
              "link with -Wl,--hash-style=gnu or both", "link with -Wl,--hash-style=sysv"},
             findings);
  check_hash(policy.sysv_hash, facts.has_sysv_hash,
             {"DT_HASH", "tools and loaders that know only this table find no symbol",
              "link with -Wl,--hash-style=both", "link with -Wl,--hash-style=gnu"},
             findings);
  if (policy.packed_relocations == Rule::kForbid && facts.relocations.packed_size_bytes != 0) {
    findings.add({"packed-relocations",
                  "has " + std::to_string(facts.relocations.packed_size_bytes) +
                      " bytes of packed relocations",
                  "DT_RELR",
                  "glibc before 2.36 leaves them out, and the first use of a pointer crashes",
                  "link with -Wl,-z,nopack-relative-relocs (lld: --pack-dyn-relocs=none)"});
  }
  const bool stays = (facts.flags_1 & DF_1_NODELETE) != 0;
  if (policy.nodelete == Rule::kRequire && !stays) {
    findings.add({"nodelete", "can be unloaded", "DF_1_NODELETE is not set",
                  "after dlclose its threads and handlers run in unmapped code",
                  "link with -Wl,-z,nodelete"});
  } else if (policy.nodelete == Rule::kForbid && stays) {
    findings.add({"nodelete", "cannot be unloaded", "DF_1_NODELETE",
                  "dlclose does not give its memory back", "link without -Wl,-z,nodelete"});
  }
  if (policy.build_id == Rule::kRequire && facts.build_id.empty()) {
    findings.add({"build-id", "has no build id", "NT_GNU_BUILD_ID",
                  "symbols and reports from a target cannot be told to belong to it",
                  "link with -Wl,--build-id=sha1"});
  } else if (policy.build_id == Rule::kForbid && !facts.build_id.empty()) {
    findings.add({"build-id", "has the build id " + facts.build_id, "NT_GNU_BUILD_ID",
                  "the policy wants files without one", "link with -Wl,--build-id=none"});
  }
}

void check_tls(const Facts& facts, const Policy& policy, Findings& findings) {
  const Relocations& relocations = facts.relocations;
  // A program's variables are in the static block in any case.
  if (policy.static_tls == Rule::kForbid && facts.kind == Kind::kLibrary) {
    const bool has_flag = (facts.flags & DF_STATIC_TLS) != 0;
    if (has_flag || relocations.initial_exec != 0) {
      std::string where = has_flag ? "DF_STATIC_TLS" : "";
      if (relocations.initial_exec != 0) {
        where += (has_flag ? ", " : "") + std::to_string(relocations.initial_exec) +
                 " initial-exec relocations";
      }
      findings.add({"static-tls", "its thread-local variables must lie in the static TLS block",
                    where,
                    "dlopen fails where others have used that block up: cannot allocate memory in "
                    "static TLS block",
                    "compile with -fPIC and without -ftls-model=initial-exec or local-exec"});
    }
  }
  if (policy.tls_descriptors == Rule::kForbid && relocations.tls_descriptors != 0) {
    findings.add({"tls-descriptors", "uses TLS descriptors",
                  std::to_string(relocations.tls_descriptors) + " TLSDESC relocations",
                  "their resolvers clobbered registers in glibc before 2.40, newer linkers demand "
                  "GLIBC_ABI_GNU2_TLS for them, and musl's differ",
                  "compile with -mtls-dialect=gnu (x86) or trad (aarch64)"});
  }
}

}  // namespace gpuprof::elfgate
