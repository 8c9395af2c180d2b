// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/image.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "daemon/cubin/call_sites.h"
#include "daemon/cubin/callers.h"
#include "daemon/cubin/elf_image.h"
#include "daemon/cubin/line_table.h"

namespace gpuprof::cubin {
namespace {

constexpr uint64_t kSectionAlignment = 256;
// Two chains, most often.
constexpr size_t kFramesWithCallers = 16;

// Size of `$__internal_N_$`, by which functions of ptxas' own library begin; 0: it is none.
size_t library_prefix(std::string_view symbol) {
  constexpr std::string_view kInternal = "$__internal_";
  if (!symbol.starts_with(kInternal)) return 0;
  const size_t end = symbol.find_first_not_of("0123456789", kInternal.size());
  if (end == std::string_view::npos || !symbol.substr(end).starts_with("_$")) return 0;
  return end + 2;
}

// A device function inside a kernel's section is the symbol `$kernel$callee`, or
// `$__internal_N_$callee`: the callee is what the rest of the world calls it.
std::string_view callee_name(std::string_view symbol, std::string_view kernel) {
  if (!symbol.starts_with('$')) return symbol;
  std::string_view rest = symbol;
  if (rest.substr(1).starts_with(kernel) && rest.substr(1 + kernel.size()).starts_with('$')) {
    rest.remove_prefix(kernel.size() + 2);
  } else if (const size_t prefix = library_prefix(rest); prefix != 0) {
    rest.remove_prefix(prefix);
  }
  return rest.empty() ? symbol : rest;
}

uint64_t name_hash(std::string_view name) { return std::hash<std::string_view>()(name); }

}  // namespace

const char* source_status_name(SourceStatus status) {
  switch (status) {
    case SourceStatus::kInvalid:
      return "";
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
    uint32_t function = 0;  // of `functions`
    // Of all that have the name, at the first of them.
    uint64_t longest = 0;
    bool has_no_kernel = false;  // one lies in a section without
  };
  // What a name and a kernel stand for.
  struct Chosen {
    uint32_t function = kNone;  // of `functions`
    bool is_ambiguous = false;  // one of several, which is not known
    uint64_t longest = 0;       // of these
  };
  // The function that an offset belongs to, and where the code that is only its own begins.
  struct Owner {
    uint32_t function = 0;
    uint32_t not_before = 0;
  };
  class Chains;
  static constexpr uint32_t kNone = UINT32_MAX;

  void lay_out();
  void place_functions();
  void index_names();
  [[nodiscard]] Owner owner_of(const Section& section, uint64_t offset, uint32_t named) const;
  [[nodiscard]] std::span<const Named> find(std::string_view name) const;
  // Those of one name that lie in one section.
  [[nodiscard]] std::span<const Named> in_text(std::span<const Named> named, uint32_t text) const;
  [[nodiscard]] Chosen choose(std::string_view name, std::string_view kernel) const;
  // Up to `function`, in which the location is.
  void add_chain(uint32_t location, std::string_view function, std::vector<SourceFrame>& to) const;
  // The same for an instruction, whether the table has it or not.
  void add_chain_at(uint32_t text, uint64_t offset, const Owner& owner, std::string_view function,
                    std::vector<SourceFrame>& to) const;
  void add_callers(uint32_t text, uint64_t offset, std::string_view kernel,
                   std::vector<SourceFrame>& to) const;
  [[nodiscard]] CallSites call_sites_of(uint32_t text, std::span<const Region> regions) const;

  std::vector<std::byte> bytes;
  ElfImage elf;
  std::optional<LineTable> lines;
  std::vector<Section> sections;  // like elf.texts
  std::vector<Function> functions;
  std::vector<uint32_t> text_of_function;  // like `functions`: index into `sections`
  // Sorted by hash, then name (names that were made to collide cost a lookup no more than others),
  // then kernels, then by section.
  std::vector<Named> by_name;
  uint64_t limit = kSectionAlignment;

  // Found when a device function of the section is asked about: most never are.
  struct SectionCallers {
    std::vector<Region> regions;
    Callers callers;
  };
  static_assert(sizeof(Region) + Callers::kBytesPerRegion <= kCallerBytes);
  // Null: nothing is known of any.
  [[nodiscard]] const SectionCallers* callers_of(uint32_t text) const;
  mutable std::mutex callers_mutex;
  mutable std::vector<std::unique_ptr<const SectionCallers>> callers;  // like `sections`
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
    const bool has_no_kernel = sections[text_of_function[i]].kernel == kNone;
    by_name.push_back({name_hash(functions[i].mangled), i, functions[i].size_bytes, has_no_kernel});
  }
  std::sort(by_name.begin(), by_name.end(), [this](const Named& a, const Named& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const Function& left = functions[a.function];
    const Function& right = functions[b.function];
    if (left.mangled != right.mangled) return left.mangled < right.mangled;
    return left.is_kernel != right.is_kernel ? left.is_kernel : a.function < b.function;
  });
  for (size_t first = 0, at = 1; at < by_name.size(); ++at) {
    if (functions[by_name[first].function].mangled == functions[by_name[at].function].mangled) {
      by_name[first].longest = std::max(by_name[first].longest, by_name[at].longest);
      by_name[first].has_no_kernel = by_name[first].has_no_kernel || by_name[at].has_no_kernel;
    } else {
      first = at;
    }
  }
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

// All that have the name.
std::span<const Image::Impl::Named> Image::Impl::find(std::string_view name) const {
  const uint64_t hash = name_hash(name);
  const auto first = std::lower_bound(by_name.begin(), by_name.end(), name,
                                      [&](const Named& entry, std::string_view value) {
                                        if (entry.hash != hash) return entry.hash < hash;
                                        return functions[entry.function].mangled < value;
                                      });
  const auto end =
      std::upper_bound(first, by_name.end(), name, [&](std::string_view value, const Named& entry) {
        if (entry.hash != hash) return hash < entry.hash;
        return value < functions[entry.function].mangled;
      });
  return {first, end};
}

// `named` holds no kernel: so it is in the order of the functions' numbers, which is that of the
// sections.
std::span<const Image::Impl::Named> Image::Impl::in_text(std::span<const Named> named,
                                                         uint32_t text) const {
  const auto of = [this](const Named& entry) { return text_of_function[entry.function]; };
  return {std::ranges::lower_bound(named, text, {}, of),
          std::ranges::upper_bound(named, text, {}, of)};
}

Image::Impl::Chosen Image::Impl::choose(std::string_view name, std::string_view kernel) const {
  const std::span<const Named> named = find(name);
  if (named.empty()) return {};
  const Named& first = named.front();
  if (named.size() == 1 || functions[first.function].is_kernel) return {first.function, false, 0};
  const Chosen unknown{first.function, true, first.longest};
  const std::span<const Named> kernels = find(kernel);
  if (kernels.empty() || !functions[kernels.front().function].is_kernel) return unknown;
  const auto there = in_text(named, text_of_function[kernels.front().function]);
  return there.size() == 1 ? Chosen{there.front().function, false, 0} : unknown;
}

void Image::Impl::add_chain(uint32_t number, std::string_view function,
                            std::vector<SourceFrame>& to) const {
  size_t frames = to.size() + 2;  // and the kernel above a device function
  for (uint32_t up = lines->location(number).caller; up != 0; ++frames) {
    up = lines->location(up - 1).caller;
  }
  to.reserve(frames);
  for (;;) {
    const LineLocation& at = lines->location(number);
    const bool inlined = at.caller != 0;
    to.push_back({inlined ? lines->function(at) : function, lines->file(at), at.line});
    if (!inlined) return;
    number = at.caller - 1;
  }
}

void Image::Impl::add_chain_at(uint32_t text, uint64_t offset, const Owner& owner,
                               std::string_view function, std::vector<SourceFrame>& to) const {
  const auto location = lines->find(text, static_cast<uint32_t>(offset), owner.not_before);
  if (location) {
    add_chain(*location, function, to);
  } else {
    to.push_back({function, {}, 0});
  }
}

// `kernel`: the name that was asked for, of several.
class Image::Impl::Chains : public SiteChains {
 public:
  Chains(const Impl& impl, uint32_t text, std::string_view kernel)
      : impl_(impl), text_(text), kernel_(kernel) {}

