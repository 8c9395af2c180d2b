// SPDX-License-Identifier: Apache-2.0
// fake_cuda_hide LIBRARY OUT NAME...: a copy of a shared object that lacks the named dynamic
// symbols. The name in .dynstr is overwritten, so that a lookup finds its hash chain but no equal
// string: what dlsym answers for a library that never had it.
#include <elf.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

namespace {

/// Overwrites the name of every dynamic symbol called `name`. False: there is none.
bool hide(std::vector<char>& file, const char* name) {
  auto* header = reinterpret_cast<Elf64_Ehdr*>(file.data());
  auto* sections = reinterpret_cast<Elf64_Shdr*>(file.data() + header->e_shoff);
  bool found = false;
  for (unsigned i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    char* strings = file.data() + sections[sections[i].sh_link].sh_offset;
    auto* symbols = reinterpret_cast<Elf64_Sym*>(file.data() + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; ++s) {
      char* at = strings + symbols[s].st_name;
      if (strcmp(at, name) != 0) continue;
      at[0] = '?';
      found = true;
    }
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: fake_cuda_hide LIBRARY OUT NAME...\n");
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  std::vector<char> file{std::istreambuf_iterator<char>(in), {}};
  if (file.size() < sizeof(Elf64_Ehdr) || memcmp(file.data(), ELFMAG, SELFMAG) != 0) {
    fprintf(stderr, "fake_cuda_hide: %s is not an ELF file\n", argv[1]);
    return 1;
  }
  for (int i = 3; i < argc; ++i) {
    if (!hide(file, argv[i])) {
      fprintf(stderr, "fake_cuda_hide: %s has no dynamic symbol %s\n", argv[1], argv[i]);
      return 1;
    }
  }
  std::ofstream out(argv[2], std::ios::binary);
  out.write(file.data(), static_cast<std::streamsize>(file.size()));
  return out.flush() ? 0 : 1;
}
