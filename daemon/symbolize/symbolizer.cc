// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/symbolizer.h"

#include <algorithm>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "daemon/symbolize/demangle.h"
#include "daemon/symbolize/file_symbols.h"
#include "daemon/symbolize/jit_dump.h"
#include "daemon/symbolize/perf_map.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"

namespace gpuprof::symbolize {

using unwind::ElfFile;
using unwind::Mapping;
using unwind::MappingKind;

class SymbolCache::Impl {
 public:
  // Valid until the next call.
  FileSymbols& of(const std::shared_ptr<ElfFile>& file) {
    if (const auto it = index_.find(file.get()); it != index_.end()) {
      order_.splice(order_.begin(), order_, it->second);
      return order_.front();
    }
    while (!order_.empty() && is_full()) {
      index_.erase(order_.back().file().get());
      dropped_ += order_.back().counts();
      order_.pop_back();
    }
    order_.emplace_front(file, kMaxFileLocations, source_);
    index_[file.get()] = order_.begin();
    return order_.front();
  }

  void use_source(DebugSource* source) { source_ = source; }
  [[nodiscard]] SymbolCounts counts() const {
    SymbolCounts out = dropped_;
    for (const FileSymbols& f : order_) out += f.counts();
    return out;
  }

 private:
  [[nodiscard]] bool is_full() const {
    size_t tables = 0;
    uint64_t debug = 0;
    for (const FileSymbols& f : order_) {
      tables += f.table_bytes();
      debug += f.debug_bytes();
    }
    return order_.size() >= kMaxFiles || tables > kMaxTableBytes || debug > kMaxDebugBytes;
  }

  DebugSource* source_ = nullptr;
  SymbolCounts dropped_;          // of files that were let go
  std::list<FileSymbols> order_;  // most recently used first
  std::unordered_map<const ElfFile*, std::list<FileSymbols>::iterator> index_;
};

SymbolCache::SymbolCache() : impl_(std::make_unique<Impl>()) {}
SymbolCache::~SymbolCache() = default;
void SymbolCache::use_source(DebugSource* source) { impl_->use_source(source); }
SymbolCounts SymbolCache::counts() const { return impl_->counts(); }

namespace {

// CPython's trampolines are named py::qualname:/path/file.py (Python/perf_trampoline.c).
SourceFrame perf_map_frame(std::string_view name) {
  SourceFrame frame;
  frame.system_name = name;
  constexpr std::string_view kPython = "py::";
  if (name.starts_with(kPython)) {
    const std::string_view rest = name.substr(kPython.size());
    const size_t colon = rest.find(':');
    if (colon != std::string_view::npos && colon != 0) {
      frame.function = rest.substr(0, colon);
      frame.file = rest.substr(colon + 1);
      return frame;
    }
  }
  frame.function = demangle(frame.system_name);
  return frame;
}

}  // namespace

class Symbolizer::Impl {
 public:
  Impl(std::shared_ptr<unwind::AddressSpace> space, SymbolCache& cache)
      : space_(std::move(space)), cache_(cache), jit_dump_(*space_), perf_map_(*space_) {}

  uint64_t add_frame(const SourceFrame& frame, Added what) {
    if (added_.size() >= kMaxAddedFrames) return 0;
    added_.emplace_back(frame, what);
    return kAddedFrame | (added_.size() - 1);
  }

  const SymbolizedPc& resolve(uint64_t pc) {
    if ((pc & kAddedFrame) != 0) return resolve_added(pc);
    const Mapping* mapping = space_->find(pc);
    if (generation_ != space_->generation()) {
      generation_ = space_->generation();
      pcs_.clear();  // another file may be there now
    }
    if (const auto it = pcs_.find(pc); it != pcs_.end()) return it->second;
    if (pcs_.size() >= kMaxCachedPcs) pcs_.clear();
    SymbolizedPc result;
    result.address = pc;
    if (mapping == nullptr) {
      result.module = absolute_module("[unknown]", pc, pc + 1);
    } else if (mapping->file) {
      result.module = file_module(*mapping);
      result.address = pc - mapping->bias;
      result.frames =
          *cache_.impl_->of(mapping->file).frames(result.address, *space_, mapping->path);
    } else {
      const bool jit = mapping->kind == MappingKind::kJit;
      const std::string& path = jit ? kJitPath : mapping->path;
      result.module = absolute_module(path, mapping->start, mapping->end);
      if (jit) name_generated(pc, result.frames);
      // A name may still come: generated code runs before its line is written.
      if (jit && result.frames.empty()) return unnamed_ = std::move(result);
    }
    return pcs_.emplace(pc, std::move(result)).first->second;
  }

