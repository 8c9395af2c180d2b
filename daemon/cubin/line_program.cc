// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/line_program.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/byte_reader.h"

namespace gpuprof::cubin {
namespace {

enum StandardOpcode : uint8_t {
  kExtended = 0,
  kCopy = 1,
  kAdvancePc = 2,
  kAdvanceLine = 3,
  kSetFile = 4,
  kSetColumn = 5,
  kNegateStmt = 6,
  kSetBasicBlock = 7,
  kConstAddPc = 8,
  kFixedAdvancePc = 9,
  kSetPrologueEnd = 10,
  kSetEpilogueBegin = 11,
  kSetIsa = 12,
};

// NVIDIA's are in elfutils' dwarf.h too, as DW_LNE_NVIDIA_*.
enum ExtendedOpcode : uint8_t {
  kEndSequence = 1,
  kSetAddress = 2,
  kDefineFile = 3,
  kInlinedCall = 0x90,
  kSetFunctionName = 0x91,
};

// Of a unit; CUTLASS' largest have some 1,500.
constexpr size_t kMaxFiles = 1 << 16;

tl::unexpected<Error> truncated() {
  return fail(Code::kCorrupt, "the line table ends inside a unit");
}

struct FileEntry {
  std::string_view directory;
  std::string_view name;
  std::optional<uint32_t> number;  // the builder's, once a row used it
};

struct UnitHeader {
  uint8_t min_instruction = 1;
  int8_t line_base = 0;
  uint8_t line_range = 1;
  uint8_t opcode_base = 1;
  std::span<const std::byte> operand_counts;  // of the opcodes from 1
  std::vector<std::string_view> directories;  // from 1
  std::vector<FileEntry> files;               // from 1
  // Added to the offsets of names. NVIDIA's header ends with it where there is inline information.
  uint32_t names_base = 0;
};

class Unit {
 public:
  // `start`: of `bytes` in .debug_line, by which the relocations are found.
  Unit(const ElfImage& elf, LineTableBuilder& builder, std::span<const std::byte> bytes,
       uint64_t start)
      : elf_(elf), builder_(builder), reader_(bytes), start_(start) {}

  Status run() {
    const auto version = reader_.fixed<uint16_t>();
    if (!reader_.failed() && (version < 2 || version > 4))
      return {};  // skipped: see LineTable::build
    if (auto status = header(version); !status) return status;
    while (!reader_.done()) {
      const auto opcode = reader_.fixed<uint8_t>();
      Status status;
      if (opcode >= header_.opcode_base) {
        status = special(opcode);
      } else if (opcode == kExtended) {
        status = extended();
      } else {
        status = standard(opcode);
      }
      if (!status) return status;
      if (reader_.failed()) return truncated();
    }
    if (in_sequence_) return fail(Code::kCorrupt, "the line table ends inside a sequence");
    return {};
  }

 private:
  struct Registers {
    LineRow row{0, 1, 1, 0, 0};  // file and line start at 1; `file` is the unit's number here
    std::optional<uint32_t> text;
  };

  Status header(uint16_t version) {
    const auto header_bytes = reader_.take(reader_.fixed<uint32_t>());
    if (reader_.failed()) return truncated();
    ByteReader fields(header_bytes);
    header_.min_instruction = fields.fixed<uint8_t>();
    if (version >= 4) fields.fixed<uint8_t>();  // maximum_operations_per_instruction: VLIW only
    fields.fixed<uint8_t>();                    // default_is_stmt
    header_.line_base = fields.fixed<int8_t>();
    header_.line_range = fields.fixed<uint8_t>();
    header_.opcode_base = fields.fixed<uint8_t>();
    if (fields.failed() || header_.line_range == 0 || header_.opcode_base == 0) {
      return fail(Code::kCorrupt, "a unit of the line table has a malformed header");
    }
    header_.operand_counts = fields.take(header_.opcode_base - 1u);
    for (auto name = fields.string(); !name.empty(); name = fields.string()) {
      if (header_.directories.size() <= kMaxFiles) header_.directories.push_back(name);
    }
    for (auto name = fields.string(); !name.empty(); name = fields.string())
      file_entry(fields, name);
    if (fields.failed() || header_.directories.size() > kMaxFiles) {
      return fail(Code::kCorrupt, "a unit of the line table has a malformed header");
    }
    if (fields.left() >= sizeof(uint32_t)) header_.names_base = fields.fixed<uint32_t>();
    return {};
  }

  void file_entry(ByteReader& fields, std::string_view name) {
    const uint64_t directory = fields.uleb();
    fields.uleb();                                  // time
    fields.uleb();                                  // size
    if (header_.files.size() == kMaxFiles) return;  // a row that uses it has no file
    const bool known = directory != 0 && directory <= header_.directories.size();
    header_.files.push_back(
        {known ? header_.directories[directory - 1] : std::string_view(), name, std::nullopt});
  }

  Status emit() {
    in_sequence_ = true;
    LineRow row = registers_.row;
    if (row.address > UINT32_MAX) {
      return fail(Code::kCorrupt, "the line table has an address beyond 4 GiB");
    }
    row.function += header_.names_base;
    auto file = file_number(row.file);
    if (!file) return tl::unexpected(file.error());
    row.file = *file;
    return builder_.row(row);
  }

