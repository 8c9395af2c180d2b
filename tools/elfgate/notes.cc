// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/notes.h"

#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpuprof::elfgate {
namespace {

constexpr uint32_t kStapNoteType = 3;  // _SDT_NOTE_TYPE, systemtap's sys/sdt.h
constexpr size_t kMaxProbes = 16384;

struct Note {
  uint32_t type;
  std::string_view owner;
  std::span<const uint8_t> desc;
};

uint64_t padded(uint64_t size_bytes, uint64_t align_bytes) {
  return (size_bytes + align_bytes - 1) & ~(align_bytes - 1);
}

// Calls `visit` with each note. Names and descriptions are padded to 4 bytes, or to 8 in what is
// aligned to 8 (gABI; only .note.gnu.property is).
Status for_each_note(std::span<const uint8_t> bytes, uint64_t align_bytes,
                     const std::function<Status(const Note&)>& visit) {
  const uint64_t align = align_bytes == 8 ? 8 : 4;
  uint64_t at = 0;
  while (bytes.size() - at >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    std::memcpy(&header, bytes.data() + at, sizeof(header));
    const uint64_t name = at + sizeof(header);
    const uint64_t desc = padded(name + header.n_namesz, align);
    if (desc > bytes.size() || header.n_descsz > bytes.size() - desc) return fail("a note is cut");
    Note note{header.n_type, {}, bytes.subspan(desc, header.n_descsz)};
    note.owner = {reinterpret_cast<const char*>(bytes.data() + name), header.n_namesz};
    if (!note.owner.empty() && note.owner.back() == '\0') note.owner.remove_suffix(1);
    if (Status visited = visit(note); !visited) return visited;
    at = padded(desc + header.n_descsz, align);
    if (at >= bytes.size()) break;
  }
  return {};
}

void read_properties(std::span<const uint8_t> desc, Facts& facts) {
  const bool is_x86 = facts.machine == "x86-64";
  while (desc.size() >= 8) {
    std::array<uint32_t, 3> words{};  // type, size, the first word of the value
    std::memcpy(words.data(), desc.data(), std::min<size_t>(desc.size(), sizeof(words)));
    if (words[1] > desc.size() - 8) return;
    if (words[1] == 4) {
      if (is_x86 && words[0] == GNU_PROPERTY_X86_ISA_1_NEEDED) facts.x86_isa_needed = words[2];
      if (words[0] ==
          (is_x86 ? GNU_PROPERTY_X86_FEATURE_1_AND : GNU_PROPERTY_AARCH64_FEATURE_1_AND)) {
        facts.machine_features = words[2];
      }
    }
    desc = desc.subspan(std::min<uint64_t>(desc.size(), padded(8 + uint64_t{words[1]}, 8)));
  }
}

void read_gnu_note(const Note& note, Facts& facts) {
  if (note.owner != "GNU") return;
  if (note.type == NT_GNU_PROPERTY_TYPE_0) read_properties(note.desc, facts);
  if (note.type != NT_GNU_BUILD_ID || !facts.build_id.empty() || note.desc.size() > 64) return;
  for (const uint8_t byte : note.desc) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    facts.build_id += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
}

// Takes the next NUL-terminated string off `rest`.
std::optional<std::string_view> take_string(std::string_view& rest) {
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view text = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return text;
}

// Of the section that holds a 16-bit counter at `address`.
std::string_view section_of(const ElfImage& image, uint64_t address) {
  for (const Section& section : image.sections()) {
    const GElf_Shdr& header = section.header;
    if ((header.sh_flags & SHF_ALLOC) == 0 || address < header.sh_addr) continue;
    if (header.sh_size >= 2 && address - header.sh_addr <= header.sh_size - 2) return section.name;
  }
  return {};
}

// The description: addresses of site, base and semaphore, then provider, name and arguments.
Status read_probe(const ElfImage& image, uint64_t moved_base, const Note& note, Facts& facts) {
  if (note.owner != "stapsdt" || note.type != kStapNoteType) return {};
  if (facts.probes.size() >= kMaxProbes) return fail("too many USDT notes");
  std::array<uint64_t, 3> addresses;
  if (note.desc.size() < sizeof(addresses)) return fail("a USDT note is cut");
  std::memcpy(addresses.data(), note.desc.data(), sizeof(addresses));
  std::string_view strings(reinterpret_cast<const char*>(note.desc.data()), note.desc.size());
  strings.remove_prefix(sizeof(addresses));
  const auto provider = take_string(strings);
  const auto name = take_string(strings);
  const auto arguments = take_string(strings);
  if (!provider || !name || !arguments) return fail("a USDT note is cut");
  // prelink moves code without rewriting notes; the move shows in the base section's address.
  const uint64_t moved = moved_base && addresses[1] ? moved_base - addresses[1] : 0;
  UsdtProbe probe;
  probe.provider = *provider;
  probe.name = *name;
  probe.arguments = *arguments;
  probe.site = addresses[0] + moved;
  probe.semaphore = addresses[2] ? addresses[2] + moved : 0;
  const GElf_Phdr* load = image.load_of(probe.site, 1);
  probe.is_site_code = load && (load->p_flags & PF_X) != 0;
  if (probe.semaphore) probe.semaphore_section = section_of(image, probe.semaphore);
  facts.probes.push_back(probe);
  return {};
}

}  // namespace

Status read_notes(const ElfImage& image, Facts& facts) {
  for (const GElf_Phdr& segment : image.segments()) {
    if (segment.p_type != PT_NOTE || segment.p_filesz == 0) continue;
    const auto bytes = image.at_offset(segment.p_offset, segment.p_filesz, "PT_NOTE");
    if (!bytes) return fail(bytes.error());
    Status read = for_each_note(*bytes, segment.p_align, [&facts](const Note& note) {
      read_gnu_note(note, facts);
      return Status();
    });
    if (!read) return read;
  }
  const Section* base = image.section(".stapsdt.base");
  for (const Section& section : image.sections()) {
    if (section.header.sh_type != SHT_NOTE || section.name != ".note.stapsdt") continue;
    const auto bytes =
        image.at_offset(section.header.sh_offset, section.header.sh_size, ".note.stapsdt");
    if (!bytes) return fail(bytes.error());
    Status read = for_each_note(*bytes, 4, [&](const Note& note) {
      return read_probe(image, base ? base->header.sh_addr : 0, note, facts);
    });
    if (!read) return read;
  }
  return {};
}

}  // namespace gpuprof::elfgate
