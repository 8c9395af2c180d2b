// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cupti_copies.h"

#include <fcntl.h>
#include <gelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/base/root_file.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/mapped_file.h"

namespace gpuprof::cli {
namespace {

constexpr size_t kMaxFolders = 64;
constexpr size_t kMaxSymbols = 65'536;             // real ones have 300
constexpr off_t kMaxFileBytes = off_t{256} << 20;  // real ones have 8 MB
constexpr const char* kWheels[] = {"/nvidia/cu13/lib", "/nvidia/cuda_cupti/lib",
                                   "/triton/backends/nvidia/lib/cupti"};

// A libcupti in the process's root, and what it exports.
struct Library {
  uint64_t inode = 0;
  std::string soname;
  std::set<std::string> functions;
};

// Only a regular file is opened: the path is the process's word.
UniqueFd open_library(uint32_t pid, const std::string& path, struct stat& info) {
  const std::string root = "/proc/" + std::to_string(pid) + "/root";
  const UniqueFd root_fd(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  UniqueFd file = reopen_regular(open_in_root(root_fd, path, O_PATH), info);
  return file.valid() && info.st_size <= kMaxFileBytes ? std::move(file) : UniqueFd();
}

void read_functions(Elf* elf, Elf_Scn* section, const GElf_Shdr& header, Library& out) {
  Elf_Data* data = elf_getdata(section, nullptr);
  if (data == nullptr || header.sh_entsize == 0) return;
  const size_t count = std::min<size_t>(data->d_size / header.sh_entsize, kMaxSymbols);
  for (size_t i = 1; i < count; ++i) {
    GElf_Sym symbol;
    if (gelf_getsym(data, static_cast<int>(i), &symbol) == nullptr) return;
    if (symbol.st_shndx == SHN_UNDEF || GELF_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
    const char* name = elf_strptr(elf, header.sh_link, symbol.st_name);
    if (name != nullptr && std::string_view(name).starts_with("cupti")) out.functions.insert(name);
  }
}

void read_soname(Elf* elf, Elf_Scn* section, const GElf_Shdr& header, Library& out) {
  Elf_Data* data = elf_getdata(section, nullptr);
  if (data == nullptr || header.sh_entsize == 0) return;
  const size_t count = std::min<size_t>(data->d_size / header.sh_entsize, 4096);
  for (size_t i = 0; i < count; ++i) {
    GElf_Dyn entry;
    if (gelf_getdyn(data, static_cast<int>(i), &entry) == nullptr || entry.d_tag == DT_NULL) return;
    if (entry.d_tag != DT_SONAME) continue;
    const char* name = elf_strptr(elf, header.sh_link, entry.d_un.d_val);
    if (name != nullptr) out.soname = name;
  }
}

std::optional<Library> read_library(uint32_t pid, const std::string& path) {
  struct stat info = {};
  const UniqueFd fd = open_library(pid, path, info);
  if (!fd.valid()) return {};
  auto mapped = unwind::MappedFile::map(fd.get());
  if (!mapped) return {};
  auto file = unwind::ElfFile::from_file(std::move(*mapped));
  if (!file) return {};
  Library out;
  out.inode = info.st_ino;
  Elf* elf = (*file)->elf();
  for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf, section)) != nullptr;) {
    GElf_Shdr header;
    if (gelf_getshdr(section, &header) == nullptr) continue;
    if (header.sh_type == SHT_DYNSYM) read_functions(elf, section, header, out);
    if (header.sh_type == SHT_DYNAMIC) read_soname(elf, section, header, out);
  }
  if (out.functions.empty()) return {};
  return out;
}

void add_folder(std::vector<std::string>& folders, std::string folder) {
  if (folders.size() < kMaxFolders && folder.starts_with('/') &&
      std::ranges::find(folders, folder) == folders.end())
    folders.push_back(std::move(folder));
}

// Where a library that the process loads later may have its libcupti from.
std::vector<std::string> folders_of(uint32_t pid, const std::vector<target::Mapping>& mappings) {
  std::vector<std::string> out;
  if (const auto path = target::environment_value(pid, "LD_LIBRARY_PATH"); path && *path) {
    std::string_view rest = **path;
    while (!rest.empty()) {
      const std::string_view folder = rest.substr(0, rest.find(':'));
      add_folder(out, std::string(folder));
      rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    }
  }
  if (const auto prefix = target::environment_value(pid, "CONDA_PREFIX"); prefix && *prefix)
    add_folder(out, **prefix + "/lib");
  for (const target::Mapping& mapping : mappings) {
    for (const std::string_view site : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = mapping.path.find(site);
      if (at == std::string::npos) continue;
      for (const char* wheel : kWheels)
        add_folder(out, mapping.path.substr(0, at + site.size() - 1) + wheel);
    }
  }
  return out;
}

// A libcupti that is mapped and not the one with `inode`; empty: none.
std::string other_mapped(const std::vector<target::Mapping>& mappings, uint64_t inode) {
  std::map<uint64_t, std::string> found;
  for (const target::Mapping& mapping : mappings) {
    const std::string_view name = mapping.file_name();
    if (name.starts_with("libcupti.so") || name.starts_with("libcupti-"))
      found.emplace(mapping.inode, mapping.path);
  }
  // Where the file system numbers files otherwise in maps than in stat(), ours is not among them.
  if (found.erase(inode) == 0 || found.empty()) return {};
  return found.begin()->second;
}

}  // namespace

