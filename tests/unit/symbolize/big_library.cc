// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/symbolize/big_library.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

namespace gpuprof::symbolize::test {
namespace {

constexpr uint64_t kCode = 0x1000;  // file offset and address
constexpr uint64_t kRecord = 24;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

void put32(std::string& out, uint64_t value) {
  const auto word = static_cast<uint32_t>(value);
  out.append(reinterpret_cast<const char*>(&word), sizeof word);
}

std::string cie() {
  std::string out;
  put32(out, kRecord - 4);
  put32(out, 0);
  // Version 1, "zR", alignments 1 and -8, return address 16, pointers relative to their place;
  // CFA = rsp + 8, return address at CFA - 8.
  out.append("\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01", 14);
  out.resize(kRecord, '\0');
  return out;
}

// Behind its first four bytes a function's CFA is rsp + kFrameBytes.
void add_fde(std::string& out, uint64_t section_address, uint64_t function) {
  const uint64_t at = out.size();
  put32(out, kRecord - 4);
  put32(out, at + 4);
  put32(out, function - (section_address + at + 8));
  put32(out, BigLibrary::kFunctionBytes);
  out.append("\0\x44\x0e", 3);
  out.push_back(static_cast<char>(BigLibrary::kFrameBytes));
  out.resize(at + kRecord, '\0');
}

class Writer {
 public:
  Writer() : fd_(open_file()) {}
  [[nodiscard]] int fd() const { return fd_; }

  void section(uint32_t name, uint32_t type, uint64_t flags, uint64_t at, const std::string& bytes,
               uint32_t link = 0, uint64_t entry = 0) {
    write(at, bytes.data(), bytes.size());
    const uint64_t address = (flags & SHF_ALLOC) != 0 ? at : 0;
    headers_.push_back({name, type, flags, address, at, bytes.size(), link, 0, 8, entry});
  }
  void code(uint32_t name, uint64_t size) {
    headers_.push_back(
        {name, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, kCode, kCode, size, 0, 0, 16, 0});
  }
  void finish(uint64_t loaded, uint64_t headers_at) {
    Elf64_Ehdr ehdr = {};
    std::memcpy(ehdr.e_ident,
                "\x7f"
                "ELF\x02\x01\x01",
                7);
    ehdr.e_type = ET_DYN;
    ehdr.e_machine = EM_X86_64;
    ehdr.e_version = EV_CURRENT;
    ehdr.e_phoff = sizeof ehdr;
    ehdr.e_shoff = headers_at;
    ehdr.e_ehsize = sizeof ehdr;
    ehdr.e_phentsize = sizeof(Elf64_Phdr);
    ehdr.e_phnum = 1;
    ehdr.e_shentsize = sizeof(Elf64_Shdr);
    ehdr.e_shnum = static_cast<uint16_t>(headers_.size());
    ehdr.e_shstrndx = static_cast<uint16_t>(headers_.size() - 1);
    const Elf64_Phdr load = {PT_LOAD, PF_R | PF_X, 0, 0, 0, loaded, loaded, 0x1000};
    write(0, &ehdr, sizeof ehdr);
    write(sizeof ehdr, &load, sizeof load);
    write(headers_at, headers_.data(), headers_.size() * sizeof(Elf64_Shdr));
  }

 private:
  static int open_file() {
    std::string path = (std::filesystem::temp_directory_path() / "big_library.XXXXXX").string();
    const int fd = mkstemp(path.data());
    if (fd < 0) die(path.c_str());
    unlink(path.c_str());
    return fd;
  }
  void write(uint64_t at, const void* data, size_t size) const {
    if (pwrite(fd_, data, size, static_cast<off_t>(at)) != static_cast<ssize_t>(size)) die("write");
  }

  int fd_;
  std::vector<Elf64_Shdr> headers_ = {{}};
};

}  // namespace

BigLibrary::BigLibrary(size_t functions, unsigned number) : functions_(functions), number_(number) {
  const uint64_t code_bytes = functions * kFunctionBytes;
  const uint64_t frames_at = kCode + code_bytes;
  std::string frames = cie(), table, symbols(sizeof(Elf64_Sym), '\0'), strings(1, '\0');
  const uint64_t table_at = frames_at + (functions + 1) * kRecord + 8;
  for (size_t i = 0; i < functions; ++i) {
    const uint64_t function = kCode + i * kFunctionBytes;
    put32(table, function - table_at);
    put32(table, frames_at + frames.size() - table_at);
    add_fde(frames, frames_at, function);
    const Elf64_Sym symbol = {static_cast<uint32_t>(strings.size()),
                              ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                              0,
                              1,
                              function,
                              kFunctionBytes};
    symbols.append(reinterpret_cast<const char*>(&symbol), sizeof symbol);
    strings += mangled_name(i) + '\0';
  }
  frames.append(8, '\0');
  std::string header("\x01\x1b\x03\x3b", 4);
  put32(header, frames_at - (table_at + 4));
  put32(header, functions);
  header += table;
  const std::string names("\0.text\0.eh_frame\0.eh_frame_hdr\0.symtab\0.strtab\0.shstrtab\0", 58);
  const auto name = [&](const char* text) {
    return static_cast<uint32_t>(names.find(std::string(1, '\0') + text + '\0') + 1);
  };
  Writer out;
  // Aligned, or libelf copies the table.
  const uint64_t symbols_at = (table_at + header.size() + 7) & ~uint64_t{7};
  const uint64_t strings_at = symbols_at + symbols.size();
  const uint64_t names_at = strings_at + strings.size();
  out.code(name(".text"), code_bytes);
  out.section(name(".eh_frame"), SHT_PROGBITS, SHF_ALLOC, frames_at, frames);
  out.section(name(".eh_frame_hdr"), SHT_PROGBITS, SHF_ALLOC, table_at, header);
  out.section(name(".symtab"), SHT_SYMTAB, 0, symbols_at, symbols, 5, sizeof(Elf64_Sym));
  out.section(name(".strtab"), SHT_STRTAB, 0, strings_at, strings);
  out.section(name(".shstrtab"), SHT_STRTAB, 0, names_at, names);
  file_bytes_ = (names_at + names.size() + 7) & ~uint64_t{7};
  out.finish(table_at + header.size(), file_bytes_);
  void* const at = mmap(nullptr, code_bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, out.fd(), kCode);
  if (at == MAP_FAILED) die("mmap");
  code_ = static_cast<uint8_t*>(at);
  close(out.fd());
}

BigLibrary::~BigLibrary() { munmap(code_, functions_ * kFunctionBytes); }

uint64_t BigLibrary::return_address(size_t function, uint64_t place) const {
  return reinterpret_cast<uint64_t>(code_) + function * kFunctionBytes + 16 + place;
}

std::string BigLibrary::mangled_name(size_t function) const {
  char own[64];
  const int length = std::snprintf(
      own, sizeof own, "softmax_backward_kernel_of_reduced_precision_%u_%07zu", number_, function);
  return "_ZN2at6native12_GLOBAL__N_1" + std::to_string(length) + own +
         "ERKNS_6TensorES4_RKN3c106ScalarEbSt8optionalINS5_10ScalarTypeEE";
}

}  // namespace gpuprof::symbolize::test
