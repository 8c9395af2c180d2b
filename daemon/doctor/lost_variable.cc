// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/lost_variable.h"

#include <algorithm>
#include <string>

#include "daemon/target/process.h"

namespace gpuprof::doctor {
namespace {

constexpr size_t kMostAncestors = 64;

// Programs that start others with an environment of their own making, and how to have them pass a
// variable on; $ stands for its name. Names as the kernel has them, 15 bytes at most.
struct Starter {
  std::string_view comm;  // the beginning of it
  std::string_view remedy;
};
constexpr Starter kStarters[] = {
    {"sudo", "sudo --preserve-env=$"},
    {"su", "su --whitelist-environment=$, or su -m"},
    {"runuser", "runuser --whitelist-environment=$"},
    {"doas", "setenv { $ } in doas.conf"},
    {"slurmstepd", "srun --export=ALL,$=PATH"},
    {"ray::", "runtime_env={\"env_vars\": {\"$\": PATH}}"},
    {"raylet", "runtime_env={\"env_vars\": {\"$\": PATH}}"},
    {"orted", "mpirun -x $"},
    {"prted", "mpirun -x $"},
    {"hydra_pmi_proxy", "mpiexec -envlist $"},
    {"pbs_mom", "qsub -v $=PATH"},
    {"sge_shepherd", "qsub -v $=PATH"},
    {"condor_starter", "environment = \"$=PATH\" in the submit file"},
    {"sshd", "ssh HOST env $=PATH COMMAND"},
    {"cron", "a line $=PATH in the crontab"},
    {"containerd-shim",
     "the variable in the container's own environment (docker run -e, env: of a pod)"},
    {"conmon", "the variable in the container's own environment (podman run -e, env: of a pod)"},
    {"env", "env without -i"},
};

// "su" is no prefix of a name; the others have suffixes in real life ("cron" is "crond", too).
const Starter* starter_of(std::string_view comm) {
  const auto* const found = std::ranges::find_if(kStarters, [&](const Starter& starter) {
    const bool whole = starter.comm == "su" || starter.comm == "env" || starter.comm == "sudo";
    return whole ? comm == starter.comm : comm.starts_with(starter.comm);
  });
  return found == std::end(kStarters) ? nullptr : found;
}

std::string remedy_of_starter(const Starter& starter, std::string_view variable) {
  std::string out(starter.remedy);
  if (const size_t at = out.find('$'); at != std::string::npos) out.replace(at, 1, variable);
  return out;
}

std::string named(const Ancestor& process) {
  return process.comm + " (process " + std::to_string(process.pid) + ")";
}

}  // namespace

std::vector<Ancestor> ancestors(uint32_t pid, std::string_view variable) {
  std::vector<Ancestor> out;
  auto stat = target::process_stat(pid);
  while (stat && stat->parent != 0 && out.size() < kMostAncestors) {
    const uint32_t parent = stat->parent;
    stat = target::process_stat(parent);
    if (!stat) break;
    const auto value = target::environment_value(parent, variable);
    out.push_back({parent, stat->comm, value && value->has_value()});
  }
  return out;
}

std::string explain_loss(std::span<const Ancestor> above, std::string_view variable) {
  const auto holder = std::ranges::find_if(above, &Ancestor::has_variable);
  const std::string name(variable);
  if (holder != above.end()) {
    const Starter* const starter = starter_of(holder->comm);
    const std::string who = named(*holder);
    if (starter != nullptr)
      return who + " was started with it and does not pass it on: " +
             remedy_of_starter(*starter, variable);
    return who + ", above it, was started with it: see what lies between them";
  }
  for (const Ancestor& process : above) {
    const Starter* const starter = starter_of(process.comm);
    if (starter != nullptr)
      return "under " + named(process) + " it is set by " + remedy_of_starter(*starter, variable);
  }
  return {};
}

}  // namespace gpuprof::doctor
