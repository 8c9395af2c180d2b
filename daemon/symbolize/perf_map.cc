// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/perf_map.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "daemon/base/clock.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::symbolize {
namespace {

constexpr int64_t kLookPeriodNs = 100'000'000;
constexpr int kMaxEnclosing = 16;

bool take_hex(std::string_view& text, uint64_t& value) {
  if (text.starts_with("0x")) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.empty() || text.front() != ' ') return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

void PerfMap::parse(std::string_view text) {
  while (!text.empty() && entries_.size() < kMaxEntries) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    Entry e;
    uint64_t size = 0;
    if (!take_hex(line, e.start) || !take_hex(line, size) || size == 0 ||
        size > (uint64_t{1} << 32) || e.start > UINT64_MAX - size || line.empty()) {
      continue;
    }
    e.end = e.start + size;
    const std::string name = unwind::printable(line.substr(0, kMaxNameBytes));
    e.name = static_cast<uint32_t>(names_.size());
    e.name_bytes = static_cast<uint32_t>(name.size());
    e.order = static_cast<uint32_t>(entries_.size());
    names_ += name;
    entries_.push_back(e);
  }
  sort();
}

// By start; of equal starts the last written one goes last, where lookup meets it first.
void PerfMap::sort() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.start != b.start ? a.start < b.start : a.order < b.order;
  });
}

// Of the entries around `pc` the one written last: code was replaced there.
const PerfMap::Entry* PerfMap::lookup(uint64_t pc) const {
  auto it = std::upper_bound(entries_.begin(), entries_.end(), pc,
                             [](uint64_t at, const Entry& e) { return at < e.start; });
  const Entry* best = nullptr;
  for (int back = 0; it != entries_.begin() && back < kMaxEnclosing; ++back) {
    --it;
    if (pc < it->end && (best == nullptr || it->order > best->order)) best = &*it;
  }
  return best;
}

bool PerfMap::read_more() {
  const int64_t now = signed_monotonic_ns();
  if (now < next_look_ns_) return false;
  next_look_ns_ = now + kLookPeriodNs;
  const auto fd =
      space_.open_in_root("/tmp/perf-" + std::to_string(space_.namespace_pid()) + ".map");
  struct stat st = {};
  if (!fd || fstat(fd->get(), &st) != 0) return false;
  if (st.st_uid != 0 && st.st_uid != space_.uid()) return false;
  const auto size = static_cast<uint64_t>(st.st_size);
  if (st.st_ino != inode_ || size < read_bytes_) {  // another file: start afresh
    entries_.clear();
    names_.clear();
    read_bytes_ = 0;
    inode_ = st.st_ino;
  }
  const uint64_t limit = std::min(size, kMaxBytes);
  if (limit <= read_bytes_) return false;
  std::string text(limit - read_bytes_, '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = pread(fd->get(), text.data() + got, text.size() - got,
                            static_cast<off_t>(read_bytes_ + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  const size_t whole = text.rfind('\n');  // the last line may be half written
  if (whole == std::string::npos) return false;
  read_bytes_ += whole + 1;
  parse(std::string_view(text).substr(0, whole + 1));
  return true;
}

std::string_view PerfMap::find(uint64_t pc) {
  const Entry* hit = lookup(pc);
  if (hit == nullptr && read_more()) hit = lookup(pc);
  if (hit == nullptr) return {};
  return std::string_view(names_).substr(hit->name, hit->name_bytes);
}

}  // namespace gpuprof::symbolize
