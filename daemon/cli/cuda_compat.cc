// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cuda_compat.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <system_error>

#include "daemon/target/cuda_driver.h"
#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

using std::chrono::milliseconds;

constexpr const char* kLibraryPath = "LD_LIBRARY_PATH";
constexpr const char* kLibrary = "libcuda.so.1";
// cuInit of eight GPUs without persistence mode takes seconds.
constexpr milliseconds kPatience{20'000};
constexpr size_t kMostAsked = 4;
constexpr uint64_t kFirstLookNs = 500'000'000, kLongestLookNs = 30'000'000'000;

// cuda.h
constexpr int kSystemDriverMismatch = 803;
constexpr int kCompatNotSupportedOnDevice = 804;

#if defined(__aarch64__)
#define GPUPROF_MULTIARCH "/usr/lib/aarch64-linux-gnu"
#else
#define GPUPROF_MULTIARCH "/usr/lib/x86_64-linux-gnu"
#endif
// Where programs find a driver's libcuda by a RUNPATH, or by a loader that is not this system's.
constexpr const char* kDriverPlaces[] = {"/run/opengl-driver/lib", GPUPROF_MULTIARCH "/nvidia",
                                         GPUPROF_MULTIARCH "/tegra",
                                         "/opt/nvidia/l4t-gpu-libs/openrm", "/usr/lib/wsl/lib"};

std::string version_text(uint32_t version) { return "CUDA " + target::cuda_version_text(version); }

Result<DriverAnswer> ask_system(const std::vector<std::string>& places, const AskDriver& ask) {
  auto first = ask(kLibrary, "", UINT32_MAX);
  if (first) return first;
  for (const std::string& place : places) {
    struct stat info = {};
    const std::string library = place + "/" + kLibrary;
    if (::stat(library.c_str(), &info) != 0) continue;
    if (auto answer = ask(library, "", UINT32_MAX)) return answer;
  }
  return first;
}

// Why its libcuda, newer than the driver's, does not work here; empty: it does.
std::string refusal_of(const DriverAnswer& compat) {
  if (!compat.init) return "it did not say whether it works here";
  switch (*compat.init) {
    case 0:
      return {};
    case kCompatNotSupportedOnDevice:
      return "it does not work on this GPU (cuInit 804): forward compatibility is for data-center "
             "GPUs, some RTX boards and Jetson";
    case kSystemDriverMismatch:
      return "it does not go with the loaded kernel module (cuInit 803)";
    default:
      return "it does not work here (cuInit " + std::to_string(*compat.init) + ")";
  }
}

std::string load_failure(const std::string& why) {
  std::string out = "its libcuda cannot be used: " + why;
  if (why.find("libnvrm") != std::string::npos)
    out +=
        " (the libnvrm libraries come with the board's driver: install nvidia-l4t-core, or mount "
        "them into the container)";
  return out;
}

bool same_file(const std::string& left, const std::string& right) {
  std::error_code error;
  return std::filesystem::equivalent(left, right, error) && !error;
}

}  // namespace

Result<CompatWish> compat_wish(const std::string& option, bool tegra) {
  CompatWish out;
  if (option.empty()) {
    out.quiet = true;
    out.mode = tegra ? CompatWish::Mode::kAuto : CompatWish::Mode::kNever;
    return out;
  }
  if (option == "never") return out;
  out.mode = CompatWish::Mode::kAuto;
  if (option == "auto") return out;
  out.mode = CompatWish::Mode::kDirectory;
  std::error_code error;
  out.directory = std::filesystem::absolute(option, error).lexically_normal().string();
  while (out.directory.size() > 1 && out.directory.ends_with('/')) out.directory.pop_back();
  if (out.directory.find_first_of(":;$") != std::string::npos)
    return fail(Code::kInvalidArgument, "--cuda-compat: LD_LIBRARY_PATH cannot name " +
                                            out.directory + ", for its ':', ';' or '$'");
  struct stat info = {};
  if (::stat((out.directory + "/" + kLibrary).c_str(), &info) != 0)
    return fail(Code::kInvalidArgument,
                "--cuda-compat: there is no " + out.directory + "/" + kLibrary +
                    ": name the compat directory of a toolkit, or never, or auto");
  return out;
}

