// SPDX-License-Identifier: Apache-2.0
//
// CfiSection: the records of .eh_frame and .debug_frame (DWARF 5, 6.4.1; LSB 5, 10.6).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/unwind/cfi_cursor.h"

namespace gpuprof::unwind {

// The bytes belong to the ElfFile. Nothing of them is believed, and reading one record takes a
// bounded time whatever they say: every length is checked, an augmentation string has at most
// kMaxAugmentation characters, an LEB128 at most 10 bytes.
struct CfiSection {
  static constexpr size_t kMaxAugmentation = 16;  // compilers write at most "zPLRS" and a letter

  std::span<const uint8_t> bytes;
  uint64_t address = 0;  // ELF virtual address
  bool is_eh_frame = true;
};

// Section offsets.
struct CfiRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct CfiRecord {
  CfiRange body;  // behind the CIE pointer; `end` is where the next record begins
  bool is_cie = false;
  uint64_t cie = 0;  // of an FDE: offset of its CIE
};

struct Cie {
  uint64_t code_alignment = 1;
  int64_t data_alignment = 1;
  uint64_t ra_register = 0;
  uint8_t pointer_encoding = 0;  // DW_EH_PE_*
  bool is_signal_frame = false;
  bool has_augmentation = false;  // its FDEs have a sized block behind the addresses
  CfiRange program;
};

struct Fde {
  Cie cie;
  uint64_t start = 0;
  uint64_t end = 0;
  CfiRange program;

  [[nodiscard]] bool covers(uint64_t address) const { return start <= address && address < end; }
};

// A pointer of one of the DW_EH_PE encodings at the cursor, relative to the cursor's place in the
// section or to `data_base`. Indirect and aligned ones are refused: no compiler writes them where
// code addresses are.
std::optional<uint64_t> read_pointer(CfiCursor& at, uint8_t encoding, uint64_t section_address,
                                     uint64_t data_base = 0);
// Bytes of such a pointer; 0 if that is not fixed or the encoding is unknown.
unsigned pointer_bytes(uint8_t encoding);

// The header of the record at `offset`; nothing at the terminator, at the end, and for a length
// that leaves the section: no record can be found behind it.
std::optional<CfiRecord> record_at(const CfiSection& section, uint64_t offset);
std::optional<Cie> cie_at(const CfiSection& section, uint64_t offset);
std::optional<Fde> fde_at(const CfiSection& section, uint64_t offset);

}  // namespace gpuprof::unwind
