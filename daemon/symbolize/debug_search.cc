// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/debug_search.h"

#include <elfutils/libdwelf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "daemon/base/hex.h"
#include "daemon/base/root_file.h"
#include "daemon/symbolize/elf_section.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/mapped_file.h"

namespace gpuprof::symbolize {
namespace {

constexpr std::string_view kDebugRoot = "/usr/lib/debug";
constexpr size_t kMaxLinkBytes = 1024;
constexpr int kMaxFollowed = 8;
constexpr size_t kMinBuildIdBytes = 3;  // a folder's name and at least two bytes

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

// `path` as `directory` sees it, without dots.
std::string joined(const std::string& directory, const std::string& path) {
  const std::string whole = path.starts_with('/') ? path : directory + "/" + path;
  return std::filesystem::path(whole).lexically_normal().string();
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

// The CRC-32 that .gnu_debuglink has is zlib's.
std::optional<uint32_t> checksum_of(const UniqueFd& fd, uint64_t size) {
  if (size > DebugSearch::kMaxChecksumBytes) return std::nullopt;
  std::vector<uint8_t> buffer(size_t{256} << 10);
  uint64_t done = 0;
  uLong crc = ::crc32(0, nullptr, 0);
  while (done < size) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(buffer.size(), size - done));
    const ssize_t n = ::pread(fd.get(), buffer.data(), want, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    crc = ::crc32(crc, buffer.data(), static_cast<uInt>(n));
    done += static_cast<uint64_t>(n);
  }
  return static_cast<uint32_t>(crc);
}

// Where `path` leads by the links that it ends in: distributions link .build-id to the file itself,
// whose own links are relative to that.
std::string followed(const UniqueFd& root, std::string path) {
  for (int i = 0; i < kMaxFollowed; ++i) {
    const UniqueFd link = open_in_root(root, path, O_PATH | O_NOFOLLOW);
    char target[kMaxLinkBytes];
    const ssize_t n = link.valid() ? ::readlinkat(link.get(), "", target, sizeof target) : -1;
    if (n <= 0 || static_cast<size_t>(n) == sizeof target) break;
    path = joined(directory_of(path), std::string(target, static_cast<size_t>(n)));
  }
  return path;
}

// Empty for what is no build id.
std::string path_of_build(const std::string& id) {
  if (id.size() < 2 * kMinBuildIdBytes) return {};
  return std::string(kDebugRoot) + "/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) + ".debug";
}

struct AlternateLink {
  std::string path;
  std::string build_id;
};

// .gnu_debugaltlink: a path, NUL, a build id.
std::optional<AlternateLink> alternate_link(Elf* elf) {
  Elf_Scn* scn = section_named(elf, {".gnu_debugaltlink"});
  const Elf_Data* data = scn == nullptr ? nullptr : elf_rawdata(scn, nullptr);
  if (data == nullptr || data->d_buf == nullptr) return std::nullopt;
  const std::string_view bytes(static_cast<const char*>(data->d_buf), data->d_size);
  const size_t end = bytes.substr(0, kMaxLinkBytes).find('\0');
  AlternateLink out;
  if (end == std::string_view::npos) return out;
  out.path = bytes.substr(0, end);
  const std::string_view id = bytes.substr(end + 1);
  if (id.size() <= unwind::ElfFile::kMaxBuildIdBytes)
    out.build_id = hex({reinterpret_cast<const uint8_t*>(id.data()), id.size()});
  return out;
}

}  // namespace

// The host's files are the daemon's own, but the paths below its root are a target's word too.
const UniqueFd& DebugSearch::root(bool is_hosts) const {
  static const UniqueFd hosts(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return is_hosts ? hosts : space_.root();
}

DebugFile DebugSearch::read(const UniqueFd& fd, const Wanted& wanted) {
  if (!fd.valid()) return {};
  auto mapped = unwind::MappedFile::map(fd.get());
  if (!mapped) return {};
  const uint64_t size = mapped->bytes().size();
  auto file = unwind::ElfFile::from_file(std::move(*mapped));
  if (!file) return {};
  const std::string& id = (*file)->build_id();
  bool fits = wanted.build_id.empty() || id == wanted.build_id;
  if (wanted.has_checksum && fits) {
    const auto checksum = checksum_of(fd, size);
    fits = checksum ? *checksum == wanted.checksum : !wanted.build_id.empty();
  }
  if (!fits) {
    note(DebugTrouble::kMismatch);
    return {};
  }
  return {std::move(*file), {}, false};
}

DebugFile DebugSearch::open(const std::string& path, bool is_hosts, const Wanted& wanted) {
  struct stat info = {};
  DebugFile out = read(reopen_regular(open_in_root(root(is_hosts), path, O_PATH), info), wanted);
  if (!out.file) return out;
  out.path = followed(root(is_hosts), path);
  out.is_hosts = is_hosts;
  return out;
}

DebugFile DebugSearch::check(UniqueFd fd, const unwind::ElfFile& object) {
  return read(fd, {.build_id = object.build_id()});
}

bool DebugSearch::lacks_debug(const unwind::ElfFile& object) const {
  if (section_named(object.elf(), {".debug_info", ".zdebug_info"}) != nullptr) return false;
  const std::string path = path_of_build(object.build_id());
  if (path.empty()) return false;
  return !open_in_root(root(false), path, O_PATH).valid() &&
         !open_in_root(root(true), path, O_PATH).valid();
}

DebugFile DebugSearch::by_build_id(const std::string& id) {
  const std::string path = path_of_build(id);
  if (path.empty()) return {};
  const Wanted wanted{.build_id = id};
  DebugFile found = open(path, false, wanted);
  return found.file ? found : open(path, true, wanted);
}

DebugFile DebugSearch::find(const unwind::ElfFile& object) {
  DebugFile found = by_build_id(object.build_id());
  if (found.file) return found;
  GElf_Word checksum = 0;
  const char* link = dwelf_elf_gnu_debuglink(object.elf(), &checksum);
  if (link == nullptr) return {};
  const std::string name(link, strnlen(link, kMaxLinkBytes));
  const std::string directory = directory_of(path_);
  if (!is_plain_name(name) || path_.empty() || path_.front() != '/') return {};
  const Wanted wanted{object.build_id(), true, checksum};
  const std::string global = std::string(kDebugRoot) + directory + "/" + name;
  for (const std::string& path : {directory + "/" + name, directory + "/.debug/" + name, global}) {
    if (path == path_) continue;
    found = open(path, false, wanted);
    if (found.file) return found;
  }
  const bool leaves = directory.find("/..") != std::string::npos;
  return leaves ? DebugFile() : open(global, true, wanted);
}

DebugFile DebugSearch::find_alternate(const DebugFile& debug) {
  const auto link = alternate_link(debug.file->elf());
  if (!link) return {};
  DebugFile found = by_build_id(link->build_id);
  if (!found.file && !link->path.empty() && !link->build_id.empty() && !debug.path.empty()) {
    const std::string normal = joined(directory_of(debug.path), link->path);
    const bool may_look = !debug.is_hosts || normal.starts_with(std::string(kDebugRoot) + "/");
    if (may_look) found = open(normal, debug.is_hosts, {.build_id = link->build_id});
  }
  // libdw would look for the alternate of an alternate by itself.
  if (found.file && section_named(found.file->elf(), {".gnu_debugaltlink"}) != nullptr) found = {};
  if (!found.file) note(DebugTrouble::kNoAlternate);
  return found;
}

}  // namespace gpuprof::symbolize
