// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/layout.h"

#include <cstring>
#include <string>

namespace gpuprof::python {
namespace {

constexpr uint32_t k39 = 0x309, k310 = 0x30a, k311 = 0x30b, k312 = 0x30c, k313 = 0x30d,
                   k314 = 0x30e;
constexpr uint32_t kTextBytes311 = 48, kTextBytes312 = 40;  // sizeof(PyASCIIObject)

Layout layout_39(uint32_t version) {
  Layout out;
  gpuprof_python& walk = out.walk;
  walk.interpreters = 32;
  walk.interpreter_threads = 8;
  walk.thread_next = 8;
  walk.thread_id = 176;
  walk.thread_frame = 24;
  walk.frame_window = 24;
  walk.window_previous = 0;
  walk.window_code = 8;
  walk.code_window = 48;
  out.entry = EntryRule::kEveryFrame;
  out.window_instruction = (version == k39 ? 104 : 96) - walk.frame_window;
  out.index_bytes = version == k39 ? 1 : 2;
  out.lines = version == k39 ? LineTableKind::kLnotab : LineTableKind::kRanges;
  out.code_bytes = 176;
  out.code_filename = 104;
  out.code_name = 112;
  out.code_first_line = 40;
  out.code_lines = 120;
  out.text_bytes = kTextBytes311;
  return out;
}

Layout layout_311() {
  Layout out;
  gpuprof_python& walk = out.walk;
  walk.interpreters = 40;
  walk.interpreter_threads = 16;
  walk.thread_next = 8;
  walk.thread_id = 152;
  walk.thread_native_id = 160;
  walk.thread_frame = 56;
  walk.frame_indirect = 8 + 1;
  walk.window_previous = 48;
  walk.window_code = 32;
  walk.code_window = 72;
  out.entry = EntryRule::kFlag;
  out.window_entry = 68;
  out.window_instruction = 56;
  out.lines = LineTableKind::kLocations;
  out.code_bytes = 184;
  out.code_filename = 112;
  out.code_name = 128;
  out.code_first_line = 72;
  out.code_lines = 136;
  out.code_instructions = 184;
  out.text_bytes = kTextBytes311;
  return out;
}

Layout layout_312() {
  Layout out = layout_311();
  out.walk.interpreter_threads = 72;
  out.walk.thread_id = 136;
  out.walk.thread_native_id = 144;
  out.walk.frame_indirect = 0 + 1;
  out.walk.window_previous = 8;
  out.walk.window_code = 0;
  out.walk.code_window = 68;
  out.entry = EntryRule::kOwner;
  out.walk.every_interpreter = 1;
  out.window_entry = 70;
  out.code_bytes = 192;
  out.code_first_line = 68;
  out.code_instructions = 192;
  out.text_bytes = kTextBytes312;
  return out;
}

// Where _Py_DebugOffsets keeps what: Include/internal/pycore_runtime.h of 3.13,
// pycore_debug_offsets.h of 3.14.
struct DebugOffsets {
  size_t interpreters, interpreter_next, interpreter_threads;
  size_t thread_next, thread_frame, thread_id, thread_native_id;
  size_t frame_previous, frame_executable, frame_instruction, frame_owner;
  size_t code_filename, code_qualname, code_lines, code_first_line, code_instructions;
  size_t text_bytes;
};
constexpr DebugOffsets kOffsets313 = {40,  64,  72,  168, 184, 192, 200, 232, 240,
                                      248, 264, 280, 296, 304, 312, 344, 560};
constexpr DebugOffsets kOffsets314 = {40,  64,  72,  192, 208, 216, 224, 256, 264,
                                      272, 288, 320, 336, 344, 352, 384, 640};
constexpr size_t kCookieAt = 0, kFreeThreadedAt = 16;
constexpr char kCookie[] = "xdebugpy";

// The interpreter's own word for its offsets, kept within bounds that every real one meets.
class OffsetReader {
 public:
  explicit OffsetReader(std::span<const uint8_t> runtime) : runtime_(runtime) {}

