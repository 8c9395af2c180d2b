// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/device_code.h"

#include <algorithm>

namespace gpuprof::join {
namespace {

constexpr size_t kMaxReasons = 64;
constexpr size_t kShownHashDigits = 12;
// Distance of locations that have no address of their own: pprof's source view takes neighbouring
// ones for one function's instructions.
constexpr uint64_t kApart = 256;

// A line table's name that cannot be read.
constexpr std::string_view kUnknown = "[unknown]";

std::string_view name_of(const cubin::SourceFrame& frame) {
  return frame.mangled.empty() ? kUnknown : frame.mangled;
}

uint64_t hash_of(const std::vector<cubin::SourceFrame>& frames) {
  uint64_t hash = 0;
  for (const cubin::SourceFrame& frame : frames)
    hash = XXH3_64bits_withSeed(frame.mangled.data(), frame.mangled.size(), hash);
  return hash;
}

}  // namespace

const DeviceCode::Place& DeviceCode::find(uint32_t process, uint64_t cubin_key,
                                          uint64_t function_name_id, uint64_t kernel_name_id,
                                          uint32_t pc_offset) {
  if (kernel_name_id == function_name_id) kernel_name_id = 0;
  const Key key{cubin_key, function_name_id, kernel_name_id, process, pc_offset};
  const auto [at, is_new] = places_.insert(key);
  if (is_new) places_[at].value = make(key);
  return places_[at].value;
}

DeviceCode::Place DeviceCode::make(const Key& key) {
  Place place;
  if (device_ == nullptr) return place;
  const ProcessId process = processes_[key.process];
  const std::string name(frames_.kernel_name(process, key.function_name_id));
  const DeviceModule& module = device_->device_module(process, key.cubin_key);
  if (!module.image) {
    place.missing = missing_id(module.missing);
    return place;
  }
  place.status = cubin::SourceStatus::kUnmapped;
  if (name.empty()) return place;
  std::string kernel;
  if (key.kernel_name_id != 0) kernel = frames_.kernel_name(process, key.kernel_name_id);
  const cubin::Resolution resolution = module.image->resolve(name, key.pc_offset, kernel);
  place.status = resolution.status;
  if (resolution.frames.empty()) return place;
  place.location = location_of(module_of(module), *module.image, resolution);
  place.outermost = model_.locations[place.location].lines.back().function;
  return place;
}

uint32_t DeviceCode::missing_id(const std::string& reason) {
  if (reason.empty()) return 0;
  const auto known = std::find(missing_.begin(), missing_.end(), reason);
  if (known == missing_.end() && missing_.size() >= kMaxReasons) return 0;
  const auto id = static_cast<uint32_t>(known - missing_.begin()) + 1;
  if (known == missing_.end()) missing_.push_back(reason);
  return id;
}

// The brackets tell pprof that there is no file of that name to look for.
uint32_t DeviceCode::module_of(const DeviceModule& source) {
  const auto [at, is_new] =
      modules_.try_emplace(source.sha256, static_cast<uint32_t>(model_.modules.size()));
  if (!is_new) return at->second;
  ModelModule module;
  module.path = "[cubin sm_" + std::to_string(source.image->sm()) + " " +
                source.sha256.substr(0, kShownHashDigits) + "]";
  module.build_id = source.sha256;
  module.limit = source.image->limit();
  module.is_device_code = true;
  model_.modules.push_back(std::move(module));
  return at->second;
}

// `address` in the module for the first who asks; the others get places behind its code.
uint64_t DeviceCode::address_of(uint32_t module, uint64_t address) {
  if (address != 0 && addresses_.insert({module, address}).second) return address;
  uint64_t& limit = model_.modules[module].limit;
  const uint64_t own = (limit + kApart - 1) / kApart * kApart;
  limit = own + kApart;
  return own;
}

uint32_t DeviceCode::location_of(uint32_t module, const cubin::Image& image,
                                 const cubin::Resolution& resolution) {
  const auto [at, is_new] =
      locations_.insert({module, resolution.address, hash_of(resolution.frames)});
  if (!is_new) return locations_[at].value;
  // The file of a function is where it begins, not that of the instruction that comes first here.
  const std::string_view kernel = resolution.frames.back().mangled;
  const cubin::Resolution begin = image.resolve(kernel, 0);
  if (!begin.frames.empty() && begin.frames.back().mangled == kernel)
    functions_.in_file(name_of(resolution.frames.back()), begin.frames.back().file);
  ModelLocation location;
  location.module = module;
  location.address = address_of(module, resolution.address);
  ModelModule& owner = model_.modules[module];
  for (const cubin::SourceFrame& frame : resolution.frames) {
    const uint32_t function = functions_.in_file(name_of(frame), frame.file);
    const bool is_there = !frame.file.empty() && model_.functions[function].file == frame.file;
    location.lines.push_back({function, is_there ? frame.line : 0});
    owner.has_filenames = owner.has_filenames || !frame.file.empty();
    owner.has_line_numbers = owner.has_line_numbers || frame.line != 0;
  }
  owner.has_inline_frames = owner.has_inline_frames || resolution.frames.size() > 1;
  locations_[at].value = static_cast<uint32_t>(model_.locations.size());
  model_.locations.push_back(std::move(location));
  return locations_[at].value;
}

}  // namespace gpuprof::join
