// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/checks.h"

#include <algorithm>
#include <utility>

namespace gpuprof::elfgate {

Findings::Findings(const Policy& policy, const Facts& facts, std::string_view file_name) {
  unwanted_.assign(policy.off.begin(), policy.off.end());
  for (const Exemption& exemption : policy.exemptions) {
    if (matches(exemption.glob, file_name) ||
        (facts.soname && matches(exemption.glob, *facts.soname))) {
      unwanted_.push_back(exemption.check);
    }
  }
}

bool Findings::wants(std::string_view check) const {
  return std::find(unwanted_.begin(), unwanted_.end(), check) == unwanted_.end();
}

void Findings::add(Violation violation) {
  if (!wants(violation.check)) return;
  if (++counts_[violation.check] <= kMaxOfOneCheck) violations_.push_back(std::move(violation));
}

std::vector<Violation> Findings::take() {
  for (const auto& [check, count] : counts_) {
    if (count <= kMaxOfOneCheck) continue;
    violations_.push_back({check, std::to_string(count - kMaxOfOneCheck) + " more of the same kind",
                           "not listed", "each as those above", "mend those above and look again"});
  }
  counts_.clear();
  return std::exchange(violations_, {});
}

std::vector<Violation> check_file(const Facts& facts, const Policy& policy,
                                  std::string_view file_name) {
  Findings findings(policy, facts, file_name);
  check_object(facts, policy, findings);
  check_versions(facts, policy, findings);
  check_libraries(facts, policy, findings);
  check_run_path(facts, policy, findings);
  check_symbols(facts, policy, findings);
  check_loading(facts, policy, findings);
  check_tls(facts, policy, findings);
  check_features(facts, policy, findings);
  check_probes(facts, policy, findings);
  return findings.take();
}

}  // namespace gpuprof::elfgate
