// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/cuda_driver.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "daemon/base/root_file.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"
#include "proto/libcuda_kind.h"

namespace gpuprof::target {
namespace {

constexpr const char* kOpenGlDriver = "/run/opengl-driver/lib/libcuda.so.1";
constexpr size_t kMostDirectories = 32;
constexpr size_t kMostEntries = 4096;  // of a directory that is searched

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

std::optional<struct stat> file_in(const UniqueFd& root, const std::string& path) {
  const UniqueFd fd = open_in_root(root, path, O_PATH);
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return info;
}

// The first bytes of a small file.
std::string text_in(const UniqueFd& root, const std::string& path, size_t most) {
  struct stat info = {};
  const UniqueFd fd = reopen_regular(open_in_root(root, path, O_PATH), info);
  std::string out(most, '\0');
  const ssize_t got = fd.valid() ? ::read(fd.get(), out.data(), out.size()) : 0;
  out.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return out;
}

// Names in /usr/local like "cuda-12.9", by version, the newest first.
std::vector<std::string> toolkits(const UniqueFd& root) {
  UniqueFd fd = open_in_root(root, "/usr/local", O_RDONLY | O_DIRECTORY);
  if (!fd.valid()) return {};
  const std::unique_ptr<DIR, CloseDir> dir(::fdopendir(fd.get()));
  if (!dir) return {};
  (void)fd.release();
  std::vector<std::pair<std::pair<unsigned, unsigned>, std::string>> found;
  for (size_t entries = 0; entries < kMostEntries; ++entries) {
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (!name.starts_with("cuda-")) continue;
    const char* at = entry->d_name + 5;
    const unsigned major = next_number(&at);
    const unsigned minor = next_number(&at);
    if (major != 0 && *at == '\0') found.emplace_back(std::pair(major, minor), name);
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> out;
  out.reserve(found.size());
  for (auto& [version, name] : found) out.push_back(std::move(name));
  return out;
}

}  // namespace

const char* libcuda_kind_name(gpuprof_libcuda_kind kind) {
  constexpr const char* kNames[] = {"unknown", "system", "cuda_compat", "tegra", "wsl", "nix"};
  static_assert(std::size(kNames) == GPUPROF_LIBCUDA_KIND_COUNT);
  return kind < GPUPROF_LIBCUDA_KIND_COUNT ? kNames[kind] : "unknown";
}

std::string cuda_version_text(uint32_t version) {
  if (version < 1000 || version > 999'999) return {};
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string release_in_banner(const std::string& text) {
  std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  while (!line.empty()) {
    std::string word(line.substr(0, line.find_first_of(" \t")));
    if (is_release(word.c_str())) return word;
    line.remove_prefix(std::min(line.size(), word.size() + 1));
  }
  return {};
}

std::string kernel_module_release(const std::string& root) {
  if (auto text = read_proc_file(root + "/sys/module/nvidia/version", 64)) {
    text->resize(std::min(text->size(), text->find('\n')));
    if (is_release(text->c_str())) return *text;
  }
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build ..."
  auto banner = read_proc_file(root + "/proc/driver/nvidia/version", 512);
  return banner ? release_in_banner(*banner) : std::string();
}

CudaDriver cuda_driver_of(const ShimStatus& status, const std::string& kernel_module) {
  CudaDriver out;
  out.path = status.libcuda_path;
  out.kernel_module = kernel_module;
  if (out.kernel_module.empty() && is_release(status.kernel_driver_version.c_str()))
    out.kernel_module = status.kernel_driver_version;
  out.release = release_in_name(out.path.c_str());
  out.kind = libcuda_kind_of(out.path.c_str(), out.kernel_module.c_str());
  if (!cuda_version_text(status.driver_version).empty()) out.cuda_version = status.driver_version;
  return out;
}

Result<CudaDriver> mapped_cuda_driver(uint32_t pid, const std::string& kernel_module) {
  auto mappings = file_mappings(pid);
  if (!mappings) return tl::unexpected<Error>(mappings.error());
  CudaDriver out;
  out.kernel_module = kernel_module;
  const auto mapped = std::ranges::find_if(*mappings, [](const Mapping& mapping) {
    return mapping.file_name().starts_with("libcuda.so");
  });
  if (mapped == mappings->end()) return out;
  std::string_view path = mapped->path;
  path.remove_suffix(path.size() - (path.rfind('/') + 1) - mapped->file_name().size());
  out.path = printable(path);
  out.release = release_in_name(out.path.c_str());
  out.kind = libcuda_kind_of(out.path.c_str(), kernel_module.c_str());
  const auto root = open_root("/proc/" + std::to_string(pid) + "/root");
  const auto linked = root ? file_in(*root, kOpenGlDriver) : std::nullopt;
  // The device number in maps differs from st_dev on btrfs and on some overlays.
  out.of_opengl_driver = linked && linked->st_ino == mapped->inode;
  return out;
}

std::string describe(const CudaDriver& driver) {
  if (driver.path.empty()) return {};
  const std::string version = cuda_version_text(driver.cuda_version);
  return (version.empty() ? "CUDA" : "CUDA " + version) + " by " + driver.path + " (" +
         libcuda_kind_name(driver.kind) +
         (driver.of_opengl_driver ? ", in /run/opengl-driver)" : ")") +
         (driver.kernel_module.empty() ? "" : ", kernel module " + driver.kernel_module);
}

std::optional<std::string> explain_failure(const CudaDriver& driver) {
  char text[1024];
  if (!explain_libcuda(text, sizeof text, driver.path.c_str(), driver.kernel_module.c_str()))
    return {};
  return text;
}

Result<UniqueFd> open_root(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(Code::kIo, errno, path);
  return fd;
}

std::vector<std::string> compat_directories(const UniqueFd& root) {
  std::vector<std::string> below = {"cuda"};
  for (std::string& name : toolkits(root)) below.push_back(std::move(name));
  std::vector<std::string> out;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& toolkit : below) {
    // lib.real: images that decide at their start whether to use it.
    for (const char* leaf : {"/compat", "/compat/lib", "/compat/lib.real"}) {
      const std::string path = "/usr/local/" + toolkit + leaf;
      const auto file = file_in(root, path + "/libcuda.so.1");
      if (!file || !seen.emplace(file->st_dev, file->st_ino).second) continue;
      out.push_back(path);
      if (out.size() == kMostDirectories) return out;
    }
  }
  return out;
}

bool is_tegra(const UniqueFd& root) {
  if (file_in(root, "/etc/nv_tegra_release")) return true;
  // Strings of the board and its system on chip, with NULs between.
  for (const char* path :
       {"/proc/device-tree/compatible", "/sys/firmware/devicetree/base/compatible"}) {
    if (text_in(root, path, 1024).find("nvidia,tegra") != std::string::npos) return true;
  }
  return false;
}

}  // namespace gpuprof::target
