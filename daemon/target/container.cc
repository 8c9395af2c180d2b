// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/container.h"

#include <algorithm>
#include <optional>

#include "daemon/target/cgroup.h"

namespace gpuprof::target {
namespace {

constexpr size_t kIdDigits = 64;
constexpr size_t kHashDigits = 32;
constexpr size_t kMostMachineName = 64;  // HOST_NAME_MAX, sd_machine names likewise
constexpr std::string_view kDeleted = " (deleted)";

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool is_id(std::string_view text) { return text.size() == kIdDigits && is_hex(text); }

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// "1a2b3c4d-…" of a pod, where systemd's names have '_' for '-'; empty: it is none.
std::string pod_uid_of(std::string_view text) {
  if (text.size() == kHashDigits && is_hex(text)) return std::string(text);
  constexpr size_t kDashes[] = {8, 13, 18, 23};
  if (text.size() != 36) return {};
  std::string out(text);
  for (const size_t at : kDashes) {
    if (out[at] != '-' && out[at] != '_') return {};
    out[at] = '-';
  }
  std::string digits = out;
  std::erase(digits, '-');
  return digits.size() == kHashDigits && is_hex(digits) ? out : std::string();
}

// "kubepods-burstable-podUID.slice", where the kubelet's cgroup root may stand before it, or
// "podUID" below "kubepods".
std::string pod_of(std::string_view name) {
  if (!take_suffix(name, ".slice")) return take_prefix(name, "pod") ? pod_uid_of(name) : "";
  const size_t at = name.rfind("-pod");
  if (at == std::string_view::npos) return {};
  const std::string_view parent = name.substr(0, at);
  if (parent != "kubepods" && !parent.starts_with("kubepods-") && !parent.ends_with("-kubepods") &&
      parent.find("-kubepods-") == std::string_view::npos)
    return {};
  return pod_uid_of(name.substr(at + 4));
}

// "docker-ID.scope", "crio-ID", "libpod-payload-ID", "ID".
std::string id_of(std::string_view name) {
  if (is_id(name)) return std::string(name);
  // Fargate: 32 hex digits and a number.
  if (name.size() > kHashDigits + 1 && name.size() <= kHashDigits + 11 &&
      is_hex(name.substr(0, kHashDigits)) && name[kHashDigits] == '-' &&
      is_digits(name.substr(kHashDigits + 1)))
    return std::string(name);
  take_suffix(name, ".scope");
  for (const std::string_view engine : {"docker-", "cri-containerd-", "containerd-", "nerdctl-",
                                        "crio-", "libpod-payload-", "libpod-"}) {
    std::string_view id = name;
    if (take_prefix(id, engine) && is_id(id)) return std::string(id);
  }
  return {};
}

// Of systemd's unit names: "\x2d" is a dash. Nullopt: no name that a machine can have.
std::optional<std::string> machine_name(std::string_view escaped) {
  std::string out;
  while (!escaped.empty()) {
    if (take_prefix(escaped, "\\x2d")) {
      out += '-';
      continue;
    }
    const char c = escaped.front();
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
    if (!is_plain) return {};
    out += c;
    escaped.remove_prefix(1);
  }
  if (out.empty() || out.size() > kMostMachineName) return {};
  return out;
}

// "systemd-nspawn@NAME.service", "machine-NAME.scope", "lxc.payload.NAME".
std::string machine_of(std::string_view name) {
  const bool is_machine = (take_prefix(name, "systemd-nspawn@") && take_suffix(name, ".service")) ||
                          (take_prefix(name, "machine-") && take_suffix(name, ".scope")) ||
                          take_prefix(name, "lxc.payload.");
  return is_machine ? machine_name(name).value_or("") : std::string();
}

// One name of a path. containerd without systemd's driver, where the kubelet uses that, makes
// "kubepods-podUID.slice:cri-containerd:ID" of it.
void look_at(std::string_view name, Container& out) {
  if (const size_t colon = name.find(':'); colon != std::string_view::npos) {
    const size_t last = name.rfind(':');
    const std::string_view engine = name.substr(colon + 1, std::max(last, colon + 1) - colon - 1);
    if (engine != "cri-containerd" && engine != "crio" && engine != "docker") return;
    if (out.pod_uid.empty()) out.pod_uid = pod_of(name.substr(0, colon));
    if (is_id(name.substr(last + 1))) out.id = name.substr(last + 1);
    return;
  }
  if (out.pod_uid.empty()) out.pod_uid = pod_of(name);
  out.id = id_of(name);
  if (out.id.empty()) out.id = machine_of(name);
}

Container container_of(std::string_view path) {
  Container out;
  take_suffix(path, kDeleted);
  while (!path.empty() && out.id.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    look_at(name, out);
  }
  return out;
}

}  // namespace

Container parse_cgroup(std::string_view text) {
  Container best;
  text = text.substr(0, kMostCgroupBytes);
  while (const auto line = take_cgroup_line(text)) {
    Container found = container_of(line->path);
    if (!found.id.empty()) return found;
    if (best.pod_uid.empty()) best = std::move(found);
  }
  return best;
}

}  // namespace gpuprof::target