  uint64_t word(size_t at) {
    uint64_t value = 0;
    if (at + sizeof value <= runtime_.size()) {
      std::memcpy(&value, runtime_.data() + at, sizeof value);
    } else {
      good_ = false;
    }
    return value;
  }
  // An offset below `limit`.
  uint32_t offset(size_t at, uint64_t limit) {
    const uint64_t value = word(at);
    good_ = good_ && value < limit;
    return static_cast<uint32_t>(value);
  }
  [[nodiscard]] bool good() const { return good_; }

 private:
  std::span<const uint8_t> runtime_;
  bool good_ = true;
};

Result<Layout> layout_313(const DebugOffsets& at, std::span<const uint8_t> runtime) {
  constexpr uint64_t kLarge = uint64_t{1} << 20, kCode = 4096;
  OffsetReader read(runtime);
  if (std::memcmp(runtime.data() + kCookieAt, kCookie, sizeof kCookie - 1) != 0)
    return fail(Code::kUnsupported, "_PyRuntime does not begin with debug offsets");
  if (read.word(kFreeThreadedAt) != 0)
    return fail(Code::kUnsupported, "the interpreter is a free-threaded build");
  Layout out = layout_312();
  gpuprof_python& walk = out.walk;
  walk.interpreters = read.offset(at.interpreters, kLarge);
  walk.interpreter_next = read.offset(at.interpreter_next, kLarge);
  walk.interpreter_threads = read.offset(at.interpreter_threads, kLarge);
  walk.thread_next = read.offset(at.thread_next, kLarge);
  walk.thread_id = read.offset(at.thread_id, kLarge);
  walk.thread_native_id = read.offset(at.thread_native_id, kLarge);
  walk.thread_frame = read.offset(at.thread_frame, kLarge);
  walk.frame_indirect = 0;
  walk.window_previous = read.offset(at.frame_previous, GPUPROF_PYTHON_FRAME_BYTES - 7);
  walk.window_code = read.offset(at.frame_executable, GPUPROF_PYTHON_FRAME_BYTES - 7);
  out.window_instruction = read.offset(at.frame_instruction, GPUPROF_PYTHON_FRAME_BYTES - 7);
  out.window_entry = read.offset(at.frame_owner, GPUPROF_PYTHON_FRAME_BYTES);
  out.code_filename = read.offset(at.code_filename, kCode);
  out.code_name = read.offset(at.code_qualname, kCode);
  out.code_lines = read.offset(at.code_lines, kCode);
  out.code_first_line = read.offset(at.code_first_line, kCode);
  out.code_instructions = read.offset(at.code_instructions, kCode);
  out.code_bytes = out.code_instructions;
  walk.code_window = out.code_first_line;
  out.text_bytes = read.offset(at.text_bytes, 256);
  for (const uint32_t field : {out.code_filename, out.code_name, out.code_lines})
    if (field + 8 > out.code_bytes || field % 8 != 0)
      return fail(Code::kUnsupported, "its debug offsets of code objects cannot be");
  if (!read.good() || out.code_first_line + 4 > out.code_bytes)
    return fail(Code::kUnsupported, "its debug offsets cannot be");
  return out;
}

Result<Layout> layout_of_version(uint32_t version, std::span<const uint8_t> runtime) {
  switch (version) {
    case k39:
    case k310:
      return layout_39(version);
    case k311:
      return layout_311();
    case k312:
      return layout_312();
    case k313:
      return layout_313(kOffsets313, runtime);
    case k314:
      return layout_313(kOffsets314, runtime);
    default:
      return fail(Code::kUnsupported, "Python " + std::to_string(version >> 8) + "." +
                                          std::to_string(version & 0xff) +
                                          " is not known (3.9 to 3.14 are)");
  }
}

}  // namespace

Result<Layout> layout_of(uint32_t version, uint64_t address, std::span<const uint8_t> runtime) {
  if (runtime.size() < kRuntimeBytes) return fail(Code::kIo, "_PyRuntime cannot be read");
  auto layout = layout_of_version(version, runtime);
  if (!layout) return layout;
  layout->version = version;
  layout->walk.interpreters += address;
#if !defined(__x86_64__)
  // pthread_self() is not the thread pointer there.
  if (layout->walk.thread_native_id == 0)
    return fail(Code::kUnsupported, "Python before 3.11 is known on x86-64 only");
  layout->walk.by_native_id = 1;
#endif
  return layout;
}

}  // namespace gpuprof::python
