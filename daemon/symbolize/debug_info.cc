// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/debug_info.h"

#include <dwarf.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <utility>

#include "daemon/symbolize/demangle.h"
#include "daemon/symbolize/elf_section.h"
#include "daemon/symbolize/line_check.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::symbolize {
namespace {

constexpr int kMaxDepth = 64;           // of nested DIEs
constexpr size_t kMaxDies = 1'000'000;  // visited in one unit
constexpr size_t kMaxUnitRanges = 1 << 20;
constexpr size_t kMaxRangesPerDie = 4096;
constexpr int kMaxEnclosing = 64;

// libdw 0.192 does not check every allocation: dwarf_getsrclines() and the search of abbreviations
// ended in SIGSEGV where none was left. A line table of the size of libc's takes less.
constexpr size_t kRoomBytes = 4u << 20;

// Throws std::bad_alloc where libdw might run out of memory.
void require_room() {
  void* room = ::operator new(kRoomBytes);
  asm volatile("" : : "r"(room) : "memory");  // not optimised away
  ::operator delete(room);
}

// A file whose debug information has a byte that no DIE can be in.
Elf* empty_debug_file() {
  struct Image {
    Elf64_Ehdr header = {};
    char strings[24] = "\0.debug_info\0.shstrtab";
    Elf64_Shdr sections[3] = {};
  };
  static Image image = [] {
    Image out;
    std::memcpy(out.header.e_ident, ELFMAG, SELFMAG);
    out.header.e_ident[EI_CLASS] = ELFCLASS64;
    out.header.e_ident[EI_DATA] = ELFDATA2LSB;
    out.header.e_ident[EI_VERSION] = EV_CURRENT;
    out.header.e_type = ET_DYN;
    out.header.e_machine = EM_X86_64;
    out.header.e_version = EV_CURRENT;
    out.header.e_ehsize = sizeof(Elf64_Ehdr);
    out.header.e_shoff = offsetof(Image, sections);
    out.header.e_shentsize = sizeof(Elf64_Shdr);
    out.header.e_shnum = 3;
    out.header.e_shstrndx = 2;
    Elf64_Shdr& info = out.sections[1];
    info.sh_name = 1;
    info.sh_type = SHT_PROGBITS;
    info.sh_offset = offsetof(Image, strings);  // the first byte is zero
    info.sh_size = 1;
    info.sh_addralign = 1;
    Elf64_Shdr& strings = out.sections[2];
    strings.sh_name = 13;
    strings.sh_type = SHT_STRTAB;
    strings.sh_offset = offsetof(Image, strings);
    strings.sh_size = sizeof out.strings;
    strings.sh_addralign = 1;
    return out;
  }();
  static Elf* const elf = elf_memory(reinterpret_cast<char*>(&image), sizeof image);
  return elf;
}

// Calls visit(die) for each child; stops at false. Siblings must lie further on: DW_AT_sibling of a
// hostile file may point backwards.
template <class Visit>
bool for_each_child(Dwarf_Die* parent, size_t& budget, Visit visit) {
  Dwarf_Die child;
  if (dwarf_child(parent, &child) != 0) return true;
  for (;;) {
    if (budget-- == 0) {
      budget = 0;
      return false;
    }
    if (!visit(&child)) return false;
    Dwarf_Die next;
    if (dwarf_siblingof(&child, &next) != 0) return true;
    if (dwarf_dieoffset(&next) <= dwarf_dieoffset(&child)) return false;
    child = next;
  }
}

template <class Add>
void for_each_range(Dwarf_Die* die, Add add) {
  Dwarf_Addr base = 0;
  Dwarf_Addr start = 0;
  Dwarf_Addr end = 0;
  ptrdiff_t offset = 0;
  for (size_t i = 0; i < kMaxRangesPerDie; ++i) {
    const ptrdiff_t next = dwarf_ranges(die, offset, &base, &start, &end);
    if (next <= 0) return;
    if (start < end) add(start, end);
    if (next == offset) return;
    offset = next;
  }
}

const char* string_attribute(Dwarf_Die* die, unsigned name) {
  Dwarf_Attribute memory;
  Dwarf_Attribute* attr = dwarf_attr_integrate(die, name, &memory);
  return attr == nullptr ? nullptr : dwarf_formstring(attr);
}

uint32_t number_attribute(Dwarf_Die* die, unsigned name) {
  Dwarf_Attribute memory;
  Dwarf_Attribute* attr = dwarf_attr_integrate(die, name, &memory);
  Dwarf_Word value = 0;
  if (attr == nullptr || dwarf_formudata(attr, &value) != 0 || value > UINT32_MAX) return 0;
  return static_cast<uint32_t>(value);
}

std::string bounded(const char* text) {
  return text == nullptr ? std::string() : std::string(text, strnlen(text, kMaxMangledBytes));
}

// Fills in the function's names; true if it has a linkage name.
bool name_function(Dwarf_Die* die, SourceFrame& frame) {
  const char* linkage = string_attribute(die, DW_AT_linkage_name);
  if (linkage == nullptr) linkage = string_attribute(die, DW_AT_MIPS_linkage_name);
  const bool has_linkage = linkage != nullptr && linkage[0] != '\0';
  const std::string name = bounded(has_linkage ? linkage : string_attribute(die, DW_AT_name));
  frame.system_name = unwind::printable(name);
  frame.function = unwind::printable(demangle(name));
  frame.start_line = number_attribute(die, DW_AT_decl_line);
  return has_linkage;
}

// A file as its unit names it, made absolute by the unit's directory: build systems that compile
// with relative names (Ninja's) leave nothing else to find the source by.
std::string source_path(Dwarf_Die* cu, const char* name) {
  const std::string file = bounded(name);
  if (file.empty() || file[0] == '/') return unwind::printable(file);
  const std::string directory = bounded(string_attribute(cu, DW_AT_comp_dir));
  if (directory.empty() || directory[0] != '/') return unwind::printable(file);
  return unwind::printable(
      std::filesystem::path(directory + "/" + file).lexically_normal().string());
}

// Where the inlined subroutine `die` was called from.
void name_call_site(Dwarf_Die* cu, Dwarf_Die* die, SourceFrame& caller) {
  Dwarf_Attribute memory;
  Dwarf_Word file = 0;
  caller.line = number_attribute(die, DW_AT_call_line);
  Dwarf_Attribute* attr = dwarf_attr(die, DW_AT_call_file, &memory);
  Dwarf_Files* files = nullptr;
  size_t count = 0;
  if (attr == nullptr || dwarf_formudata(attr, &file) != 0) return;
  if (dwarf_getsrcfiles(cu, &files, &count) != 0 || file >= count) return;
  caller.file = source_path(cu, dwarf_filesrc(files, file, nullptr, nullptr));
}

// The inlined subroutines that hold `address` below `die`, outermost first.
void descend(Dwarf_Die* die, uint64_t address, int depth, size_t& budget,
             std::vector<Dwarf_Die>& inlined) {
  if (depth == kMaxDepth) return;
  for_each_child(die, budget, [&](Dwarf_Die* child) {
    const int tag = dwarf_tag(child);
    if (tag != DW_TAG_inlined_subroutine && tag != DW_TAG_lexical_block) return true;
    if (dwarf_haspc(child, address) != 1) {
      return true;
    }
    if (tag == DW_TAG_inlined_subroutine) inlined.push_back(*child);
    descend(child, address, depth + 1, budget, inlined);
    return false;
  });
}

// Functions may be nested in namespaces, types and other functions.
void collect_functions(Dwarf_Die* die, int depth, size_t& budget,
                       const std::function<void(Dwarf_Die*)>& add) {
  if (depth == kMaxDepth) return;
  for_each_child(die, budget, [&](Dwarf_Die* child) {
    switch (dwarf_tag(child)) {
      case DW_TAG_subprogram:
        add(child);
        collect_functions(child, depth + 1, budget, add);
        break;
      case DW_TAG_namespace:
      case DW_TAG_module:
      case DW_TAG_class_type:
      case DW_TAG_structure_type:
      case DW_TAG_union_type:
      case DW_TAG_lexical_block:
        collect_functions(child, depth + 1, budget, add);
        break;
      default:
        break;
    }
    return true;
  });
}

}  // namespace

