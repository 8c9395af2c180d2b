// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/identity.h"

#include <algorithm>
#include <array>

#include "daemon/target/cgroup.h"
#include "daemon/target/process.h"

namespace gpuprof::target {

std::string rank_of(std::string_view value) {
  constexpr size_t kMostDigits = 7;
  const bool is_number = !value.empty() && value.size() <= kMostDigits &&
                         std::ranges::all_of(value, [](char c) { return c >= '0' && c <= '9'; }) &&
                         (value.size() == 1 || value.front() != '0');
  return is_number ? std::string(value) : std::string();
}

Identity identity_of(ProcessId process) {
  const uint32_t pid = process.pid;
  Identity out;
  if (const auto inner = innermost_pid(pid); inner && *inner != pid) out.ns_pid = *inner;
  if (const auto cgroup = cgroup_text(pid)) out.container = parse_cgroup(*cgroup);
  const std::array<std::string_view, 2> names = {"RANK", "LOCAL_RANK"};
  if (const auto values = environment_values(pid, names)) {
    out.rank = rank_of((*values)[0].value_or(""));
    out.local_rank = rank_of((*values)[1].value_or(""));
  }
  // One that has gone meanwhile said all this; another one of its number did not.
  if (const auto now = process_id(pid); now && *now != process.process()) return {};
  return out;
}

std::vector<std::pair<std::string, std::string>> Identity::labels() const {
  std::vector<std::pair<std::string, std::string>> out;
  const auto put = [&](const char* key, const std::string& text) {
    if (!text.empty()) out.emplace_back(key, text);
  };
  if (ns_pid != 0) put("ns_pid", std::to_string(ns_pid));
  put("container_id", container.id);
  put("pod_uid", container.pod_uid);
  put("rank", rank);
  put("local_rank", local_rank);
  return out;
}

}  // namespace gpuprof::target
