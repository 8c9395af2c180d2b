// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/file_symbols.h"

#include <utility>

#include "daemon/symbolize/demangle.h"
#include "daemon/symbolize/mini_debug.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::symbolize {

FileSymbols::FileSymbols(std::shared_ptr<unwind::ElfFile> file, size_t max_locations,
                         DebugSource* source)
    : file_(std::move(file)), source_(source), max_locations_(max_locations) {}

FileSymbols::~FileSymbols() = default;

void FileSymbols::add_source(std::shared_ptr<unwind::ElfFile> file, size_t image_bytes) {
  auto table = std::make_unique<SymbolTable>(file->elf());
  sources_.push_back({std::move(file), std::move(table), image_bytes});
}

void FileSymbols::add_mini_debug() {
  MiniDebug mini = read_mini_debug(file_->elf());
  if (!mini.has_section) return;
  const size_t bytes = mini.image.size();
  auto image = unwind::ElfFile::from_memory(std::move(mini.image));
  if (!image) {
    ++counts_.troubles[static_cast<size_t>(DebugTrouble::kMiniDebug)];
    return;
  }
  add_source(std::move(*image), bytes);
  ++counts_.mini_debug;
}

void FileSymbols::open_debug(const DebugFile& from, DebugSearch& search) {
  DebugFile alternate = search.find_alternate(from);
  const auto bytes = from.file->decompressed_bytes();
  const auto more = alternate.file ? alternate.file->decompressed_bytes() : 0;
  if (!bytes || !more) {
    ++counts_.troubles[static_cast<size_t>(DebugTrouble::kTooLarge)];
    return;
  }
  alternate_ = std::move(alternate.file);
  debug_ = DebugInfo::open(from.file->elf(), alternate_ ? alternate_->elf() : nullptr);
  debug_bytes_ = debug_ ? *bytes + *more : 0;
}

void FileSymbols::load(const unwind::AddressSpace& space, const std::string& path) {
  loaded_ = true;
  ++counts_.files;
  DebugSearch search(space, path);
  open_debug({file_, path, false}, search);
  DebugFile separate = debug_ ? DebugFile() : search.find(*file_);
  if (!debug_ && !separate.file && source_ != nullptr)
    separate = search.check(source_->take(file_->build_id()), *file_);
  if (separate.file) {
    ++counts_.separate_files;
    add_source(separate.file);
    open_debug(separate, search);
  } else {
    add_mini_debug();
  }
  add_source(file_);
  counts_.with_dwarf += debug_ != nullptr;
  for (size_t i = 0; i < search.troubles().size(); ++i) counts_.troubles[i] += search.troubles()[i];
}

size_t FileSymbols::table_bytes() const {
  size_t total = 0;
  for (const Source& source : sources_) total += source.table->bytes() + source.image_bytes;
  return total;
}

std::optional<Symbol> FileSymbols::find_symbol(uint64_t address) const {
  for (const Source& source : sources_) {
    if (auto symbol = source.table->find(address)) return symbol;
  }
  return std::nullopt;
}

Frames FileSymbols::look_up(uint64_t address) {
  const std::optional<Symbol> symbol = find_symbol(address);
  std::optional<DebugFrames> debug = debug_ ? debug_->find(address) : std::nullopt;
  Frames frames = debug ? std::move(debug->frames) : Frames(1);
  SourceFrame& real = frames.back();
  // Without a linkage name the symbol table's mangled one says more (static C++ functions,
  // lambdas); C's are the same in both.
  const bool prefer_symbol = real.function.empty() || (debug && !debug->has_linkage_name);
  if (symbol && prefer_symbol &&
      (real.function.empty() || symbol->name.starts_with("_Z") || symbol->name.starts_with("_R"))) {
    real.system_name = unwind::printable(symbol->name);
    real.function = unwind::printable(demangle(symbol->name));
  }
  // An inlined or real function that DWARF leaves unnamed would be an empty frame.
  std::erase_if(frames, [](const SourceFrame& f) { return f.function.empty(); });
  return frames;
}

void FileSymbols::release_pages() {
  for (const Source& source : sources_) source.file->release_pages();
  if (alternate_) alternate_->release_pages();
}

std::shared_ptr<const Frames> FileSymbols::frames(uint64_t address,
                                                  const unwind::AddressSpace& space,
                                                  const std::string& path) {
  if (const auto it = locations_.find(address); it != locations_.end()) return it->second;
  if (!loaded_) load(space, path);
  if (since_release_++ % kPlacesPerRelease == 0)
    release_pages();  // also of the tables read just now
  if (locations_.size() >= max_locations_) locations_.clear();
  auto frames = std::make_shared<const Frames>(look_up(address));
  locations_.emplace(address, frames);
  return frames;
}

}  // namespace gpuprof::symbolize