  void append(uint32_t offset, std::vector<SourceFrame>& to) const override {
    const Section& section = impl_.sections[text_];
    const Owner owner = impl_.owner_of(section, offset, section.kernel);
    const Function& function = impl_.functions[owner.function];
    const std::string_view name =
        function.is_kernel ? kernel_ : callee_name(function.mangled, section.function);
    impl_.add_chain_at(text_, offset, owner, name, to);
  }
  [[nodiscard]] SourceFrame kernel() const override { return {kernel_, {}, 0}; }

 private:
  const Impl& impl_;
  uint32_t text_;
  std::string_view kernel_;
};

CallSites Image::Impl::call_sites_of(uint32_t text, std::span<const Region> regions) const {
  const auto& references = *elf.code_references;
  const std::span<const CodeReference> to_text{
      std::ranges::lower_bound(references, text, {}, &CodeReference::to_text),
      std::ranges::upper_bound(references, text, {}, &CodeReference::to_text)};
  return find_call_sites({elf.sm, elf.texts[text].code, regions, text, to_text});
}

const Image::Impl::SectionCallers* Image::Impl::callers_of(uint32_t text) const {
  const Section& section = sections[text];
  if (section.kernel == kNone || !elf.code_references || !lines->has(text)) return nullptr;
  const std::lock_guard lock(callers_mutex);
  callers.resize(sections.size());
  if (callers[text] != nullptr) return callers[text].get();
  auto made = std::make_unique<SectionCallers>();
  bool has_one_kernel = true;
  for (const Placed& placed : section.placed) {
    const Function& function = functions[placed.function];
    made->regions.push_back(
        {placed.offset, placed.end, function.is_kernel, library_prefix(function.mangled) != 0});
    const Function& kernel = functions[section.kernel];
    has_one_kernel =
        has_one_kernel && (!function.is_kernel || (function.offset == kernel.offset &&
                                                   function.size_bytes == kernel.size_bytes));
  }
  CallSites sites;
  if (has_one_kernel) {
    sites = call_sites_of(text, made->regions);
  } else {
    sites.has_others.assign(made->regions.size() + 1, true);
  }
  made->callers = Callers::build(sites, Chains(*this, text, functions[section.kernel].mangled),
                                 elf.texts[text].size_bytes);
  callers[text] = std::move(made);
  return callers[text].get();
}

// Above the device function at `offset`.
void Image::Impl::add_callers(uint32_t text, uint64_t offset, std::string_view kernel,
                              std::vector<SourceFrame>& to) const {
  const Chains chains(*this, text, kernel);
  const SectionCallers* const known = callers_of(text);
  const uint32_t region = known == nullptr ? kKernelRegion : region_of(known->regions, offset);
  if (region == kKernelRegion) {
    to.push_back(chains.kernel());
  } else {
    known->callers.append(region, chains, to);
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
  const std::span<const Impl::Named> named = impl_->find(mangled);
  return named.empty() ? nullptr : &impl_->functions[named.front().function];
}

Resolution Image::resolve(std::string_view function, uint64_t pc_offset,
                          std::string_view kernel) const {
  Resolution resolution;
  const Impl::Chosen chosen = impl_->choose(function, kernel);
  if (chosen.function == Impl::kNone) return resolution;
  const Function& named = impl_->functions[chosen.function];
  const uint32_t text = impl_->text_of_function[chosen.function];
  const Impl::Section& section = impl_->sections[text];
  if (chosen.is_ambiguous) {
    if (pc_offset >= chosen.longest) return resolution;
    resolution.status = SourceStatus::kNoLineInfo;
    resolution.frames.push_back({callee_name(named.mangled, section.function), {}, 0});
    return resolution;
  }
  if (pc_offset >= named.size_bytes) return resolution;
  const uint64_t offset = named.offset + pc_offset;
  resolution.address = section.base + offset;
  resolution.status = SourceStatus::kNoLineInfo;

  // `function` covers the PC; what lies innermost there may be a device function inside it.
  const Impl::Owner at = impl_->owner_of(section, offset, chosen.function);
  const Function& owner = impl_->functions[at.function];
  const std::string_view name =
      owner.is_kernel ? owner.mangled : callee_name(owner.mangled, section.function);
  if (!owner.is_kernel) resolution.frames.reserve(kFramesWithCallers);
  impl_->add_chain_at(text, offset, at, name, resolution.frames);
  // A section's kernel may have a second name.
  if (!owner.is_kernel && (named.is_kernel || section.kernel != Impl::kNone)) {
    const Function& above = named.is_kernel ? named : impl_->functions[section.kernel];
    impl_->add_callers(text, offset, above.mangled, resolution.frames);
  }
  const auto has_line = [](const SourceFrame& frame) {
    return frame.line != 0 && !frame.file.empty();
  };
  if (std::ranges::any_of(resolution.frames, has_line)) resolution.status = SourceStatus::kResolved;
  return resolution;
}

bool Image::may_run_in(std::string_view function, std::string_view kernel) const {
  const std::span<const Impl::Named> named = impl_->find(function), kernels = impl_->find(kernel);
  if (named.empty() || kernels.empty()) return false;
  const Function& first = impl_->functions[named.front().function];
  const Function& outer = impl_->functions[kernels.front().function];
  if (!outer.is_kernel) return false;
  if (first.is_kernel)
    return first.section == outer.section && first.offset == outer.offset &&
           first.size_bytes == outer.size_bytes;
  const uint32_t text = impl_->text_of_function[kernels.front().function];
  return named.front().has_no_kernel || !impl_->in_text(named, text).empty();
}

}  // namespace gpuprof::cubin
