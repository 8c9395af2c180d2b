// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/jit_dump.h"

#include <algorithm>
#include <string_view>

#include "daemon/base/byte_reader.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/maps_line.h"

namespace gpuprof::symbolize {
namespace {

constexpr uint32_t kMagic = 0x4A695444;  // "JiTD"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 40;
constexpr uint64_t kPrefixBytes = 16;  // id, size, time
constexpr uint64_t kMaxHeaderBytes = 4096;
enum Record : uint32_t { kCodeLoad = 0, kCodeMove = 1, kDebugInfo = 2 };
constexpr uint64_t kLoadBytes = 40;  // of a load before its name
constexpr std::string_view kSameName = "\xff";

}  // namespace

uint32_t JitDump::intern(std::string_view name) {
  const std::string text = unwind::printable(name.substr(0, kMaxNameBytes));
  if (const auto it = name_numbers_.find(text); it != name_numbers_.end()) return it->second;
  if (names_.empty()) names_.emplace_back();  // 0: none
  if (name_bytes_ + text.size() > kMaxNames) return 0;
  name_bytes_ += text.size();
  const auto number = static_cast<uint32_t>(names_.size());
  names_.push_back(text);
  name_numbers_.emplace(text, number);
  return number;
}

void JitDump::add(const Code& code, uint64_t size) {
  if (codes_.size() >= kMaxCodes || !ranges_.add(code.start, size)) return;
  by_index_[code.index] = static_cast<uint32_t>(codes_.size());
  codes_.push_back(code);
}

// pid, tid, address in the dump's view (8), address, size, number, name, the code itself.
void JitDump::load(std::span<const std::byte> body) {
  ByteReader reader(body);
  reader.skip(16);
  Code code;
  code.start = reader.fixed<uint64_t>();
  const auto size = reader.fixed<uint64_t>();
  code.index = reader.fixed<uint64_t>();
  const std::string_view name = reader.string();
  if (reader.failed() || name.empty()) return;
  code.name = intern(name);
  if (code.start == debug_address_ && debug_first_ < lines_.size()) {
    code.first_line = static_cast<uint32_t>(debug_first_);
    code.lines = static_cast<uint32_t>(lines_.size() - debug_first_);
  }
  debug_first_ = lines_.size();
  add(code, size);
}

// pid, tid, address in the dump's view (8), old address, new address, size, number.
void JitDump::move(std::span<const std::byte> body) {
  ByteReader reader(body);
  reader.skip(24);
  const auto start = reader.fixed<uint64_t>();
  const auto size = reader.fixed<uint64_t>();
  const auto index = reader.fixed<uint64_t>();
  const auto known = by_index_.find(index);
  if (reader.failed() || known == by_index_.end()) return;
  Code code = codes_[known->second];
  code.start = start;
  add(code, size);
}

// Comes before the load that it is of: address, count, then for each address, line, discriminator,
// file ("\xff": the one before).
void JitDump::debug_info(std::span<const std::byte> body) {
  ByteReader reader(body);
  lines_.resize(debug_first_);  // of a load that never came
  debug_address_ = reader.fixed<uint64_t>();
  const auto count = reader.fixed<uint64_t>();
  uint32_t file = 0;
  for (uint64_t i = 0; i < count && lines_.size() < kMaxLines; ++i) {
    const auto address = reader.fixed<uint64_t>();
    const auto line = reader.fixed<uint32_t>();
    reader.skip(4);
    const std::string_view name = reader.string();
    if (reader.failed()) break;
    if (name != kSameName) file = intern(name);
    if (address >= debug_address_) lines_.push_back({address - debug_address_, line, file});
  }
  std::stable_sort(lines_.begin() + static_cast<ptrdiff_t>(debug_first_), lines_.end(),
                   [](const Line& a, const Line& b) { return a.offset < b.offset; });
}

uint64_t JitDump::parse_record(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto id = reader.fixed<uint32_t>();
  const auto size = reader.fixed<uint32_t>();
  reader.skip(8);
  if (reader.failed()) return 0;
  if (size < kPrefixBytes) {
    is_bad_ = true;
    return 0;
  }
  // Of a load the code is not needed, of others nothing that is longer.
  const uint64_t needed =
      id == kCodeLoad ? std::min<uint64_t>(size, kPrefixBytes + kLoadBytes + kMaxNameBytes + 1)
                      : std::min<uint64_t>(size, kMaxRecordBytes);
  if (bytes.size() < needed) return 0;
  const std::span<const std::byte> body = bytes.subspan(kPrefixBytes, needed - kPrefixBytes);
  if (id == kCodeLoad) load(body);
  if (id == kCodeMove) move(body);
  if (id == kDebugInfo && size == needed) debug_info(body);
  return size;
}

uint64_t JitDump::parse(std::span<const std::byte> bytes) {
  uint64_t done = 0;
  if (!has_header_) {
    ByteReader reader(bytes);
    const auto magic = reader.fixed<uint32_t>();
    const auto version = reader.fixed<uint32_t>();
    done = reader.fixed<uint32_t>();
    if (reader.failed()) return 0;
    is_bad_ =
        magic != kMagic || version != kVersion || done < kHeaderBytes || done > kMaxHeaderBytes;
    if (is_bad_) return 0;
    has_header_ = true;
  }
  while (!is_bad_ && done < bytes.size()) {
    const uint64_t taken = parse_record(bytes.subspan(done));
    if (taken == 0) break;
    done += taken;
  }
  return done;
}

// The name that the specification asks for, in whatever folder the process found right.
std::string JitDump::path() const {
  const std::string name = "/jit-" + std::to_string(space_.namespace_pid()) + ".dump";
  for (const unwind::Mapping& mapping : space_.mappings()) {
    if (mapping.kind == unwind::MappingKind::kJit && mapping.path.ends_with(name))
      return mapping.path;
  }
  return {};
}

void JitDump::clear() {
  has_header_ = is_bad_ = false;
  ranges_.clear();
  codes_.clear();
  by_index_.clear();
  lines_.clear();
  names_.clear();
  name_numbers_.clear();
  name_bytes_ = debug_first_ = 0;
}

bool JitDump::read_more() {
  if (!file_.is_due()) return false;
  const std::string from = path();
  if (from.empty()) return false;
  const size_t before = codes_.size();
  for (uint64_t read = 0; read < kMaxBytesALook;) {
    bool is_another = false;
    const std::string text = file_.read(from, 2 * kMaxRecordBytes, is_another);
    if (is_another) clear();
    if (text.empty() || is_bad_) break;
    const uint64_t done = parse(std::as_bytes(std::span(text)));
    if (done == 0) break;  // the last record is not whole
    file_.take(done);
    read += text.size();
  }
  return codes_.size() != before;
}

std::optional<JitCode> JitDump::find(uint64_t pc) {
  auto number = ranges_.find(pc);
  if (!number && read_more()) number = ranges_.find(pc);
  if (!number) return std::nullopt;
  const Code& code = codes_[*number];
  JitCode out{.name = names_[code.name], .file = "", .line = 0};
  const auto first = lines_.begin() + code.first_line;
  const auto line = std::upper_bound(first, first + code.lines, pc - code.start,
                                     [](uint64_t at, const Line& l) { return at < l.offset; });
  if (line != first) {
    out.file = names_[std::prev(line)->file];
    out.line = std::prev(line)->line;
  }
  return out;
}

}  // namespace gpuprof::symbolize
