// SPDX-License-Identifier: Apache-2.0
//
// What of a file breaks a policy, and what it will break in a target.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/elfgate/facts.h"
#include "tools/elfgate/policy.h"

namespace gpuprof::elfgate {

struct Violation {
  std::string_view check;  // one of check_names()
  std::string what;
  std::string where;
  std::string why;   // it breaks a target
  std::string mend;  // how to
};

// Collects the violations of one file, but not of checks that are off or that it is exempt from.
class Findings {
 public:
  // More of one check are counted in one line: no list of 50,000 exports.
  static constexpr size_t kMaxOfOneCheck = 20;

  Findings(const Policy& policy, const Facts& facts, std::string_view file_name);

  [[nodiscard]] bool wants(std::string_view check) const;
  void add(Violation violation);
  [[nodiscard]] std::vector<Violation> take();

 private:
  std::vector<std::string_view> unwanted_;
  std::vector<Violation> violations_;
  std::map<std::string_view, size_t> counts_;  // by check, kept or not
};

// `file_name` without its directory.
[[nodiscard]] std::vector<Violation> check_file(const Facts& facts, const Policy& policy,
                                                std::string_view file_name);

// The groups of checks, for check_file.
void check_object(const Facts& facts, const Policy& policy, Findings& findings);
void check_versions(const Facts& facts, const Policy& policy, Findings& findings);
void check_libraries(const Facts& facts, const Policy& policy, Findings& findings);
void check_run_path(const Facts& facts, const Policy& policy, Findings& findings);
void check_symbols(const Facts& facts, const Policy& policy, Findings& findings);
void check_loading(const Facts& facts, const Policy& policy, Findings& findings);
void check_tls(const Facts& facts, const Policy& policy, Findings& findings);
void check_features(const Facts& facts, const Policy& policy, Findings& findings);
void check_probes(const Facts& facts, const Policy& policy, Findings& findings);

// Whether a mangled or plain name belongs to the C++ runtime: std::, __cxxabiv1::, __gnu_cxx::,
// __cxa_*, operator new and delete, and tables, thunks and type information of these. libc's own
// __cxa_atexit and its kin do not.
[[nodiscard]] bool is_cxx_runtime_name(std::string_view name);

}  // namespace gpuprof::elfgate
