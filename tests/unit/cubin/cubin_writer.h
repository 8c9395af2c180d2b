// SPDX-License-Identifier: Apache-2.0
//
// CubinWriter: cubins made by hand, for the benchmark and for what no compiler writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuprof::cubin::test {

// The bytes of a line number program, opcode by opcode, as nvcc encodes them.
class LineProgram {
 public:
  // Emits rows with nvcc's choice of opcodes: special where it fits.
  void row(uint64_t address, uint32_t line);
  void set_file(uint64_t file);
  void inlined_call(uint64_t context, uint64_t function);
  void end_sequence(uint64_t end);
  // The operand is to be relocated to `symbol` of the CubinWriter.
  void set_address(size_t symbol);

  void byte(uint8_t value) { bytes_ += static_cast<char>(value); }
  void uleb(uint64_t value);
  void sleb(int64_t value);
  void raw(std::string_view bytes) { bytes_ += bytes; }
  // Rows since the last end_sequence.
  [[nodiscard]] uint64_t rows() const { return rows_; }

  struct Operand {
    uint64_t offset = 0;  // in bytes()
    size_t symbol = 0;
  };
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<Operand>& operands() const { return operands_; }

 private:
  void copy() { byte(1), ++rows_; }
  void advance_pc(uint64_t bytes);

  std::string bytes_;
  std::vector<Operand> operands_;
  uint64_t address_ = 0;
  uint32_t line_ = 1;
  uint64_t rows_ = 0;
};

class CubinWriter {
 public:
  // A .text section of its own; the number is what symbol() takes.
  size_t text(std::string_view function, uint64_t size_bytes);
  // Its bytes; those that are not given are 0.
  void code(size_t text, uint64_t offset, std::string_view bytes);
  // The number is what LineProgram::set_address takes.
  size_t symbol(std::string_view name, size_t text, uint64_t offset, uint64_t size_bytes,
                bool is_kernel, bool is_local = false);
  // Adds a kernel with a section that it fills: symbol number.
  size_t kernel(std::string_view name, uint64_t size_bytes);
  // Its offset in .debug_str.
  uint64_t string(std::string_view text);
  // A unit of the line table with its header; `files` in directory 1, "/src".
  void unit(const LineProgram& program, const std::vector<std::string>& files);
  // Bytes of .debug_line as they are.
  void raw_unit(std::string_view bytes) { debug_line_ += bytes; }
  // For relocations that no compiler writes.
  void relocation(uint64_t operand, uint32_t symbol, int64_t addend = 0) {
    relocations_.push_back({operand, symbol, addend});
  }

  // A relocation of code: what is at `offset` of a text section refers to the symbol. Without a
  // text section it is data that is loaded.
  void reference(std::optional<size_t> from_text, uint64_t offset, size_t symbol,
                 int64_t addend = 0) {
    references_.push_back({from_text, {offset, static_cast<uint32_t>(symbol), addend}});
  }

  void use_rel() { rel_ = true; }
  void use_sm(uint32_t sm) { sm_ = sm; }
  // The file; with 65,280 sections and more it has ELF's extended numbering.
  [[nodiscard]] std::vector<std::byte> finish() const;

 private:
  struct Text {
    std::string name;
    uint64_t size_bytes;
    std::string code;  // of its beginning
  };
  struct Symbol {
    std::string name;
    size_t text;
    uint64_t offset;
    uint64_t size_bytes;
    bool is_kernel;
    bool is_local;
  };
  struct Relocation {
    uint64_t operand;
    uint32_t symbol;
    int64_t addend;
  };
  struct Reference {
    std::optional<size_t> from_text;
    Relocation relocation;
  };

  [[nodiscard]] std::string entries_of(const std::vector<Relocation>& relocations) const;

  std::vector<Text> texts_;
  std::vector<Symbol> symbols_;
  std::vector<Relocation> relocations_;
  std::vector<Reference> references_;
  std::string debug_line_;
  std::string debug_str_;
  bool rel_ = false;
  uint32_t sm_ = 90;
};

}  // namespace gpuprof::cubin::test
