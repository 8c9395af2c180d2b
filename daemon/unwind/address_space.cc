// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/address_space.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "daemon/base/clock.h"
#include "daemon/base/root_file.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::unwind {
namespace {

constexpr size_t kMaxMapsBytes = size_t{32} << 20;
constexpr size_t kMaxMappings = 16384;  // executable ones, of one process
constexpr size_t kMaxVdsoBytes = 65536;
constexpr int64_t kRefreshBurstNs = 50'000'000;  // refreshing may take this much at a stretch,
constexpr int64_t kRefreshShare = 20;            // and 1/20 of the time in the long run

UniqueFd open_at(const UniqueFd& dir, const char* name, int flags) {
  return UniqueFd(openat(dir.get(), name, flags | O_CLOEXEC));
}

Result<std::string> read_all(const UniqueFd& dir, const char* name, size_t limit) {
  const UniqueFd fd = open_at(dir, name, O_RDONLY);
  if (!fd.valid()) {
    const int err = errno;
    return fail_errno(err == EACCES || err == EPERM ? Code::kPermission : Code::kNotFound, err,
                      std::string("open /proc/PID/") + name);
  }
  std::string text;
  char buffer[16384];
  while (text.size() < limit) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(Code::kNotFound, errno, std::string("read /proc/PID/") + name);
    if (n == 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

// Field 22 of /proc/PID/stat. The command (field 2) may hold spaces and brackets: count from the
// last ')'.
uint64_t start_ticks(std::string_view stat) {
  const size_t close = stat.rfind(')');
  if (close == std::string_view::npos) return 0;
  stat.remove_prefix(close + 1);
  for (int field = 2; field < 22; ++field) {
    const size_t space = stat.find(' ');
    if (space == std::string_view::npos) return 0;
    stat.remove_prefix(space + 1);
  }
  uint64_t ticks = 0;
  std::from_chars(stat.data(), stat.data() + stat.size(), ticks);
  return ticks;
}

// Number `index` (from 0; -1: the last) of the /proc/PID/status line that begins with `key`.
uint32_t status_number(std::string_view status, std::string_view key, int index,
                       uint32_t fallback) {
  const size_t at = status.find("\n" + std::string(key));
  if (at == std::string_view::npos) return fallback;
  std::string_view line = status.substr(at + 1 + key.size());
  line = line.substr(0, line.find('\n'));
  uint32_t value = fallback;
  for (int i = 0; index < 0 || i <= index; ++i) {
    const size_t digit = line.find_first_of("0123456789");
    if (digit == std::string_view::npos) break;
    line.remove_prefix(digit);
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc()) return fallback;
    line.remove_prefix(static_cast<size_t>(end - line.data()));
  }
  return value;
}

// stat's device is not the one in maps on file systems that give each subvolume or layer its own.
bool has_odd_device(const UniqueFd& fd) {
  struct statfs fs = {};
  return fstatfs(fd.get(), &fs) == 0 &&
         (fs.f_type == BTRFS_SUPER_MAGIC || fs.f_type == OVERLAYFS_SUPER_MAGIC);
}

}  // namespace

AddressSpace::AddressSpace(ProcessId process, FileCache& files)
    : process_(process), files_(files), namespace_pid_(process.pid) {}

AddressSpace::~AddressSpace() = default;

Result<std::shared_ptr<AddressSpace>> AddressSpace::open(ProcessId process, FileCache& files) {
  std::shared_ptr<AddressSpace> space(new AddressSpace(process, files));
  const std::string dir = "/proc/" + std::to_string(process.pid);
  space->proc_dir_ = UniqueFd(::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!space->proc_dir_.valid()) return fail_errno(Code::kNotFound, errno, "open " + dir);
  const auto stat = read_all(space->proc_dir_, "stat", 4096);
  if (!stat) return fail_with(stat.error(), dir);
  const uint64_t ticks = start_ticks(*stat);
  if (process.start_ticks == 0) space->process_.start_ticks = ticks;
  // BPF rounds the same clock down, but its reading may differ by one tick from the kernel's sum.
  const uint64_t want = space->process_.start_ticks;
  if (ticks + 1 < want || ticks > want + 1) {
    return fail(Code::kNotFound, dir + " is another process by now");
  }
  const auto maps = read_all(space->proc_dir_, "maps", 1);
  if (!maps) return fail_with(maps.error(), dir);
  if (auto status = read_all(space->proc_dir_, "status", 65536)) {
    space->namespace_pid_ = status_number(*status, "NSpid:", -1, process.pid);
    space->uid_ = status_number(*status, "Uid:", 1, 0);
  }
  space->root_ = files.root(open_at(space->proc_dir_, "root", O_PATH | O_DIRECTORY));
  space->load();
  space->last_credit_ns_ = signed_monotonic_ns();
  space->refresh_credit_ns_ = kRefreshBurstNs;
  return space;
}

std::shared_ptr<AddressSpace> AddressSpace::of_mappings(std::vector<Mapping> mappings,
                                                        FileCache& files) {
  std::shared_ptr<AddressSpace> space(new AddressSpace({}, files));
  space->alive_ = false;
  space->root_ = std::make_shared<const UniqueFd>();
  space->merge(std::move(mappings));
  return space;
}

size_t AddressSpace::read_memory(uint64_t address, std::span<uint8_t> out) const {
  if (!mem_.valid() || address > INT64_MAX) return 0;
  const ssize_t n = pread(mem_.get(), out.data(), out.size(), static_cast<off_t>(address));
  return n < 0 ? 0 : static_cast<size_t>(n);
}

Result<UniqueFd> AddressSpace::open_in_root(const std::string& path) const {
  const UniqueFd handle = gpuprof::open_in_root(*root_, path, O_PATH);
  if (!handle.valid()) return fail_errno(Code::kNotFound, errno, path);
  struct stat st = {};
  UniqueFd fd = reopen_regular(handle, st);
  if (!fd.valid()) return fail(Code::kCorrupt, path + " is not a readable regular file");
  return fd;
}

// /proc/PID/map_files names the very file that is mapped, also when it was deleted or replaced; it
// needs CAP_CHECKPOINT_RESTORE (5.9) or CAP_SYS_ADMIN. Without it, the path in the target's root,
// if the inode there is still the mapped one.
UniqueFd AddressSpace::open_mapped_file(const MapsLine& line) const {
  char name[64];
  std::snprintf(name, sizeof name, "map_files/%lx-%lx", static_cast<unsigned long>(line.start),
                static_cast<unsigned long>(line.end));
  struct stat st = {};
  if (UniqueFd fd = reopen_regular(open_at(proc_dir_, name, O_PATH), st); fd.valid()) return fd;
  if (line.deleted || line.path.empty() || line.path.front() != '/') return {};
  const UniqueFd handle = gpuprof::open_in_root(*root_, line.path, O_PATH);
  UniqueFd fd = reopen_regular(handle, st);
  if (!fd.valid() || st.st_ino != line.inode) return {};
  if (st.st_dev != line.dev && !has_odd_device(fd)) return {};
  return fd;
}

Mapping AddressSpace::open_mapping(const MapsLine& line) {
  Mapping mapping{.start = line.start,
                  .end = line.end,
                  .file_offset = line.file_offset,
                  .bias = 0,
                  .dev = line.dev,
                  .inode = line.inode,
                  .kind = MappingKind::kUnknown,
                  .file = nullptr,
                  .path = printable(line.path)};
  if (line.path == "[vdso]") {
    std::vector<uint8_t> image(std::min<uint64_t>(line.end - line.start, kMaxVdsoBytes));
    image.resize(read_memory(line.start, image));
    if (auto file = files_.from_memory(image)) {
      mapping.kind = MappingKind::kVdso;
      mapping.file = std::move(*file);
      mapping.bias = mapping.file->bias(line.start, 0).value_or(line.start);
    }
    return mapping;
  }
  if (line.path == "[vsyscall]") return mapping;
  if (line.inode == 0) {
    mapping.kind = MappingKind::kJit;
    mapping.path = "[jit]";
    return mapping;
  }
  const UniqueFd fd = open_mapped_file(line);
  if (!fd.valid()) return mapping;
  auto file = files_.open(fd);
  if (!file) {
    // A file that is no ELF file holds generated code (a JIT's memfd or shared memory).
    if (file.error().code == Code::kCorrupt) mapping.kind = MappingKind::kJit;
    return mapping;
  }
  if (const auto bias = (*file)->bias(line.start, line.file_offset)) {
    mapping.kind = MappingKind::kFile;
    mapping.file = std::move(*file);
    mapping.bias = *bias;
  }
  return mapping;
}

// Files that are mapped where they were are not opened again: a refresh costs little more than
// reading the maps.
bool AddressSpace::load() {
  const auto text = read_all(proc_dir_, "maps", kMaxMapsBytes);
  if (!text || text->empty()) return false;  // gone, or a zombie
  if (!is_same_program()) return false;
  std::vector<Mapping> fresh;
  for (std::string_view rest = *text; !rest.empty() && fresh.size() < kMaxMappings;) {
    const size_t end = rest.find('\n');
    const auto line = parse_maps_line(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (!line || !line->executable) continue;
    const Mapping* known = lookup(line->start);
    const bool unchanged = known != nullptr && known->start == line->start &&
                           known->end == line->end && known->file_offset == line->file_offset &&
                           known->inode == line->inode && known->dev == line->dev;
    fresh.push_back(unchanged ? *known : open_mapping(*line));
  }
  if (would_replace(fresh)) {
    replaced_ = true;
    return false;
  }
  merge(std::move(fresh));
  return true;
}

// The descriptor of the memory stays with what it was opened on, and reads nothing once exec (or
// exit) has replaced it: so also an exec of the same file is seen.
bool AddressSpace::is_same_program() {
  struct stat exe = {};
  const bool have_exe = fstatat(proc_dir_.get(), "exe", &exe, 0) == 0;
  if (have_exe && exe_inode_ != 0 && (exe.st_dev != exe_dev_ || exe.st_ino != exe_inode_))
    return false;
  if (have_exe) {
    exe_dev_ = exe.st_dev;
    exe_inode_ = exe.st_ino;
  }
  if (!mem_.valid()) mem_ = open_at(proc_dir_, "mem", O_RDONLY);
  if (!mem_.valid() || mappings_.empty()) return true;
  uint8_t byte = 0;
  return pread(mem_.get(), &byte, 1, static_cast<off_t>(mappings_.front().start)) != 0;
}

// Only files can be mistaken for one another: generated code has its perf map.
bool AddressSpace::would_replace(const std::vector<Mapping>& fresh) const {
  for (const Mapping& now : fresh) {
    if (!now.file) continue;
    auto old = std::upper_bound(mappings_.begin(), mappings_.end(), now.start,
                                [](uint64_t at, const Mapping& m) { return at < m.end; });
    for (; old != mappings_.end() && old->start < now.end; ++old) {
      if (!old->file) continue;
      // The inode is pinned by our mapping of it, so its number is not reused.
      if (old->inode != now.inode || old->dev != now.dev || old->bias != now.bias) return true;
    }
  }
  return false;
}

// What was mapped before stays known where nothing new is: its samples may still be in flight.
void AddressSpace::merge(std::vector<Mapping> fresh) {
  std::sort(fresh.begin(), fresh.end(),
            [](const Mapping& a, const Mapping& b) { return a.start < b.start; });
  if (fresh.size() < kMaxMappings) {
    std::vector<Mapping> stale;
    for (Mapping& old : mappings_) {
      const auto next = std::upper_bound(fresh.begin(), fresh.end(), old.start,
                                         [](uint64_t at, const Mapping& m) { return at < m.end; });
      if (next == fresh.end() || next->start >= old.end) stale.push_back(std::move(old));
    }
    fresh.insert(fresh.end(), std::make_move_iterator(stale.begin()),
                 std::make_move_iterator(stale.end()));
    std::sort(fresh.begin(), fresh.end(),
              [](const Mapping& a, const Mapping& b) { return a.start < b.start; });
    if (fresh.size() > kMaxMappings) fresh.resize(kMaxMappings);
  }
  mappings_ = std::move(fresh);
  last_hit_ = 0;
  ++generation_;
}

void AddressSpace::process_exited() {
  alive_ = false;
  mem_.reset();
  proc_dir_.reset();
}

bool AddressSpace::refresh() {
  if (!alive_) return false;
  const int64_t start = signed_monotonic_ns();
  alive_ = load();
  refresh_credit_ns_ -= signed_monotonic_ns() - start;
  return alive_;
}

bool AddressSpace::take_refresh_budget() {
  const int64_t now = signed_monotonic_ns();
  refresh_credit_ns_ =
      std::min(kRefreshBurstNs, refresh_credit_ns_ + (now - last_credit_ns_) / kRefreshShare);
  last_credit_ns_ = now;
  return refresh_credit_ns_ > 0;
}

const Mapping* AddressSpace::lookup(uint64_t pc) const {
  if (last_hit_ < mappings_.size()) {
    const Mapping& last = mappings_[last_hit_];
    if (pc >= last.start && pc < last.end) return &last;
  }
  const auto it = std::upper_bound(mappings_.begin(), mappings_.end(), pc,
                                   [](uint64_t at, const Mapping& m) { return at < m.end; });
  if (it == mappings_.end() || pc < it->start) return nullptr;
  last_hit_ = static_cast<size_t>(it - mappings_.begin());
  return &*it;
}

const Mapping* AddressSpace::find(uint64_t pc) {
  if (const Mapping* hit = lookup(pc)) return hit;
  // Nobody maps the first page or the upper half: no reason to look again.
  if (!alive_ || pc < 4096 || pc > INT64_MAX || !take_refresh_budget() || !refresh())
    return nullptr;
  return lookup(pc);
}

}  // namespace gpuprof::unwind
