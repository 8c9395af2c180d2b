// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/file_symbols.h"

#include <fcntl.h>

#include <optional>
#include <utility>

#include "daemon/base/unique_fd.h"
#include "daemon/symbolize/demangle.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/mapped_file.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::symbolize {
namespace {

// The host's file is the daemon's own and trusted; the target's is opened inside its root.
UniqueFd open_debug_file(const std::string& path, const unwind::AddressSpace& space) {
  if (auto fd = space.open_in_root(path)) return std::move(*fd);
  return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}

// By build id only (the layout of gdb and elfutils): a .gnu_debuglink names a file by a CRC that
// would have to be computed over all of it.
std::shared_ptr<unwind::ElfFile> separate_debug_file(const unwind::ElfFile& file,
                                                     const unwind::AddressSpace& space) {
  const std::string& id = file.build_id();
  if (id.size() < 6) return nullptr;
  const UniqueFd fd = open_debug_file(
      "/usr/lib/debug/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug", space);
  if (!fd.valid()) return nullptr;
  auto mapped = unwind::MappedFile::map(fd.get());
  if (!mapped) return nullptr;
  auto debug = unwind::ElfFile::from_file(std::move(*mapped));
  if (!debug || (*debug)->build_id() != id) return nullptr;
  return std::move(*debug);
}

}  // namespace

FileSymbols::FileSymbols(std::shared_ptr<unwind::ElfFile> file, size_t max_locations)
    : file_(std::move(file)), max_locations_(max_locations) {}

FileSymbols::~FileSymbols() = default;

void FileSymbols::load(const unwind::AddressSpace& space) {
  loaded_ = true;
  table_ = std::make_unique<SymbolTable>(file_->elf());
  if (file_->is_debug_bounded()) debug_ = DebugInfo::open(file_->elf());
  if (debug_) return;
  debug_file_ = separate_debug_file(*file_, space);
  if (!debug_file_) return;
  debug_table_ = std::make_unique<SymbolTable>(debug_file_->elf());
  if (debug_file_->is_debug_bounded()) debug_ = DebugInfo::open(debug_file_->elf());
}

size_t FileSymbols::table_bytes() const {
  return (table_ ? table_->bytes() : 0) + (debug_table_ ? debug_table_->bytes() : 0);
}

Frames FileSymbols::look_up(uint64_t address) {
  std::optional<Symbol> symbol = debug_table_ ? debug_table_->find(address) : std::nullopt;
  if (!symbol) symbol = table_->find(address);
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

std::shared_ptr<const Frames> FileSymbols::frames(uint64_t address,
                                                  const unwind::AddressSpace& space) {
  if (const auto it = locations_.find(address); it != locations_.end()) return it->second;
  if (!loaded_) load(space);
  if (locations_.size() >= max_locations_) locations_.clear();
  auto frames = std::make_shared<const Frames>(look_up(address));
  locations_.emplace(address, frames);
  return frames;
}

}  // namespace gpuprof::symbolize
