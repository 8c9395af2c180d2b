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
                           FrameSource& source)
    : processes_(std::move(processes)), stacks_(stacks), source_(source) {}

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
  if (locations.empty()) locations.push_back(synthetic("[no stack]", "[no stack]"));
  const auto id = static_cast<uint32_t>(cpu_locations_.size());
  cpu_locations_.push_back(std::move(locations));
  cpu_stacks_[at].value = id;
  return id;
}

uint32_t ModelBuilder::synthetic(const std::string& name, const std::string& system_name) {
  const auto [at, is_new] =
      synthetic_.try_emplace(system_name, static_cast<uint32_t>(model_.locations.size()));
  if (!is_new) return at->second;
  if (synthetic_module_ == UINT32_MAX) {
    synthetic_module_ = static_cast<uint32_t>(model_.modules.size());
    ModelModule module;
    module.path = "[cuda]";
    module.is_device_code = true;
    model_.modules.push_back(std::move(module));
    owners_.push_back(Owner::kApplication);
  }
  ModelModule& module = model_.modules[synthetic_module_];
  ModelLocation location;
  location.module = synthetic_module_;
  location.address = module.limit;
  module.limit += kSyntheticSpan;
  // Not through function(): a kernel's shown name is decided at the end.
  location.lines.push_back({static_cast<uint32_t>(model_.functions.size()), 0});
  model_.functions.push_back({name, system_name, "", 0});
  model_.locations.push_back(std::move(location));
  return at->second;
}

uint32_t ModelBuilder::kernel_frame(const Row& row) {
  const auto [at, is_new] = kernels_.insert({row.name_id, row.process});
  if (!is_new) return kernels_[at].value;
  const std::string mangled(row.name_id == 0
                                ? std::string_view()
                                : source_.kernel_name(processes_[row.process], row.name_id));
  uint32_t location = 0;
  if (mangled.empty()) {
    location = synthetic("[unknown kernel]", "[unknown kernel]");
  } else {
    const size_t before = model_.functions.size();
    location = synthetic(mangled, mangled);
    if (model_.functions.size() != before) {
      kernel_functions_.push_back(static_cast<uint32_t>(before));
    }
  }
  kernels_[at].value = location;
  return location;
}

uint32_t ModelBuilder::gpu_frame(const Row& row) {
  switch (row.kind) {
    case GPUPROF_KIND_KERNEL:
      return kernel_frame(row);
    case GPUPROF_KIND_MEMCPY: {
      const std::string name(copy_frame_name(row.copy_kind));
      return synthetic(name, name);
    }
    case GPUPROF_KIND_MEMSET:
      return synthetic("[memset]", "[memset]");
    default:
      return synthetic("[other]", "[other]");
  }
}

uint32_t ModelBuilder::stack_of(const Row& row) {
  const uint32_t cpu = cpu_stack(row.process, row.stack);
  const uint32_t gpu = gpu_frame(row);
  const bool is_graph = row.graph_id != 0 && row.graph_id != kFolded;
  const auto [at, is_new] = full_stacks_.insert({cpu, gpu, is_graph ? 1u : 0u});
  if (!is_new) return full_stacks_[at].value;
  std::vector<uint32_t> locations{gpu};
  if (is_graph) locations.push_back(synthetic("[cuda graph]", "[cuda graph]"));
  locations.insert(locations.end(), cpu_locations_[cpu].begin(), cpu_locations_[cpu].end());
  full_stacks_[at].value = static_cast<uint32_t>(model_.stacks.size());
  model_.stacks.push_back(std::move(locations));
  return full_stacks_[at].value;
}

// pprof's reports merge functions by their shown name. So kernels whose short names are equal are
// shown in full, and where even that is equal, mangled.
void ModelBuilder::name_kernels() {
  std::unordered_map<std::string, uint32_t> uses;
  std::vector<std::string> full;
  for (const uint32_t id : kernel_functions_) {
    ModelFunction& kernel = model_.functions[id];
    full.push_back(demangle(kernel.system_name));
    kernel.name = short_kernel_name(full.back());
    ++uses[kernel.name];
  }
  std::unordered_map<std::string, uint32_t> full_uses;
  for (const std::string& name : full) ++full_uses[name];
  for (size_t i = 0; i < kernel_functions_.size(); ++i) {
    ModelFunction& kernel = model_.functions[kernel_functions_[i]];
    if (uses[kernel.name] == 1) continue;
    kernel.name = full_uses[full[i]] == 1 ? full[i] : kernel.system_name;
  }
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
  name_kernels();
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
