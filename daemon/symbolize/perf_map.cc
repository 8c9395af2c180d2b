// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/perf_map.h"

#include <charconv>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::symbolize {
namespace {

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
  while (!text.empty() && ranges_.size() < kMaxEntries) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    uint64_t start = 0;
    uint64_t size = 0;
    if (!take_hex(line, start) || !take_hex(line, size) || line.empty()) continue;
    if (!ranges_.add(start, size)) continue;
    const std::string name = unwind::printable(line.substr(0, kMaxNameBytes));
    by_range_.push_back({static_cast<uint32_t>(names_.size()), static_cast<uint32_t>(name.size())});
    names_ += name;
  }
}

bool PerfMap::read_more() {
  if (!file_.is_due()) return false;
  bool is_another = false;
  const std::string text = file_.read(
      "/tmp/perf-" + std::to_string(space_.namespace_pid()) + ".map", kMaxBytes, is_another);
  if (is_another) {
    ranges_.clear();
    by_range_.clear();
    names_.clear();
  }
  const size_t whole = text.rfind('\n');  // the last line may be half written
  if (whole == std::string::npos) return false;
  file_.take(whole + 1);
  parse(std::string_view(text).substr(0, whole + 1));
  return true;
}

std::string_view PerfMap::find(uint64_t pc) {
  auto number = ranges_.find(pc);
  if (!number && read_more()) number = ranges_.find(pc);
  if (!number) return {};
  return std::string_view(names_).substr(by_range_[*number].at, by_range_[*number].bytes);
}

}  // namespace gpuprof::symbolize