std::unique_ptr<DebugInfo> DebugInfo::open(Elf* elf, Elf* alternate) {
  std::unique_ptr<DebugInfo> info(new DebugInfo(elf, alternate));
  require_room();
  if (!info->load()) return nullptr;
  info->index_units();
  return info->units_.empty() ? nullptr : std::move(info);
}

DebugInfo::~DebugInfo() = default;

// Once there is an alternate, libdw looks for none by itself.
bool DebugInfo::load() {
  loaded_.clear();
  dwarf_.reset();
  alternate_.reset();
  dwarf_.reset(dwarf_begin_elf(elf_, DWARF_C_READ, nullptr));
  if (!dwarf_) return false;
  if (section_named(elf_, {".gnu_debugaltlink"}) == nullptr) return true;
  if (alternate_elf_ != nullptr)
    alternate_.reset(dwarf_begin_elf(alternate_elf_, DWARF_C_READ, nullptr));
  if (!alternate_) alternate_.reset(dwarf_begin_elf(empty_debug_file(), DWARF_C_READ, nullptr));
  if (!alternate_) return false;
  dwarf_setalt(dwarf_.get(), alternate_.get());
  return true;
}

void DebugInfo::index_units() {
  Dwarf_CU* cu = nullptr;
  Dwarf_Die die;
  uint8_t type = 0;
  // The sub-DIE argument stays null: asking for it makes libdw look for .dwo files.
  while (dwarf_get_units(dwarf_.get(), cu, &cu, nullptr, &type, &die, nullptr) == 0) {
    if (type != DW_UT_compile && type != DW_UT_partial && type != 0) continue;
    const Dwarf_Off offset = dwarf_dieoffset(&die);
    require_room();
    for_each_range(&die, [&](uint64_t start, uint64_t end) {
      if (units_.size() < kMaxUnitRanges) units_.push_back({start, end, offset});
    });
    if (units_.size() >= kMaxUnitRanges) break;
  }
  std::sort(units_.begin(), units_.end(),
            [](const Range& a, const Range& b) { return a.start < b.start; });
  units_.shrink_to_fit();
}

