// SPDX-License-Identifier: Apache-2.0
//
// A Python program's memory: the interpreter's own offsets, frames, code objects, line tables, the
// code around its evaluation function. All of it is the target's to write.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "daemon/python/code_objects.h"
#include "daemon/python/evaluation.h"
#include "daemon/python/layout.h"
#include "daemon/python/line_table.h"
#include "daemon/python/stitch.h"

namespace {

using namespace gpuprof::python;

constexpr uint64_t kBase = 0x100000;
constexpr uint64_t kSecond = 1'000'000'000;

class Memory {
 public:
  explicit Memory(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  size_t read(uint64_t address, std::span<uint8_t> out) const {
    if (address < kBase || address - kBase >= bytes_.size()) return 0;
    const auto from = bytes_.subspan(address - kBase);
    const size_t count = std::min(from.size(), out.size());
    std::copy_n(from.begin(), count, out.begin());
    return count;
  }

 private:
  std::span<const uint8_t> bytes_;
};

void check_text(const std::string& text) {
  if (text.size() > 4 * CodeObjects::kMaxTextCharacters) std::abort();
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) std::abort();
}

// The frames as BPF copies them, from 8 bytes on 8 bytes.
std::vector<gpuprof_python_frame> frames_of(const Layout& layout, const Memory& memory,
                                            size_t size) {
  std::vector<gpuprof_python_frame> out;
  for (size_t at = 0; at < size && out.size() < 64; at += 8) {
    gpuprof_python_frame frame = {};
    frame.address = kBase + at;
    memory.read(frame.address + layout.walk.frame_window, frame.frame_window);
    std::memcpy(&frame.code, frame.frame_window + layout.walk.window_code, sizeof frame.code);
    memory.read(frame.code + layout.walk.code_window, frame.code_window);
    out.push_back(frame);
  }
  return out;
}

void try_stitch(const Layout& layout, std::span<const gpuprof_python_frame> frames,
                std::span<const uint8_t> kinds) {
  const std::vector<FrameRun> runs = runs_of(layout, frames);
  std::vector<Native> native;
  for (const uint8_t kind : kinds.first(std::min<size_t>(kinds.size(), 64)))
    native.push_back(static_cast<Native>(kind % 4));
  std::vector<StitchedFrame> out;
  for (const bool whole : {false, true}) {
    if (stitch(native, whole, runs, out) != StitchEnd::kStitched) continue;
    for (const StitchedFrame& frame : out)
      if (frame.index >= (frame.is_python ? frames.size() : native.size())) std::abort();
  }
}

}  // namespace

// Input: a byte that chooses the version, and the memory from kBase on. A code object is at its
// begin for what finds no other.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  const uint32_t version = 0x309 + data[0] % 6;
  std::array<uint8_t, kRuntimeBytes> runtime = {};
  std::copy_n(bytes.begin(), std::min(bytes.size(), runtime.size()), runtime.begin());
  auto layout = layout_of(version, kBase, runtime);
  if (!layout) layout = layout_of(0x30c, kBase, runtime);
  if (!layout) std::abort();

  const Memory memory(bytes);
  const auto read = [&memory](uint64_t address, std::span<uint8_t> out) {
    return memory.read(address, out);
  };
  CodeObjects codes(*layout, read);
  auto frames = frames_of(*layout, memory, bytes.size());
  if (!frames.empty()) {
    frames.front().code = kBase;
    memory.read(kBase + layout->walk.code_window, frames.front().code_window);
  }
  for (const gpuprof_python_frame& frame : frames) {
    (void)codes.is_cleanup(frame.code_window);
    const CodeObject* code = codes.find(frame.code, frame.code_window, kSecond);
    if (code == nullptr) continue;
    check_text(code->function);
    check_text(code->file);
    (void)codes.line(*code, frame);
  }
  try_stitch(*layout, frames, bytes);

  Evaluation evaluation(kBase + 16, kBase + 32, read);
  for (size_t at = 0; at < std::min<size_t>(bytes.size(), 64); ++at) {
    (void)evaluation.is_frame(kBase + 40, kBase + at, false);
    (void)evaluation.is_frame(kBase + 40, kBase + at, true);
  }
  for (const LineTableKind kind :
       {LineTableKind::kLnotab, LineTableKind::kRanges, LineTableKind::kLocations}) {
    for (const uint32_t offset : {0u, 2u, 1000u, UINT32_MAX})
      (void)line_at(kind, bytes, static_cast<int32_t>(data[0]), offset);
  }
  return 0;
}
