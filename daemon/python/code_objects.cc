// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/code_objects.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace gpuprof::python {
namespace {

constexpr uint64_t kTypeAt = 8;       // PyObject.ob_type
constexpr uint64_t kTypeNameAt = 24;  // PyTypeObject.tp_name
constexpr uint64_t kLengthAt = 16;    // PyVarObject.ob_size, PyASCIIObject.length
constexpr uint64_t kStateAt = 32;     // PyASCIIObject.state
constexpr uint64_t kBytesAt = 32;     // PyBytesObject.ob_sval
constexpr uint64_t kUtf8Bytes = 16;   // of PyCompactUnicodeObject, since 3.12; wstr_length before
constexpr size_t kCodeHeadMax = 4096;

template <class T>
T field(std::span<const uint8_t> bytes, size_t at) {
  T value = {};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void append_utf8(std::string& out, uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool invalid = c > 0x10ffff || (c >= 0xd800 && c < 0xe000);
  if (control || invalid) {
    out += '?';
  } else if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

size_t bytes_of(const CodeObject& code) {
  return sizeof code + code.function.size() + code.file.size() + code.lines.size();
}

}  // namespace

CodeObjects::CodeObjects(const Layout& layout, ReadMemory read)
    : layout_(layout), read_(std::move(read)) {}

const CodeObject* CodeObjects::find(uint64_t address,
                                    std::span<const uint8_t, GPUPROF_PYTHON_CODE_BYTES> window,
                                    uint64_t now_ns) {
  const auto known = codes_.find(address);
  if (known != codes_.end() &&
      std::equal(window.begin(), window.end(), known->second->window.begin())) {
    return known->second.get();
  }
  if (address == 0 || codes_.size() >= kMaxCodes || kept_bytes_ >= kMaxBytes || !may_read(now_ns))
    return nullptr;
  auto code = read(address, window);
  if (!code) return nullptr;
  std::unique_ptr<CodeObject>& kept = codes_[address];
  if (kept) kept_bytes_ -= bytes_of(*kept);
  kept_bytes_ += bytes_of(*code);
  code->number = next_number_++;
  kept = std::move(code);
  return kept.get();
}

// Its file, name and qualified name are one str; a code object with a file has a first line.
bool CodeObjects::is_cleanup(std::span<const uint8_t, GPUPROF_PYTHON_CODE_BYTES> window) const {
  if (layout_.entry != EntryRule::kOwner) return false;
  const uint32_t begin = layout_.walk.code_window;
  return field<int32_t>(window, layout_.code_first_line - begin) == 0 &&
         field<uint64_t>(window, layout_.code_filename - begin) ==
             field<uint64_t>(window, layout_.code_name - begin);
}

bool CodeObjects::may_read(uint64_t now_ns) {
  const uint64_t second = now_ns / 1'000'000'000;
  if (second != second_) {
    second_ = second;
    reads_ = 0;
  }
  return ++reads_ <= kMaxReadsPerSecond;
}

bool CodeObjects::is_code_type(uint64_t type) {
  constexpr std::string_view kName("code", 5);  // with its NUL
  if (type == code_type_) return type != 0;
  std::array<char, kName.size()> name = {};
  const auto at = read_value<uint64_t>(read_, type + kTypeNameAt);
  if (read_(at, {reinterpret_cast<uint8_t*>(name.data()), name.size()}) != name.size() ||
      std::string_view(name.data(), name.size()) != kName)
    return false;
  code_type_ = type;
  return true;
}

// It lives, and is the one of the launch. The memory of one that was freed keeps all but its first
// word: that is the reference count, and the allocator's pointer to the next free block then. A
// count has 32 bits; 3.14 keeps flags in the uppermost 16.
bool CodeObjects::holds(uint64_t address, std::span<const uint8_t> window) const {
  const auto count = read_value<uint64_t>(read_, address);
  if (static_cast<uint32_t>(count) == 0 || (count >> 32 & 0xffff) != 0) return false;
  std::array<uint8_t, GPUPROF_PYTHON_CODE_BYTES> now;
  return read_(address + layout_.walk.code_window, now) == now.size() &&
         std::equal(window.begin(), window.end(), now.begin());
}

std::unique_ptr<CodeObject> CodeObjects::read(uint64_t address, std::span<const uint8_t> window) {
  std::array<uint8_t, kCodeHeadMax> head;
  const std::span<uint8_t> wanted = std::span(head).first(layout_.code_bytes);
  if (read_(address, wanted) != wanted.size()) return nullptr;
  if (!is_code_type(field<uint64_t>(wanted, kTypeAt)) || !holds(address, window)) return nullptr;
  auto code = std::make_unique<CodeObject>();
  code->first_line = field<int32_t>(wanted, layout_.code_first_line);
  auto function = text(field<uint64_t>(wanted, layout_.code_name));
  auto file = text(field<uint64_t>(wanted, layout_.code_filename));
  if (!function || !file || function->empty() ||
      !bytes(field<uint64_t>(wanted, layout_.code_lines), code->lines) || !holds(address, window))
    return nullptr;
  code->function = std::move(*function);
  code->file = std::move(*file);
  std::copy(window.begin(), window.end(), code->window.begin());
  return code;
}

// A compact str: one, two or four bytes a character.
std::optional<std::string> CodeObjects::text(uint64_t address) const {
  constexpr uint32_t kCompact = 0x20, kAscii = 0x40;
  std::array<uint8_t, kStateAt + 4> head;
  if (read_(address, head) != head.size()) return std::nullopt;
  const auto state = field<uint32_t>(head, kStateAt);
  const uint64_t width = state >> 2 & 7;
  if ((state & kCompact) == 0 || (width != 1 && width != 2 && width != 4)) return std::nullopt;
  const uint64_t length = std::min<uint64_t>(field<uint64_t>(head, kLengthAt), kMaxTextCharacters);
  // Before 3.12 a str had a wchar_t copy, whose length comes after the UTF-8's.
  const uint64_t wide_head =
      layout_.text_bytes + kUtf8Bytes + (layout_.version < 0x30c ? sizeof(uint64_t) : 0);
  const uint64_t data = address + ((state & kAscii) != 0 ? layout_.text_bytes : wide_head);
  std::vector<uint8_t> raw(length * width);
  if (read_(data, raw) != raw.size()) return std::nullopt;
  std::string out;
  out.reserve(length);
  for (size_t i = 0; i < raw.size(); i += width) {
    uint32_t c = 0;
    std::memcpy(&c, raw.data() + i, width);
    append_utf8(out, c);
  }
  return out;
}

bool CodeObjects::bytes(uint64_t address, std::vector<uint8_t>& out) const {
  const auto length = read_value<uint64_t>(read_, address + kLengthAt);
  if (address == 0 || length > kMaxLineTable) return false;
  out.resize(length);
  return read_(address + kBytesAt, out) == length;
}

uint32_t CodeObjects::line(const CodeObject& code, const gpuprof_python_frame& frame) const {
  const std::span window(frame.frame_window);
  uint64_t offset = 0;
  if (layout_.index_bytes != 0) {
    const auto index = field<int32_t>(window, layout_.window_instruction);
    if (index < 0) return code.first_line > 0 ? static_cast<uint32_t>(code.first_line) : 0;
    offset = static_cast<uint64_t>(index) * layout_.index_bytes;
  } else {
    const uint64_t begin = frame.code + layout_.code_instructions;
    const auto at = field<uint64_t>(window, layout_.window_instruction);
    if (at < begin) return code.first_line > 0 ? static_cast<uint32_t>(code.first_line) : 0;
    offset = at - begin;
  }
  if (offset > UINT32_MAX) return 0;
  return line_at(layout_.lines, code.lines, code.first_line, static_cast<uint32_t>(offset));
}

}  // namespace gpuprof::python
