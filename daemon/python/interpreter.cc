// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/interpreter.h"

#include <gelf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"

namespace gpuprof::python {

using unwind::Mapping;

// Addresses in the target, 0 where the file has none.
struct Interpreter::Symbols {
  uint64_t runtime = 0;     // _PyRuntime
  uint64_t evaluation = 0;  // _PyEval_EvalFrameDefault
  uint64_t evaluation_end = 0;
  uint64_t version = 0;  // Py_Version, since 3.11
  const Mapping* mapping = nullptr;
};

namespace {

constexpr size_t kMaxSymbols = size_t{1} << 20;
constexpr size_t kMaxPcs = 64 * 1024;
constexpr std::string_view kUnnamed = "[python]";

ReadMemory reader(std::shared_ptr<unwind::AddressSpace> space) {
  return [space = std::move(space)](uint64_t address, std::span<uint8_t> out) {
    return space->read_memory(address, out);
  };
}

std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// 3.9 and 3.10 say their version in the file's name alone: python3.9, libpython3.10.so.1.0.
uint32_t version_of_name(std::string_view path) {
  constexpr std::string_view kName = "python3.";
  std::string_view name = base_name(path);
  const size_t at = name.find(kName);
  if (at == std::string_view::npos) return 0;
  name.remove_prefix(at + kName.size());
  uint32_t minor = 0;
  size_t digits = 0;
  for (; digits < name.size() && digits < 3 && name[digits] >= '0' && name[digits] <= '9'; ++digits)
    minor = minor * 10 + static_cast<uint32_t>(name[digits] - '0');
  return digits == 0 || minor > 255 ? 0 : 0x300 | minor;
}

template <class Visit>
void for_each_symbol(Elf* elf, Visit visit) {
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf, section)) != nullptr;) {
    GElf_Shdr header;
    if (gelf_getshdr(section, &header) == nullptr) continue;
    if (header.sh_type != SHT_DYNSYM && header.sh_type != SHT_SYMTAB) continue;
    Elf_Data* data = elf_getdata(section, nullptr);
    if (data == nullptr) continue;
    const size_t count = std::min(data->d_size / sizeof(Elf64_Sym), kMaxSymbols);
    for (size_t i = 0; i < count; ++i) {
      GElf_Sym symbol;
      if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) break;
      if (symbol.st_shndx == SHN_UNDEF || symbol.st_name == 0) continue;
      const char* name = elf_strptr(elf, header.sh_link, symbol.st_name);
      if (name != nullptr) visit(std::string_view(name), symbol);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Interpreter>> Interpreter::find(
    std::shared_ptr<unwind::AddressSpace> space) {
  Symbols found;
  std::shared_ptr<unwind::ElfFile> last;
  const std::span mappings = space->mappings();
  for (const Mapping& mapping : mappings) {
    if (!mapping.file || mapping.file == last) continue;
    // The program itself may hold one; a library is called after it.
    if (&mapping != &mappings.front() &&
        base_name(mapping.path).find("python") == std::string_view::npos)
      continue;
    last = mapping.file;
    Symbols here;
    for_each_symbol(last->elf(), [&](std::string_view name, const GElf_Sym& symbol) {
      const uint64_t address = mapping.bias + symbol.st_value;
      if (name == "_PyRuntime") here.runtime = address;
      if (name == "Py_Version") here.version = address;
      if (name == "_PyEval_EvalFrameDefault") {
        here.evaluation = address;
        here.evaluation_end = address + symbol.st_size;
      }
    });
    if (here.runtime == 0 || here.evaluation == 0) continue;
    found = here;
    found.mapping = &mapping;
    break;
  }
  if (found.mapping == nullptr) return fail(Code::kNotFound, "no Python interpreter is mapped");
  const ReadMemory read = reader(space);
  const uint32_t version = found.version != 0 ? read_value<uint32_t>(read, found.version) >> 16
                                              : version_of_name(found.mapping->path);
  if (version == 0)
    return fail(Code::kUnsupported, "the Python interpreter's version is not known");
  std::array<uint8_t, kRuntimeBytes> runtime = {};
  if (read(found.runtime, runtime) != runtime.size())
    return fail(Code::kUnavailable, "the Python interpreter's memory cannot be read");
  auto layout = layout_of(version, found.runtime, runtime);
  if (!layout) return tl::unexpected(layout.error());
  return std::unique_ptr<Interpreter>(new Interpreter(std::move(space), *layout, found));
}

Interpreter::Interpreter(std::shared_ptr<unwind::AddressSpace> space, const Layout& layout,
                         const Symbols& symbols)
    : space_(std::move(space)),
      layout_(layout),
      file_(symbols.mapping->file.get()),
      evaluation_(symbols.evaluation, symbols.evaluation_end, reader(space_)),
      codes_(layout, reader(space_)) {}

std::vector<Native> Interpreter::classify(const StackSample& sample, const unwind::RawStack& stack,
                                          std::span<const FrameRun> runs) {
  const std::vector<uint64_t>& pcs = stack.pcs;
  std::vector<Native> out(pcs.size(), Native::kOther);
  std::vector<bool> generated(pcs.size());
  for (size_t i = 0; i < pcs.size(); ++i) {
    const Mapping* mapping = space_->find(pcs[i]);
    if (mapping == nullptr) continue;
    generated[i] = mapping->kind == unwind::MappingKind::kJit;
    if (mapping->file.get() == file_) out[i] = Native::kInterpreter;
  }
  size_t next = 0;
  for (size_t i = 0; i < pcs.size(); ++i) {
    const bool has_caller = i + 1 < pcs.size();
    if (out[i] != Native::kInterpreter) continue;
    bool is_evaluation = false;
    if (layout_.entry == EntryRule::kOwner) {
      const uint64_t begin = i == 0 ? sample.stack_address : stack.limits[i - 1];
      is_evaluation =
          next < runs.size() && runs[next].entry >= begin && runs[next].entry < stack.limits[i];
      if (is_evaluation) ++next;
    } else {
      is_evaluation =
          evaluation_.is_frame(pcs[i], has_caller ? pcs[i + 1] : 0, has_caller && generated[i + 1]);
    }
    if (!is_evaluation) continue;
    out[i] = Native::kEvaluation;
    if (has_caller && generated[i + 1]) out[i + 1] = Native::kTrampoline;
  }
  return out;
}

uint64_t Interpreter::python_pc(const gpuprof_python_frame& frame, uint64_t now_ns,
                                const AddFrame& add_frame, PythonCounts& counts) {
  const CodeObject* code = codes_.find(
      frame.code, std::span<const uint8_t, GPUPROF_PYTHON_CODE_BYTES>(frame.code_window), now_ns);
  ++counts.frames;
  if (code == nullptr || pcs_.size() >= kMaxPcs) {
    ++counts.unnamed_frames;
    if (unnamed_pc_ == 0) {
      symbolize::SourceFrame unnamed;
      unnamed.function = unnamed.system_name = kUnnamed;
      unnamed_pc_ = add_frame(unnamed);
    }
    return unnamed_pc_;
  }
  const uint32_t line = codes_.line(*code, frame);
  const auto [it, is_new] = pcs_.try_emplace(uint64_t{code->number} << 32 | line, 0);
  if (is_new) {
    it->second = add_frame({.function = code->function,
                            .system_name = code->function,
                            .file = code->file,
                            .line = line,
                            .start_line = static_cast<uint32_t>(std::max(code->first_line, 0))});
  }
  return it->second;
}

void Interpreter::stitch(const StackSample& sample, unwind::RawStack& stack, uint64_t now_ns,
                         const AddFrame& add_frame, PythonCounts& counts) {
  if (sample.python.empty() || sample.python_end != GPUPROF_PYTHON_WHOLE) {
    ++(sample.python.empty() ? counts.none : counts.incomplete);
    return;
  }
  const bool whole = stack.end == unwind::StackEnd::kWhole;
  const std::vector<FrameRun> runs = runs_of(layout_, sample.python);
  if (python::stitch(classify(sample, stack, runs), whole, runs, stitched_) !=
      StitchEnd::kStitched) {
    ++counts.disagree;
    return;
  }
  ++counts.stitched;
  if (!whole) ++counts.beyond_native;
  result_.clear();
  for (const StitchedFrame& frame : stitched_) {
    if (!frame.is_python) {
      result_.push_back(stack.pcs[frame.index]);
      continue;
    }
    const gpuprof_python_frame& copied = sample.python[frame.index];
    if (copied.code != 0 && codes_.is_cleanup(std::span(copied.code_window))) continue;
    result_.push_back(python_pc(copied, now_ns, add_frame, counts));
  }
  stack.pcs.swap(result_);
}

}  // namespace gpuprof::python