  Result<uint32_t> file_number(uint64_t unit_number) {
    if (unit_number == 0 || unit_number > header_.files.size()) return 0;
    FileEntry& entry = header_.files[unit_number - 1];
    if (!entry.number) {
      auto number = builder_.file(entry.directory, entry.name);
      if (!number) return number;
      entry.number = *number;
    }
    return *entry.number;
  }

  void advance_pc(uint64_t operations) {
    registers_.row.address += operations * header_.min_instruction;
  }

  Status special(uint8_t opcode) {
    const unsigned adjusted = opcode - header_.opcode_base;
    advance_pc(adjusted / header_.line_range);
    registers_.row.line +=
        static_cast<uint32_t>(header_.line_base + static_cast<int>(adjusted % header_.line_range));
    return emit();
  }

  Status standard(uint8_t opcode) {
    switch (opcode) {
      case kCopy:
        return emit();
      case kAdvancePc:
        advance_pc(reader_.uleb());
        break;
      case kAdvanceLine:
        registers_.row.line += static_cast<uint32_t>(reader_.sleb());
        break;
      case kSetFile:
        registers_.row.file = reader_.uleb();
        break;
      case kNegateStmt:
      case kSetBasicBlock:
      case kSetPrologueEnd:
      case kSetEpilogueBegin:
        break;
      case kConstAddPc:
        advance_pc((255u - header_.opcode_base) / header_.line_range);
        break;
      case kFixedAdvancePc:
        registers_.row.address += reader_.fixed<uint16_t>();
        break;
      case kSetColumn:
      case kSetIsa:
        reader_.uleb();
        break;
      default:
        for (auto left = static_cast<uint8_t>(header_.operand_counts[opcode - 1u]); left > 0;
             --left) {
          reader_.uleb();
        }
    }
    return {};
  }

  Status extended() {
    const uint64_t length = reader_.uleb();
    const uint64_t opcode_start = reader_.offset();
    const auto bytes = reader_.take(length);
    if (reader_.failed()) return truncated();
    ByteReader operands(bytes);
    const auto opcode = operands.fixed<uint8_t>();
    if (operands.failed()) return bad_length(opcode);
    switch (opcode) {
      case kEndSequence:
        return end_sequence();
      case kSetAddress:
        return set_address(operands, start_ + opcode_start + 1);
      case kDefineFile:
        if (const auto name = operands.string(); !name.empty()) file_entry(operands, name);
        break;
      case kInlinedCall:
        registers_.row.context = operands.uleb();
        registers_.row.function = operands.uleb();
        break;
      case kSetFunctionName:
        registers_.row.function = operands.uleb();
        break;
      default:  // discriminators, and what is not known yet
        break;
    }
    if (operands.failed()) return bad_length(opcode);
    return {};
  }

  static tl::unexpected<Error> bad_length(uint8_t opcode) {
    return fail(Code::kCorrupt, "extended opcode " + std::to_string(opcode) +
                                    " of the line table has a wrong length");
  }

  Status set_address(ByteReader& operands, uint64_t operand) {
    const size_t size = operands.left();
    if (size != 4 && size != 8) return bad_length(kSetAddress);
    const uint64_t stored = size == 8 ? operands.fixed<uint64_t>() : operands.fixed<uint32_t>();
    const auto found =
        std::lower_bound(elf_.line_addresses.begin(), elf_.line_addresses.end(), operand,
                         [](const auto& at, uint64_t value) { return at.operand < value; });
    if (found == elf_.line_addresses.end() || found->operand != operand) {
      // All functions start at 0, so without a relocation it names none.
      registers_.text.reset();
      registers_.row.address = stored;
      foreign_ = true;
      return {};
    }
    if (in_sequence_ && registers_.text != found->text) foreign_ = true;
    registers_.text = found->text;
    registers_.row.address = found->offset + (found->adds_stored_value ? stored : 0);
    return {};
  }

  Status end_sequence() {
    if (registers_.row.address > UINT32_MAX) {
      return fail(Code::kCorrupt, "the line table has an address beyond 4 GiB");
    }
    const bool placed = registers_.text && !foreign_;
    auto status =
        builder_.end_sequence(placed ? &*registers_.text : nullptr, registers_.row.address);
    registers_ = {};
    in_sequence_ = false;
    foreign_ = false;
    return status;
  }

  const ElfImage& elf_;
  LineTableBuilder& builder_;
  ByteReader reader_;
  uint64_t start_;
  UnitHeader header_;
  Registers registers_;
  bool in_sequence_ = false;
  bool foreign_ = false;  // the sequence has an address that belongs to no function, or to two
};

}  // namespace

Status run_line_programs(const ElfImage& elf, LineTableBuilder& builder) {
  constexpr uint32_t kDwarf64 = 0xffffffff;
  constexpr uint32_t kReserved = 0xfffffff0;
  ByteReader reader(elf.debug_line);
  while (!reader.done()) {
    const auto length = reader.fixed<uint32_t>();
    if (length >= kReserved) {
      return fail(Code::kCorrupt, length == kDwarf64
                                      ? "the line table has a 64-bit unit, which no cubin has"
                                      : "a unit of the line table has a malformed length");
    }
    const uint64_t start = reader.offset();
    const auto bytes = reader.take(length);
    if (reader.failed()) return truncated();
    if (auto status = Unit(elf, builder, bytes, start).run(); !status) return status;
  }
  return {};
}

}  // namespace gpuprof::cubin
