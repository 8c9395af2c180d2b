// SPDX-License-Identifier: Apache-2.0
//
// The result of unwinding one copied stack.
#pragma once

#include <cstdint>
#include <vector>

namespace gpuprof::unwind {

// How an unwind ended. Only kWhole reached the outermost frame.
enum class StackEnd : uint8_t {
  kInvalid = 0,
  kWhole,     // CFI says that the caller is undefined, or the thread's first frame was reached
  kCut,       // the copied bytes ended
  kNoCfi,     // a pc without unwind information (JIT code, hand-written assembly)
  kNoModule,  // a pc in no file mapping
  kBadFrame,  // CFI led to an impossible frame (no progress, misaligned, loop)
  kTooDeep,   // more frames than the bound
  kNoStack,   // the copy was lost or empty
};
inline constexpr int kStackEndCount = 8;

// `pcs` is leaf first. pcs[0] is exact; every other pc is a return address minus 1, so that it lies
// inside the call instruction (except above a signal frame, where it is exact again).
// `limits[i]` is the address above frame i's part of the stack, its CFA: the frame's variables lie
// between limits[i - 1] (the copied stack's begin) and it. UINT64_MAX where the unwind ended.
// `by_frame_pointer` counts the frames that only a frame pointer told: their callees have no CFI,
// and a function that uses the register for something else would have led elsewhere.
struct RawStack {
  std::vector<uint64_t> pcs;
  std::vector<uint64_t> limits;  // as many as pcs
  StackEnd end = StackEnd::kInvalid;
  uint32_t by_frame_pointer = 0;
};

}  // namespace gpuprof::unwind