std::optional<CuptiCopies> find_cupti_copies(uint32_t pid, const target::ShimStatus& status) {
  if (status.cupti_origin == GPUPROF_CUPTI_UNKNOWN || status.cupti_path.empty()) return {};
  const auto mappings = target::file_mappings(pid);
  if (!mappings) return {};
  const auto used = read_library(pid, status.cupti_path);
  if (!used) return {};
  CuptiCopies out;
  out.used = status.cupti_path;
  if (std::string other = other_mapped(*mappings, used->inode); !other.empty()) {
    out.other = target::printable(other);
    out.mapped = true;
    return out;
  }
  if (status.cupti_origin != GPUPROF_CUPTI_LOADED || used->soname.empty() ||
      used->soname.find('/') != std::string::npos)
    return {};
  for (const std::string& folder : folders_of(pid, *mappings)) {
    const std::string path = folder + "/" + used->soname;
    const auto other = read_library(pid, path);
    if (!other || other->inode == used->inode) continue;
    std::vector<std::string> lacking;
    std::set_difference(other->functions.begin(), other->functions.end(), used->functions.begin(),
                        used->functions.end(), std::back_inserter(lacking));
    if (lacking.size() <= out.lacking.size()) continue;
    out.other = target::printable(path);
    out.lacking = std::move(lacking);
  }
  if (out.lacking.empty()) return {};
  return out;
}

std::string explain_cupti_copies(uint32_t pid, const CuptiCopies& copies) {
  const std::string who = "process " + std::to_string(pid);
  const std::string remedy = "start the process with GPU_PROFILED_CUPTI_PATH=" + copies.other;
  if (copies.mapped)
    return who + " has two copies of CUPTI: the shim uses " + copies.used +
           ", and the process has mapped " + copies.other +
           " too, whose user may see no GPU events: " + remedy;
  return who + ": the shim loaded CUPTI from " + copies.used + ", and " + copies.other + " has " +
         std::to_string(copies.lacking.size()) +
         (copies.lacking.size() == 1 ? " function that it lacks (" : " functions that it lacks (") +
         target::printable(copies.lacking.front()) + (copies.lacking.size() == 1 ? "" : ", ...") +
         "): a library made for that one and loaded later fails with an undefined symbol; " +
         remedy;
}

}  // namespace gpuprof::cli
