// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/cfi_section.h"

#include <dwarf.h>

#include <array>
#include <string_view>

namespace gpuprof::unwind {
namespace {

constexpr uint32_t kLength64 = 0xffffffff;
constexpr uint32_t kCieId32 = 0xffffffff;
constexpr uint64_t kCieId64 = ~uint64_t{0};

std::optional<uint64_t> pointer_base(uint8_t encoding, uint64_t here, uint64_t data_base) {
  switch (encoding & 0x70) {
    case DW_EH_PE_absptr:
    case DW_EH_PE_textrel:
    case DW_EH_PE_funcrel:
      return 0;
    case DW_EH_PE_pcrel:
      return here;
    case DW_EH_PE_datarel:
      return data_base;
    default:
      return std::nullopt;
  }
}

// The string of a CIE, its NUL taken; nothing if it is too long.
std::optional<std::string_view> augmentation(CfiCursor& at,
                                             std::array<char, CfiSection::kMaxAugmentation>& room) {
  for (size_t i = 0; i < room.size(); ++i) {
    room[i] = at.fixed<char>();
    if (at.failed()) return std::nullopt;
    if (room[i] == 0) return std::string_view(room.data(), i);
  }
  return std::nullopt;
}

// The data that the letters behind the 'z' describe. Letters that are not known have none.
bool read_augmentation(std::string_view letters, CfiCursor at, Cie& cie) {
  for (const char letter : letters) {
    if (letter == 'S') cie.is_signal_frame = true;
    if (letter == 'L') at.skip(1);  // the encoding of the language's data in FDEs
    if (letter == 'R') cie.pointer_encoding = at.fixed<uint8_t>();
    if (letter == 'P') at.skip(pointer_bytes(at.fixed<uint8_t>()));
  }
  return !at.failed();
}

}  // namespace

unsigned pointer_bytes(uint8_t encoding) {
  if (encoding == DW_EH_PE_omit) return 0;
  switch (encoding & 0x07) {
    case DW_EH_PE_udata2:
      return 2;
    case DW_EH_PE_udata4:
      return 4;
    case DW_EH_PE_udata8:
    case DW_EH_PE_absptr:
      return 8;
    default:
      return 0;
  }
}

std::optional<uint64_t> read_pointer(CfiCursor& at, uint8_t encoding, uint64_t section_address,
                                     uint64_t data_base) {
  const auto base = pointer_base(encoding, section_address + at.offset(), data_base);
  if (!base || (encoding & DW_EH_PE_indirect) != 0) return std::nullopt;
  uint64_t value = 0;
  switch (encoding & 0x0f) {
    case DW_EH_PE_absptr:
    case DW_EH_PE_udata8:
    case DW_EH_PE_sdata8:
      value = at.fixed<uint64_t>();
      break;
    case DW_EH_PE_udata4:
      value = at.fixed<uint32_t>();
      break;
    case DW_EH_PE_sdata4:
      value = static_cast<uint64_t>(int64_t{at.fixed<int32_t>()});
      break;
    case DW_EH_PE_udata2:
      value = at.fixed<uint16_t>();
      break;
    case DW_EH_PE_sdata2:
      value = static_cast<uint64_t>(int64_t{at.fixed<int16_t>()});
      break;
    case DW_EH_PE_uleb128:
      value = at.uleb();
      break;
    case DW_EH_PE_sleb128:
      value = static_cast<uint64_t>(at.sleb());
      break;
    default:
      return std::nullopt;
  }
  if (at.failed()) return std::nullopt;
  return *base + value;
}

std::optional<CfiRecord> record_at(const CfiSection& section, uint64_t offset) {
  CfiCursor at(section.bytes, offset, section.bytes.size());
  uint64_t length = at.fixed<uint32_t>();
  const bool is_64 = length == kLength64;
  if (is_64) length = at.fixed<uint64_t>();
  const unsigned pointer_size = is_64 ? 8 : 4;
  if (at.failed() || length <= pointer_size || length > section.bytes.size() - at.offset()) {
    return std::nullopt;
  }
  const uint64_t pointer_at = at.offset();
  const uint64_t pointer = is_64 ? at.fixed<uint64_t>() : at.fixed<uint32_t>();
  CfiRecord record;
  record.body = {at.offset(), pointer_at + length};
  if (section.is_eh_frame) {
    record.is_cie = pointer == 0;
    // The distance back to the CIE. One that leads nowhere leads to no CIE.
    record.cie = pointer > pointer_at ? section.bytes.size() : pointer_at - pointer;
  } else {
    record.is_cie = pointer == (is_64 ? kCieId64 : kCieId32);
    record.cie = pointer;
  }
  return record;
}

std::optional<Cie> cie_at(const CfiSection& section, uint64_t offset) {
  const auto record = record_at(section, offset);
  if (!record || !record->is_cie) return std::nullopt;
  CfiCursor at(section.bytes, record->body.begin, record->body.end);
  const auto version = at.fixed<uint8_t>();
  if (version != 1 && version != 3 && version != 4) return std::nullopt;
  std::array<char, CfiSection::kMaxAugmentation> room;
  const auto letters = augmentation(at, room);
  if (!letters) return std::nullopt;
  // Without the size of its data an augmentation cannot be skipped; nothing writes such on these
  // machines.
  if (!letters->empty() && letters->front() != 'z') return std::nullopt;
  if (version == 4) {
    const auto address_bytes = at.fixed<uint8_t>();
    const auto segment_bytes = at.fixed<uint8_t>();
    if (address_bytes != 8 || segment_bytes != 0) return std::nullopt;
  }
  Cie cie;
  cie.code_alignment = at.uleb();
  cie.data_alignment = at.sleb();
  cie.ra_register = version == 1 ? at.fixed<uint8_t>() : at.uleb();
  cie.pointer_encoding = DW_EH_PE_absptr;
  cie.has_augmentation = !letters->empty();
  if (cie.has_augmentation) {
    const uint64_t size = at.uleb();
    const uint64_t data = at.offset();
    at.skip(size);
    if (at.failed()) return std::nullopt;
    const CfiCursor described(section.bytes, data, at.offset());
    if (!read_augmentation(letters->substr(1), described, cie)) return std::nullopt;
  }
  if (at.failed()) return std::nullopt;
  cie.program = {at.offset(), record->body.end};
  return cie;
}

std::optional<Fde> fde_at(const CfiSection& section, uint64_t offset) {
  const auto record = record_at(section, offset);
  if (!record || record->is_cie) return std::nullopt;
  const auto cie = cie_at(section, record->cie);
  if (!cie) return std::nullopt;
  CfiCursor at(section.bytes, record->body.begin, record->body.end);
  const auto start = read_pointer(at, cie->pointer_encoding, section.address);
  const auto length = read_pointer(at, cie->pointer_encoding & 0x0f, section.address);
  if (!start || !length) return std::nullopt;
  if (cie->has_augmentation) at.skip(at.uleb());
  if (at.failed()) return std::nullopt;
  return Fde{*cie, *start, *start + *length, {at.offset(), record->body.end}};
}

}  // namespace gpuprof::unwind
