// SPDX-License-Identifier: Apache-2.0
//
// A file that somebody has elfgate look at: all its facts, every check, both forms of the report.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tools/elfgate/checks.h"
#include "tools/elfgate/read_facts.h"
#include "tools/elfgate/report.h"

namespace {

using namespace gpuprof::elfgate;

// Asks for the contrary of what most files are, so that lines are written.
const Policy& policy() {
  static const Policy made = [] {
    Policy all;
    const Status added =
        add_policy_text(all,
                        "machine aarch64\nkind executable\nos-abi none\ninterpreter /x\n"
                        "soname x\nmax-version GLIBC 2.0\nunlisted-versions forbid\n"
                        "allow-needed none\nrpath forbid\nrunpath-first /x\n"
                        "runpath-relative forbid\nexports none\nunique-exports forbid\n"
                        "deny-import a*\ncxx-runtime forbid\nifunc forbid\n"
                        "textrel forbid\nexec-stack forbid\nrelro full\n"
                        "static-tls forbid\ntls-descriptors forbid\n"
                        "packed-relocations forbid\nnodelete require\nsysv-hash require\n"
                        "min-load-align 65536\nbuild-id require\nmax-isa-level 1\n"
                        "ibt require\nbti require\nusdt-provider gpu_profiled\n"
                        "usdt-probe gpu_profiled exec_v1 8@%rax\nusdt-semaphores .data\n"
                        "usdt-duplicates forbid\n",
                        "fuzz", ".");
    if (!added) std::abort();
    return all;
  }();
  return made;
}

int expect_one_line(const std::string& text) {
  if (text.find('\n') != std::string::npos) std::abort();
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto image = ElfImage::from_memory({data, size});
  if (!image) return expect_one_line(image.error());
  const auto facts = read_facts(*image);
  if (!facts) return expect_one_line(facts.error());
  for (const Violation& found : check_file(*facts, policy(), "seed.so")) {
    // One line a violation, whatever the file's names hold.
    expect_one_line(violation_line("seed.so", found));
  }
  return expect_one_line(facts_json("seed.so", *facts));
}
