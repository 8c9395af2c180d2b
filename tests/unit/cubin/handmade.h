// SPDX-License-Identifier: Apache-2.0
//
// Images made by hand, parsed within the bounds that every image has: 1 s and 200 MB.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cubin/image.h"
#include "tests/unit/cubin/cubin_writer.h"
#include "tests/unit/cubin/heap_meter.h"

namespace gpuprof::cubin::test {

// A sanitizer's build takes its time, and so does an emulator.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(GPUPROF_EMULATED)
inline constexpr double kMaxSeconds = 20.0;
#else
inline constexpr double kMaxSeconds = 1.0;
#endif
inline constexpr uint64_t kMaxBytes = 200'000'000;

// Asks about every function, where its neighbours begin and end too.
inline void ask(const Image& image) {
  for (const Function& function : image.functions()) {
    for (const uint64_t pc : {uint64_t{0}, function.size_bytes / 2, function.size_bytes - 1,
                              function.size_bytes, UINT64_MAX}) {
      const Resolution resolution = image.resolve(function.mangled, pc);
      EXPECT_EQ(resolution.frames.empty(), resolution.status == SourceStatus::kUnmapped);
    }
  }
}

struct Outcome {
  std::shared_ptr<const Image> image;  // null: refused
  std::string error;
};

inline Outcome parse_within_bounds(std::vector<std::byte> bytes) {
  const HeapMeter meter;
  Outcome outcome;
  auto image = Image::parse(std::move(bytes));
  EXPECT_LT(meter.seconds(), kMaxSeconds);
  EXPECT_LT(meter.peak_bytes(), kMaxBytes);
  if (image) {
    ask(**image);
    outcome.image = *image;
  } else {
    outcome.error = image.error().message;
    EXPECT_FALSE(outcome.error.empty());
    EXPECT_EQ(outcome.error.find('\n'), std::string::npos) << outcome.error;
    EXPECT_LT(outcome.error.size(), 200u) << outcome.error;
    EXPECT_TRUE(image.error().code == Code::kCorrupt || image.error().code == Code::kUnsupported);
  }
  return outcome;
}

inline constexpr uint64_t kKernelBytes = 0x400;

// One kernel `k` and what the test writes about it.
class Handmade {
 public:
  Handmade() : symbol_(writer_.kernel("k", kKernelBytes)) { program_.set_address(symbol_); }

  LineProgram& program() { return program_; }
  CubinWriter& writer() { return writer_; }
  Outcome end_sequence_and_parse() {
    program_.end_sequence(kKernelBytes);
    return parse();
  }
  Outcome parse() {
    writer_.unit(program_, {"a.cu", "b.cu"});
    return parse_within_bounds(writer_.finish());
  }

 private:
  CubinWriter writer_;
  size_t symbol_;
  LineProgram program_;
};

inline std::string u32_bytes(size_t value) {
  const auto narrow = static_cast<uint32_t>(value);
  return {reinterpret_cast<const char*>(&narrow), sizeof(narrow)};
}

}  // namespace gpuprof::cubin::test
