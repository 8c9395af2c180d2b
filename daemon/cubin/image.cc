// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/image.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "daemon/cubin/elf_image.h"
#include "daemon/cubin/line_table.h"

namespace gpuprof::cubin {
namespace {

constexpr uint64_t kSectionAlignment = 256;

// A device function inside a kernel's section is the symbol `$kernel$callee`, or, from ptxas' own
// library, `$__internal_N_$callee`: the callee is what the rest of the world calls it.
std::string_view callee_name(std::string_view symbol, std::string_view kernel) {
  constexpr std::string_view kInternal = "$__internal_";
  if (!symbol.starts_with('$')) return symbol;
  std::string_view rest = symbol;
  if (rest.substr(1).starts_with(kernel) && rest.substr(1 + kernel.size()).starts_with('$')) {
    rest.remove_prefix(kernel.size() + 2);
  } else if (rest.starts_with(kInternal)) {
    rest.remove_prefix(kInternal.size());
    const size_t end = rest.find_first_not_of("0123456789");
    if (end == std::string_view::npos || !rest.substr(end).starts_with("_$")) return symbol;
    rest.remove_prefix(end + 2);
  }
  return rest.empty() ? symbol : rest;
}

uint64_t name_hash(std::string_view name) { return std::hash<std::string_view>()(name); }

}  // namespace

const char* source_status_name(SourceStatus status) {
  switch (status) {
    case SourceStatus::kResolved:
      return "resolved";
    case SourceStatus::kNoLineInfo:
      return "no-lineinfo";
    case SourceStatus::kNoModule:
      return "no-module";
    case SourceStatus::kUnmapped:
      break;
  }
  return "unmapped";
}

struct Image::Impl {
  // A function as the section lists it: those that enclose others before those.
  struct Placed {
    uint32_t offset = 0;
    uint32_t end = 0;
    uint32_t function = 0;  // of `functions`
  };
  struct Section {
    std::string_view function;  // the name in ".text.<name>"
    uint64_t base = 0;          // in the linear layout
    std::vector<Placed> placed;
    uint32_t kernel = kNone;  // of `functions`: what the section's device functions are called by
  };
  struct Named {
    uint64_t hash = 0;
    uint32_t function = 0;   // of `functions`
    bool ambiguous = false;  // local functions of two sections have it
  };
  // The function that an offset belongs to, and where the code that is only its own begins.
  struct Owner {
    uint32_t function = 0;
    uint32_t not_before = 0;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void lay_out();
  void place_functions();
  void index_names();
  [[nodiscard]] Owner owner_of(const Section& section, uint64_t offset, uint32_t named) const;
  [[nodiscard]] const Named* find(std::string_view name) const;
  void add_chain(uint32_t location, std::string_view function, Resolution& to) const;