const DebugInfo::Range* DebugInfo::covering(const std::vector<Range>& ranges, uint64_t address) {
  auto it = std::upper_bound(ranges.begin(), ranges.end(), address,
                             [](uint64_t at, const Range& r) { return at < r.start; });
  for (int back = 0; it != ranges.begin() && back < kMaxEnclosing; ++back) {
    --it;
    if (address < it->end) return &*it;
  }
  return nullptr;
}

bool DebugInfo::lines_readable(Dwarf_Die* cu) const {
  Dwarf_Attribute memory;
  Dwarf_Word offset = 0;
  LineUnit unit;
  Dwarf_Attribute* attr = dwarf_attr(cu, DW_AT_comp_dir, &memory);
  unit.has_directory = attr != nullptr && dwarf_formstring(attr) != nullptr;
  Dwarf_Die same;
  if (dwarf_diecu(cu, &same, &unit.address_bytes, nullptr) == nullptr) return false;
  attr = dwarf_attr(cu, DW_AT_stmt_list, &memory);
  if (attr == nullptr || dwarf_formudata(attr, &offset) != 0) return false;
  Elf_Scn* scn = section_named(elf_, {".debug_line", ".zdebug_line"});
  const Elf_Data* data = scn == nullptr ? nullptr : elf_rawdata(scn, nullptr);
  if (data == nullptr || data->d_buf == nullptr) return false;
  return may_read_lines({static_cast<const std::byte*>(data->d_buf), data->d_size}, offset, unit);
}

DebugInfo::Unit* DebugInfo::unit(Dwarf_Off offset, Dwarf_Die* cu) {
  if (auto it = loaded_.find(offset); it != loaded_.end()) {
    return dwarf_offdie(dwarf_.get(), offset, cu) == nullptr ? nullptr : &it->second;
  }
  if (loaded_.size() >= kMaxUnits && !load()) return nullptr;
  if (dwarf_offdie(dwarf_.get(), offset, cu) == nullptr) return nullptr;
  Unit& unit = loaded_[offset];
  unit.has_lines = lines_readable(cu);
  size_t budget = kMaxDies;
  collect_functions(cu, 0, budget, [&](Dwarf_Die* die) {
    const Dwarf_Off at = dwarf_dieoffset(die);
    for_each_range(die, [&](uint64_t start, uint64_t end) {
      unit.functions.push_back({start, end, at});
    });
  });
  std::stable_sort(unit.functions.begin(), unit.functions.end(),
                   [](const Range& a, const Range& b) { return a.start < b.start; });
  return &unit;
}

std::optional<DebugFrames> DebugInfo::find(uint64_t address) {
  const Range* range = covering(units_, address);
  Dwarf_Die cu;
  if (range == nullptr || !dwarf_) return std::nullopt;
  require_room();
  const Unit* u = unit(range->die, &cu);
  if (u == nullptr) return std::nullopt;
  std::vector<Dwarf_Die> chain;  // outermost first
  Dwarf_Die function;
  if (const Range* f = covering(u->functions, address);
      f != nullptr && dwarf_offdie(dwarf_.get(), f->die, &function) != nullptr) {
    chain.push_back(function);
    size_t budget = kMaxDies;
    descend(&function, address, 0, budget, chain);
  }
  DebugFrames result;
  result.frames.resize(std::max<size_t>(chain.size(), 1));
  const size_t count = result.frames.size();
  for (size_t i = 0; i < chain.size(); ++i) {
    const bool linkage = name_function(&chain[i], result.frames[count - 1 - i]);
    if (i == 0) result.has_linkage_name = linkage;
    if (i > 0 && u->has_lines) name_call_site(&cu, &chain[i], result.frames[count - i]);
  }
  if (u->has_lines) {
    if (Dwarf_Line* line = dwarf_getsrc_die(&cu, address)) {
      int number = 0;
      if (dwarf_lineno(line, &number) == 0 && number > 0) {
        result.frames[0].line = static_cast<uint32_t>(number);
      }
      result.frames[0].file = source_path(&cu, dwarf_linesrc(line, nullptr, nullptr));
    }
  }
  return result;
}

}  // namespace gpuprof::symbolize
