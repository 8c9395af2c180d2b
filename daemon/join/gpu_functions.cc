// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/gpu_functions.h"

#include <unordered_map>

#include "daemon/join/kernel_name.h"

namespace gpuprof::join {
namespace {

// A kernel's instructions lie in a few files. Beyond, the line's file is not told.
constexpr size_t kMaxFiles = 256;

}  // namespace

uint32_t GpuFunctions::of(std::string_view mangled) {
  auto at = known_.find(mangled);
  if (at == known_.end()) {
    at = known_.try_emplace(std::string(mangled)).first;
    at->second.functions.push_back(static_cast<uint32_t>(model_.functions.size()));
    order_.push_back(&at->first);
    model_.functions.push_back({at->first, at->first, "", 0});
  }
  return at->second.functions.front();
}

uint32_t GpuFunctions::in_file(std::string_view mangled, std::string_view file) {
  const uint32_t first = of(mangled);
  if (file.empty() || model_.functions[first].file == file) return first;
  if (model_.functions[first].file.empty()) {
    model_.functions[first].file = file;
    return first;
  }
  std::vector<uint32_t>& functions = known_.find(mangled)->second.functions;
  for (const uint32_t function : functions) {
    if (model_.functions[function].file == file) return function;
  }
  if (functions.size() >= kMaxFiles) return first;
  functions.push_back(static_cast<uint32_t>(model_.functions.size()));
  model_.functions.push_back({"", std::string(mangled), std::string(file), 0});
  return functions.back();
}

void GpuFunctions::name_all() {
  std::unordered_map<std::string, uint32_t> short_uses, full_uses;
  std::vector<std::string> shorts, fulls;
  for (const std::string* mangled : order_) {
    fulls.push_back(demangle(*mangled));
    shorts.push_back(short_kernel_name(fulls.back()));
    ++full_uses[fulls.back()];
    ++short_uses[shorts.back()];
  }
  for (size_t i = 0; i < order_.size(); ++i) {
    const std::string& shown = short_uses[shorts[i]] == 1 ? shorts[i]
                               : full_uses[fulls[i]] == 1 ? fulls[i]
                                                          : *order_[i];
    for (const uint32_t function : known_.find(*order_[i])->second.functions)
      model_.functions[function].name = shown;
  }
}

}  // namespace gpuprof::join