  std::vector<std::byte> bytes;
  ElfImage elf;
  std::optional<LineTable> lines;
  std::vector<Section> sections;  // like elf.texts
  std::vector<Function> functions;
  std::vector<uint32_t> text_of_function;  // like `functions`: index into `sections`
  // Sorted by hash, then name: names that were made to collide cost a lookup no more than others.
  std::vector<Named> by_name;
  uint64_t limit = kSectionAlignment;
};

void Image::Impl::lay_out() {
  for (const TextSection& text : elf.texts) {
    sections.push_back({text.function, limit, {}, kNone});
    limit += (std::max<uint64_t>(text.size_bytes, 1) + kSectionAlignment - 1) / kSectionAlignment *
             kSectionAlignment;
  }
}

void Image::Impl::place_functions() {
  auto& symbols = elf.functions;
  // Outer before inner, so that a kernel precedes the device functions at its own start.
  std::stable_sort(symbols.begin(), symbols.end(), [](const auto& a, const auto& b) {
    if (a.text != b.text) return a.text < b.text;
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.size_bytes > b.size_bytes;
  });
  functions.reserve(symbols.size());
  text_of_function.reserve(symbols.size());
  for (const FunctionSymbol& symbol : symbols) {
    Section& section = sections[symbol.text];
    const auto number = static_cast<uint32_t>(functions.size());
    functions.push_back({symbol.name, symbol.is_kernel, elf.texts[symbol.text].index, symbol.offset,
                         symbol.size_bytes, section.base + symbol.offset});
    text_of_function.push_back(symbol.text);
    section.placed.push_back({static_cast<uint32_t>(symbol.offset),
                              static_cast<uint32_t>(symbol.offset + symbol.size_bytes), number});
    if (symbol.is_kernel && section.kernel == kNone) section.kernel = number;
  }
  symbols = {};
}

void Image::Impl::index_names() {
  by_name.reserve(functions.size());
  for (uint32_t i = 0; i < functions.size(); ++i) {
    by_name.push_back({name_hash(functions[i].mangled), i, false});
  }
  std::sort(by_name.begin(), by_name.end(), [this](const Named& a, const Named& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const Function& left = functions[a.function];
    const Function& right = functions[b.function];
    if (left.mangled != right.mangled) return left.mangled < right.mangled;
    return left.is_kernel != right.is_kernel ? left.is_kernel : a.function < b.function;
  });
  size_t kept = 0;
  for (const Named& at : by_name) {
    const Function* const last = kept == 0 ? nullptr : &functions[by_name[kept - 1].function];
    if (last == nullptr || last->mangled != functions[at.function].mangled) {
      by_name[kept++] = at;
    } else if (!last->is_kernel) {
      by_name[kept - 1].ambiguous = true;
    }
  }
  by_name.resize(kept);
}

// Device functions lie one after the other in their kernel, whose symbol spans them all.
Image::Impl::Owner Image::Impl::owner_of(const Section& section, uint64_t offset,
                                         uint32_t named) const {
  const Function& function = functions[named];
  const auto after =
      std::upper_bound(section.placed.begin(), section.placed.end(), offset,
                       [](uint64_t value, const Placed& at) { return value < at.offset; });
  const auto start = static_cast<uint32_t>(function.offset);
  if (after == section.placed.begin()) return {named, start};
  const Placed& last = *(after - 1);
  if (offset >= last.end) return {named, std::max(start, last.end)};
  const bool alias =
      last.offset == function.offset && last.end == function.offset + function.size_bytes;
  return {alias ? named : last.function, last.offset};
}

const Image::Impl::Named* Image::Impl::find(std::string_view name) const {
  const uint64_t hash = name_hash(name);
  const auto at = std::lower_bound(by_name.begin(), by_name.end(), name,
                                   [&](const Named& entry, std::string_view value) {
                                     if (entry.hash != hash) return entry.hash < hash;
                                     return functions[entry.function].mangled < value;
                                   });
  return at == by_name.end() || functions[at->function].mangled != name ? nullptr : &*at;
}

void Image::Impl::add_chain(uint32_t number, std::string_view function, Resolution& to) const {
  size_t frames = 2;  // and the kernel above a device function
  for (uint32_t up = lines->location(number).caller; up != 0; ++frames) {
    up = lines->location(up - 1).caller;
  }
  to.frames.reserve(frames);
  for (;;) {
    const LineLocation& at = lines->location(number);
    const bool inlined = at.caller != 0;
    to.frames.push_back({inlined ? lines->function(at) : function, lines->file(at), at.line});
    if (!inlined) return;
    number = at.caller - 1;
  }
}

Image::Image() : impl_(std::make_unique<Impl>()) {}
Image::~Image() = default;

Result<std::shared_ptr<const Image>> Image::parse(std::vector<std::byte> bytes) {
  std::shared_ptr<Image> image(new Image);
  Impl& impl = *image->impl_;
  impl.bytes = std::move(bytes);
  auto elf = ElfImage::parse(impl.bytes);
  if (!elf) return tl::unexpected(elf.error());
  impl.elf = std::move(*elf);
  auto lines = LineTable::build(impl.elf);
  if (!lines) return tl::unexpected(lines.error());
  impl.lines = std::move(*lines);
  impl.elf.line_addresses = {};
  impl.lay_out();
  impl.place_functions();
  impl.index_names();
  return image;
}

uint32_t Image::sm() const { return impl_->elf.sm; }
uint32_t Image::abi_version() const { return impl_->elf.abi_version; }
bool Image::has_line_info() const { return !impl_->lines->empty(); }
std::span<const std::byte> Image::bytes() const { return impl_->bytes; }
std::span<const Function> Image::functions() const { return impl_->functions; }
uint64_t Image::limit() const { return impl_->limit; }
uint64_t Image::line_table_bytes() const { return impl_->elf.debug_line.size(); }
uint64_t Image::line_index_bytes() const { return impl_->lines->size_bytes(); }

const Function* Image::find(std::string_view mangled) const {
  const Impl::Named* const named = impl_->find(mangled);
  return named == nullptr ? nullptr : &impl_->functions[named->function];
}

Resolution Image::resolve(std::string_view function, uint64_t pc_offset) const {
  Resolution resolution;
  const Impl::Named* const entry = impl_->find(function);
  if (entry == nullptr) return resolution;
  const Function& named = impl_->functions[entry->function];
  if (pc_offset >= named.size_bytes) return resolution;
  const uint32_t text = impl_->text_of_function[entry->function];
  const Impl::Section& section = impl_->sections[text];
  const uint64_t offset = named.offset + pc_offset;
  resolution.address = section.base + offset;
  resolution.status = SourceStatus::kNoLineInfo;
  if (entry->ambiguous) {
    resolution.frames.push_back({callee_name(named.mangled, section.function), {}, 0});
    return resolution;
  }

  // `function` covers the PC; what lies innermost there may be a device function inside it.
  const Impl::Owner at = impl_->owner_of(section, offset, entry->function);
  const Function& owner = impl_->functions[at.function];
  const std::string_view name =
      owner.is_kernel ? owner.mangled : callee_name(owner.mangled, section.function);
  if (const auto location =
          impl_->lines->find(text, static_cast<uint32_t>(offset), at.not_before)) {
    impl_->add_chain(*location, name, resolution);
    const SourceFrame& innermost = resolution.frames.front();
    if (innermost.line != 0 && !innermost.file.empty()) resolution.status = SourceStatus::kResolved;
  } else {
    resolution.frames.push_back({name, {}, 0});
  }
  // Which of the kernel's lines called it is not in the image.
  if (!owner.is_kernel && section.kernel != Impl::kNone) {
    resolution.frames.push_back({impl_->functions[section.kernel].mangled, {}, 0});
  }
  return resolution;
}

}  // namespace gpuprof::cubin