CompatChoice choose_compat(const CompatWish& wish, const std::vector<std::string>& found,
                           const std::vector<std::string>& system, const AskDriver& ask) {
  CompatChoice out;
  const auto tell = [&](const std::string& text) {
    if (!wish.quiet && out.line.empty())
      out.line = "cuda_compat: " + text + "; the command runs on the libcuda it finds";
  };
  if (wish.mode == CompatWish::Mode::kNever) return out;
  std::vector<std::string> candidates = {wish.directory};
  if (wish.mode == CompatWish::Mode::kAuto) candidates = found;
  if (candidates.empty()) {
    tell("no compat directory in /usr/local/cuda*");
    return out;
  }
  const auto driver = ask_system(system, ask);
  if (!driver) {
    tell("the driver's libcuda cannot be asked for its version: " + driver.error().message);
    return out;
  }
  for (const std::string& directory :
       std::span(candidates).first(std::min(candidates.size(), kMostAsked))) {
    const std::string library = directory + "/" + kLibrary;
    if (same_file(library, driver->path)) {
      tell(directory + " has the libcuda that is found without it (" +
           version_text(driver->version) + ")");
      continue;
    }
    const auto compat = ask(library, directory, driver->version);
    if (!compat) {
      tell(directory + " is not used: " + load_failure(compat.error().message));
      continue;
    }
    if (compat->version <= driver->version) {
      tell(directory + " is not used: it has " + version_text(compat->version) +
           ", not newer than the driver's " + target::cuda_version_text(driver->version));
      continue;
    }
    if (const std::string why = refusal_of(*compat); !why.empty()) {
      tell(directory + " (" + version_text(compat->version) + ") is not used: " + why);
      continue;
    }
    std::error_code error;
    out.directory = directory;
    out.library = std::filesystem::canonical(library, error).string();
    out.line = "cuda_compat: " + directory + " (" + version_text(compat->version) +
               ") is put before the driver's libcuda (" + version_text(driver->version) +
               "), in the command's LD_LIBRARY_PATH";
    return out;
  }
  return out;
}

void set_compat(Environment& environment, const std::string& directory) {
  const std::string present = environment.value(kLibraryPath);
  environment.set(kLibraryPath, present.empty() ? directory : directory + ":" + present);
}

std::optional<std::string> other_libcuda(const CompatChoice& choice, uint32_t pid,
                                         const std::string& mapped) {
  if (choice.library.empty() || mapped.empty() || mapped == choice.library) return {};
  std::string out = "cuda_compat: process " + std::to_string(pid) + " loaded " + mapped;
  out +=
      " all the same: an RPATH, an absolute path or a LD_LIBRARY_PATH of its own comes before ours";
  return out;
}

void LibcudaWatch::look(uint32_t command, uint64_t now_ns) {
  if (now_ns < next_ns_ || !failure_.empty()) return;
  wait_ns_ = std::clamp(2 * wait_ns_, kFirstLookNs, kLongestLookNs);
  next_ns_ = now_ns + wait_ns_;
  const std::string kernel_module = target::kernel_module_release();
  if (kernel_module.empty()) return;
  std::vector<uint32_t> processes = target::descendants(command);
  processes.insert(processes.begin(), command);
  for (const uint32_t pid : processes) {
    const auto driver = target::mapped_cuda_driver(pid, kernel_module);
    const auto why = driver ? target::explain_failure(*driver) : std::nullopt;
    if (!why) continue;
    failure_ = "process " + std::to_string(pid) + ": " + *why;
    return;
  }
}

Result<CompatChoice> cuda_compat(const std::string& option, const AskAs& as) {
  auto root = target::open_root("/");
  auto wish = compat_wish(option, option.empty() && root && target::is_tegra(*root));
  if (!wish) return tl::unexpected<Error>(wish.error());
  if (wish->mode == CompatWish::Mode::kNever) return CompatChoice();
  const auto ask = [&](const std::string& library, const std::string& before, uint32_t bound) {
    AskAs with = as;
    if (!before.empty()) set_compat(with.environment, before);
    return ask_driver(library, bound, with, kPatience);
  };
  return choose_compat(*wish, root ? target::compat_directories(*root) : std::vector<std::string>(),
                       {std::begin(kDriverPlaces), std::end(kDriverPlaces)}, ask);
}

}  // namespace gpuprof::cli
