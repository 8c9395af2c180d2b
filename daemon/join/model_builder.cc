// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/model_builder.h"

#include <algorithm>
#include <string_view>

#include "daemon/join/kernel_name.h"

namespace gpuprof::join {
namespace {

// Distance of synthetic functions: pprof's source view takes neighbouring addresses for one
// function's instructions.
constexpr uint64_t kSyntheticSpan = 4096;

// Frames that stand for no code. copy_frame_name() has those of copies.
constexpr const char* kNoStackFrame = "[no stack]";
constexpr const char* kUnattributedFrame = "[unattributed]";
constexpr const char* kGraphFrame = "[cuda graph]";
constexpr const char* kUnknownKernelFrame = "[unknown kernel]";
constexpr const char* kMemsetFrame = "[memset]";
constexpr const char* kOtherFrame = "[other]";

std::string_view base_name(std::string_view path) {
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// What a frame without a symbol is called: after its module, never after its address.
std::string module_frame_name(std::string_view path) {
  const std::string_view base = base_name(path);
  if (base.empty()) return "[unknown]";
  if (base.front() == '[') return std::string(base);
  return "[" + std::string(base) + "]";
}

std::string key_of(std::initializer_list<std::string_view> parts) {
  std::string key;
  for (const std::string_view part : parts) {
    key += part;
    key += '\0';
  }
  return key;
}

}  // namespace

ModelBuilder::ModelBuilder(std::vector<ProcessId> processes, const StackTable& stacks,
                           FrameSource& source, DeviceSource* device)
    : processes_(std::move(processes)),
      stacks_(stacks),
      source_(source),
      device_code_(processes_, source, device, gpu_functions_, model_) {}

uint32_t ModelBuilder::module_of(uint32_t process, uint32_t index) {
  const auto [at, is_new] = modules_.try_emplace({process, index}, 0u);
  if (!is_new) return at->second;
  at->second = static_cast<uint32_t>(model_.modules.size());
  ModelModule module;
  const std::vector<symbolize::Module>& known = source_.modules(processes_[process]);
  bool is_tool = false;
  if (index < known.size()) {
    is_tool = source_.is_tool(known[index]);
    module.path = known[index].path;
    module.build_id = known[index].build_id;
    module.start = known[index].start;
    module.limit = known[index].limit;
  } else {
    module.path = "[unknown]";
  }
  const std::string_view base = base_name(module.path);
  Owner owner = Owner::kApplication;
  if (is_tool || base.starts_with("libgpu-profiled-cupti.") || base.starts_with("libcupti.")) {
    owner = Owner::kTool;
  } else if (base.starts_with("libcuda.") || base.starts_with("libcudart.")) {
    owner = Owner::kDriver;
  }
  owners_.resize(model_.modules.size(), Owner::kApplication);
  owners_.push_back(owner);
  model_.modules.push_back(std::move(module));
  return at->second;
}

uint32_t ModelBuilder::function(const std::string& name, const std::string& system_name,
                                const std::string& file, int64_t start_line) {
  const auto [at, is_new] =
      functions_.try_emplace(key_of({name, system_name, file, std::to_string(start_line)}),
                             static_cast<uint32_t>(model_.functions.size()));
  if (is_new) model_.functions.push_back({name, system_name, file, start_line});
  return at->second;
}

ModelBuilder::Frame ModelBuilder::frame(uint32_t process, uint64_t pc) {
  const auto [at, is_new] = frames_.insert({pc, process});
  if (!is_new) return frames_[at].value;
  const symbolize::SymbolizedPc& symbol = source_.resolve(processes_[process], pc);
  Frame made;
  made.is_named = !symbol.frames.empty();
  ModelLocation location;
  location.module = module_of(process, symbol.module);
  location.address = symbol.address;
  ModelModule& module = model_.modules[location.module];
  for (const symbolize::SourceFrame& source : symbol.frames) {
    location.lines.push_back({function(source.function, source.system_name, source.file,
                                       static_cast<int64_t>(source.start_line)),
                              static_cast<int64_t>(source.line)});
    module.has_filenames = module.has_filenames || !source.file.empty();
    module.has_line_numbers = module.has_line_numbers || source.line != 0;
  }
  module.has_inline_frames = module.has_inline_frames || symbol.frames.size() > 1;
  if (symbol.frames.empty()) {
    const std::string name = module_frame_name(module.path);
    location.lines.push_back({function(name, name, "", 0), 0});
  }
  made.owner = owners_[location.module];
  made.location = static_cast<uint32_t>(model_.locations.size());
  model_.locations.push_back(std::move(location));
  frames_[at].value = made;
  return made;
}

// Without the shim and CUPTI at the leaf: the stack is taken inside them. libcuda and libcudart
// have names for their API only; nameless frames below the launch call say nothing, and further out
// a run of them counts once.
std::vector<uint32_t> ModelBuilder::trim(const std::vector<Frame>& frames) const {
  size_t leaf = 0;
  while (leaf < frames.size() && frames[leaf].owner == Owner::kTool) ++leaf;
  const size_t below_driver = leaf;
  const auto is_nameless_driver = [&](const Frame& f) {
    return f.owner == Owner::kDriver && !f.is_named;
  };
  while (leaf < frames.size() && is_nameless_driver(frames[leaf])) ++leaf;
  if (leaf == frames.size()) leaf = below_driver;  // nothing else is known of it
  std::vector<uint32_t> locations;
  for (size_t i = leaf; i < frames.size(); ++i) {
    if (i > leaf && is_nameless_driver(frames[i]) && is_nameless_driver(frames[i - 1]) &&
        model_.locations[frames[i].location].module ==
            model_.locations[frames[i - 1].location].module) {
      continue;
    }
    locations.push_back(frames[i].location);
  }
  return locations;
}

uint32_t ModelBuilder::cpu_stack(uint32_t process, StackId stack) {
  const auto [at, is_new] = cpu_stacks_.insert({process, stack});
  if (!is_new) return cpu_stacks_[at].value;
  std::vector<Frame> frames;
  for (const uint64_t pc : stacks_.pcs(stack)) frames.push_back(frame(process, pc));
  std::vector<uint32_t> locations = trim(frames);
  if (locations.empty()) locations.push_back(synthetic(kNoStackFrame));
  const auto id = static_cast<uint32_t>(cpu_locations_.size());
  cpu_locations_.push_back(std::move(locations));
  cpu_stacks_[at].value = id;
  return id;
}

// The location of a frame without code.
uint32_t ModelBuilder::synthetic_location(uint32_t function) {
  const auto [at, is_new] =
      synthetic_.try_emplace(function, static_cast<uint32_t>(model_.locations.size()));
  if (!is_new) return at->second;
  if (synthetic_module_ == UINT32_MAX) {
    synthetic_module_ = static_cast<uint32_t>(model_.modules.size());
    ModelModule module;
    module.path = "[cuda]";
    module.is_device_code = true;
    model_.modules.push_back(std::move(module));
  }
  ModelModule& module = model_.modules[synthetic_module_];
  ModelLocation location;
  location.module = synthetic_module_;
  location.address = module.limit;
  module.limit += kSyntheticSpan;
  location.lines.push_back({function, 0});
  model_.locations.push_back(std::move(location));
  return at->second;
}

uint32_t ModelBuilder::synthetic(const std::string& name) {
  return synthetic_location(function(name, name, "", 0));
}

uint32_t ModelBuilder::kernel_function(const Row& row) {
  const auto [at, is_new] = kernels_.insert({row.name_id, row.process});
  if (!is_new) return kernels_[at].value;
  const std::string mangled(row.name_id == 0
                                ? std::string_view()
                                : source_.kernel_name(processes_[row.process], row.name_id));
  kernels_[at].value = mangled.empty() ? function(kUnknownKernelFrame, kUnknownKernelFrame, "", 0)
                                       : gpu_functions_.of(mangled);
  return kernels_[at].value;
}

uint32_t ModelBuilder::gpu_frame(const Row& row) {
  switch (row.kind) {
    case GPUPROF_KIND_KERNEL:
      return synthetic_location(kernel_function(row));
    case GPUPROF_KIND_MEMCPY: {
      return synthetic(std::string(copy_frame_name(row.copy_kind)));
    }
    case GPUPROF_KIND_MEMSET:
      return synthetic(kMemsetFrame);
    default:
      return synthetic(kOtherFrame);
  }
}

// What joined no execution has no call path either.
uint32_t ModelBuilder::cpu_stack_of(const Row& row) {
  if (row.match != Match::kInvalid) return cpu_stack(row.process, row.stack);
  if (unattributed_ == UINT32_MAX) {
    unattributed_ = static_cast<uint32_t>(cpu_locations_.size());
    cpu_locations_.push_back({synthetic(kUnattributedFrame)});
  }
  return unattributed_;
}

uint32_t ModelBuilder::stack_of(const Row& row, const DeviceCode::Place* place) {
  const uint32_t cpu = cpu_stack_of(row);
  uint32_t leaf = 0;
  uint32_t parent = UINT32_MAX;
  if (place == nullptr || place->location == DeviceCode::kNone) {
    leaf = gpu_frame(row);
  } else {
    leaf = place->location;
    // A device function in a section of its own: who called it is not in the image, but its launch
    // is known.
    if (row.kind == GPUPROF_KIND_KERNEL && model_.functions[place->outermost].system_name !=
                                               model_.functions[kernel_function(row)].system_name)
      parent = gpu_frame(row);
  }
  const bool is_graph = row.graph_id != 0 && row.graph_id != kFolded;
  const auto [at, is_new] = full_stacks_.insert({cpu, leaf, parent, is_graph ? 1u : 0u});
  if (!is_new) return full_stacks_[at].value;
  std::vector<uint32_t> locations{leaf};
  if (parent != UINT32_MAX) locations.push_back(parent);
  if (is_graph) locations.push_back(synthetic(kGraphFrame));
  locations.insert(locations.end(), cpu_locations_[cpu].begin(), cpu_locations_[cpu].end());
  full_stacks_[at].value = static_cast<uint32_t>(model_.stacks.size());
  model_.stacks.push_back(std::move(locations));
  return full_stacks_[at].value;
}

void ModelBuilder::put_first(uint32_t module) {
  if (module == 0) return;
  std::swap(model_.modules[0], model_.modules[module]);
  for (ModelLocation& location : model_.locations) {
    if (location.module == 0) {
      location.module = module;
    } else if (location.module == module) {
      location.module = 0;
    }
  }
}

Model ModelBuilder::finish(uint32_t main_process, const std::string& executable) {
  gpu_functions_.name_all();
  for (const auto& [key, module] : modules_) {
    if (key.first == main_process && !executable.empty() &&
        model_.modules[module].path == executable) {
      put_first(module);
      break;
    }
  }
  return std::move(model_);
}

}  // namespace gpuprof::join
