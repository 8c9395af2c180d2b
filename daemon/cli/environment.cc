// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/environment.h"

#include <unistd.h>

#include <algorithm>

namespace gpuprof::cli {
namespace {

bool names(const std::string& entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
}

}  // namespace

Environment Environment::current() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return Environment(std::move(entries));
}

const std::string* Environment::find(std::string_view name) const {
  for (const std::string& entry : entries_) {
    if (names(entry, name)) return &entry;
  }
  return nullptr;
}

std::string Environment::value(std::string_view name) const {
  const std::string* entry = find(name);
  return entry == nullptr ? std::string() : entry->substr(name.size() + 1);
}

void Environment::set(std::string_view name, std::string_view value) {
  unset(name);
  entries_.push_back(std::string(name) + "=" + std::string(value));
}

void Environment::unset(std::string_view name) {
  std::erase_if(entries_, [&](const std::string& entry) { return names(entry, name); });
}

Status check_injection(const Environment& environment, const std::string& shim, bool force) {
  const std::string present = environment.value(kInjectionVariable);
  if (present.empty() || present == shim || force) return {};
  return fail(Code::kInvalidArgument,
              std::string(kInjectionVariable) + " is already set to " + present +
                  " (another tool's injection): unset it, or replace it with --force");
}

void set_identity(Environment& environment, const Invoker& invoker) {
  if (!invoker.switches) return;
  environment.set("HOME", invoker.home);
  environment.set("USER", invoker.name);
  environment.set("LOGNAME", invoker.name);
  for (const char* name : {"SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_HOME", "SUDO_COMMAND"})
    environment.unset(name);
}

void set_profiling(Environment& environment, const Options& options, const std::string& shim) {
  environment.set(kInjectionVariable, shim);
  // Ours, not the shim's: it would report them as unknown.
  environment.unset("GPU_PROFILED_SHIM");
  environment.unset("GPU_PROFILED_DEBUG_FALLBACK");
  // A period of its own comes with the control page, and a switch of periods costs the target two
  // enables: tracing alone until then. So does serialized sampling, which waits a second anyway.
  const bool sampled = options.tier == GPUPROF_TIER_CONTINUOUS && options.pc_period == 0;
  environment.set("GPU_PROFILED_ARM", sampled ? "continuous" : "trace");
  if (options.stack_rate == UINT32_MAX) {
    environment.set("GPU_PROFILED_STACK_RATE", "all");
  } else if (options.stack_rate != 0) {
    environment.set("GPU_PROFILED_STACK_RATE", std::to_string(options.stack_rate));
  }
  if (options.seed != 0) environment.set("GPU_PROFILED_SEED", std::to_string(options.seed));
}

}  // namespace gpuprof::cli