  [[nodiscard]] const std::vector<Module>& modules() const { return modules_; }

 private:
  // Their addresses are numbers: frames of one line have one each, as pprof wants.
  const SymbolizedPc& resolve_added(uint64_t pc) {
    const uint64_t index = pc & ~kAddedFrame;
    unnamed_ = {};
    unnamed_.address = index;
    if (index >= added_.size()) {
      unnamed_.module = absolute_module(kUnknownPath, pc, pc + 1);
      return unnamed_;
    }
    const auto& [frame, what] = added_[index];
    unnamed_.module =
        absolute_module(what == Added::kPython ? kPythonPath : kThreadPath, index, index + 1);
    unnamed_.frames.push_back(frame);
    return unnamed_;
  }

  // A dump has more than a perf map: lines.
  void name_generated(uint64_t pc, std::vector<SourceFrame>& frames) {
    if (const auto code = jit_dump_.find(pc)) {
      SourceFrame frame = perf_map_frame(code->name);
      if (!code->file.empty()) frame.file = code->file;
      frame.line = code->line;
      frames.push_back(std::move(frame));
    } else if (const std::string_view name = perf_map_.find(pc); !name.empty()) {
      frames.push_back(perf_map_frame(name));
    }
  }

  uint32_t file_module(const Mapping& mapping) {
    const auto [it, is_new] =
        by_file_.try_emplace(mapping.file, static_cast<uint32_t>(modules_.size()));
    if (is_new) {
      Module module{.path = mapping.path,
                    .build_id = mapping.file->build_id(),
                    .start = UINT64_MAX,
                    .limit = 0};
      for (const ElfFile::Segment& s : mapping.file->segments()) {
        module.start = std::min(module.start, s.address);
        module.limit = std::max(module.limit, s.address + s.memory_size);
      }
      modules_.push_back(std::move(module));
    }
    return it->second;
  }

  uint32_t absolute_module(const std::string& path, uint64_t start, uint64_t end) {
    const bool full = modules_.size() >= kMaxModules;  // a hostile process maps file after file
    const std::string& name = path.empty() || full ? kUnknownPath : path;
    const auto [it, is_new] = by_path_.try_emplace(name, static_cast<uint32_t>(modules_.size()));
    if (is_new) modules_.push_back({.path = name, .build_id = "", .start = start, .limit = end});
    Module& module = modules_[it->second];
    module.start = std::min(module.start, start);
    module.limit = std::max(module.limit, end);
    return it->second;
  }

  static constexpr size_t kMaxModules = 16384;
  inline static const std::string kJitPath = "[jit]";
  inline static const std::string kPythonPath = "[python]";
  inline static const std::string kThreadPath = "[thread]";
  inline static const std::string kUnknownPath = "[unknown]";

  std::shared_ptr<unwind::AddressSpace> space_;
  SymbolCache& cache_;
  JitDump jit_dump_;
  PerfMap perf_map_;
  std::vector<Module> modules_;
  std::map<std::shared_ptr<ElfFile>, uint32_t> by_file_;
  std::map<std::string, uint32_t> by_path_;
  uint64_t generation_ = 0;
  std::unordered_map<uint64_t, SymbolizedPc> pcs_;
  std::vector<std::pair<SourceFrame, Added>> added_;
  SymbolizedPc unnamed_;
};

Symbolizer::Symbolizer(std::shared_ptr<unwind::AddressSpace> space, SymbolCache& cache)
    : impl_(std::make_unique<Impl>(std::move(space), cache)) {}
Symbolizer::~Symbolizer() = default;
Symbolizer::Symbolizer(Symbolizer&&) noexcept = default;
Symbolizer& Symbolizer::operator=(Symbolizer&&) noexcept = default;

uint64_t Symbolizer::add_frame(const SourceFrame& frame, Added what) {
  return impl_->add_frame(frame, what);
}
const SymbolizedPc& Symbolizer::resolve(uint64_t pc) { return impl_->resolve(pc); }
const std::vector<Module>& Symbolizer::modules() const { return impl_->modules(); }

}  // namespace gpuprof::symbolize
