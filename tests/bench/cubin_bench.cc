// SPDX-License-Identifier: Apache-2.0
//
// Index and lookup of a cubin of 20 MB. Targets: 200 ms to index, 2 M lookups/s, an index of at
// most 3 times the line table (counter `index_per_table`).
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cubin/image.h"
#include "tests/unit/cubin/cubin_writer.h"
#include "tests/unit/cubin/machine_code.h"

namespace gpuprof::cubin {
namespace {

// The proportions of CUB's radix sort by nvcc 13.0: of 5,296 instructions 3,086 begin a row, 9.3
// bytes each, on 588 lines in 5 kernels, inlined up to 20 deep, half of them 4 or more.
constexpr uint64_t kImageBytes = 20'000'000;
constexpr uint64_t kInstructions = 1060;
constexpr uint64_t kInstructionBytes = 16;
constexpr double kRowsPerInstruction = 0.58;
constexpr uint64_t kLocations = 120;
constexpr uint64_t kMaxDepth = 12;
constexpr int kFiles = 24;

struct Line {
  uint64_t row = 0;  // number of its first row in the sequence; 0: none yet
  uint32_t line = 0;
  uint32_t file = 1;
  size_t caller = SIZE_MAX;
  uint64_t depth = 0;
  uint64_t function = 0;
};

using test::CubinWriter;
using test::LineProgram;

class SequenceWriter {
 public:
  SequenceWriter(LineProgram& program, const std::vector<uint64_t>& names, std::mt19937_64& random)
      : program_(program), lines_(kLocations) {
    for (size_t i = 0; i < lines_.size(); ++i) {
      Line& line = lines_[i];
      line.line = 1 + random() % 900;
      line.file = 1 + random() % kFiles;
      if (i < 8) continue;
      line.caller = random() % i;
      if (lines_[line.caller].depth >= kMaxDepth) line.caller = random() % 8;
      line.depth = lines_[line.caller].depth + 1;
      line.function = names[random() % names.size()];
    }
  }

  void row(uint64_t address, size_t number) {
    Line& line = lines_[number];
    if (line.caller != SIZE_MAX && lines_[line.caller].row == 0) row(address, line.caller);
    const uint64_t context = line.caller == SIZE_MAX ? 0 : lines_[line.caller].row;
    if (context != context_ || line.function != function_) {
      program_.inlined_call(context, line.function);
    }
    if (line.file != file_) program_.set_file(line.file);
    context_ = context;
    function_ = line.function;
    file_ = line.file;
    program_.row(address, line.line);
    if (line.row == 0) line.row = program_.rows();
  }

 private:
  LineProgram& program_;
  std::vector<Line> lines_;
  uint64_t context_ = 0;
  uint64_t function_ = 0;
  uint32_t file_ = 1;
};

std::string kernel_name(uint64_t number) {
  return "_ZN3cub17DeviceRadixSortOnesweepKernelINS_"
         "21DeviceRadixSortPolicyIjfjE9Policy900ELb0EjfjiiEEvPT" +
         std::to_string(number);
}

// Two functions of ptxas' own at the end of each kernel, called by one instruction of 32.
constexpr uint64_t kCalleeInstructions = 64;
constexpr uint64_t kCallEvery = 32;

void add_callees(CubinWriter& writer, size_t text) {
  constexpr uint64_t kKernelEnd = kInstructions - 2 * kCalleeInstructions;
  constexpr uint64_t kMiddle = kKernelEnd + kCalleeInstructions;
  std::string code;
  for (uint64_t i = 0; i < kInstructions; ++i) {
    const bool ends = i + 1 == kKernelEnd || i + 1 == kMiddle || i + 1 == kInstructions;
    const bool calls = i < kKernelEnd && i % kCallEvery == 0;
    const uint64_t callee = i / kCallEvery % 2 == 0 ? kKernelEnd : kMiddle;
    code += ends    ? test::ret()
            : calls ? test::call(i * kInstructionBytes, callee * kInstructionBytes)
                    : test::move();
  }
  writer.code(text, 0, code);
  for (const uint64_t callee : {kKernelEnd, kMiddle}) {
    writer.symbol("$__internal_" + std::to_string(text * kInstructions + callee) + "_$callee", text,
                  callee * kInstructionBytes, kCalleeInstructions * kInstructionBytes, false, true);
  }
}

std::vector<std::byte> make_image(bool has_callees = false) {
  std::mt19937_64 random(7);
  std::bernoulli_distribution begins_row(kRowsPerInstruction);
  CubinWriter writer;
  LineProgram program;
  std::vector<uint64_t> names;
  for (int i = 0; i < 4000; ++i) {
    names.push_back(writer.string("_ZN3cub11BlockReduceIfLi256ELNS_20BlockReduceAlgorithmE" +
                                  std::to_string(i)));
  }
  uint64_t bytes = 0;
  for (uint64_t number = 0; bytes < kImageBytes; ++number) {
    const size_t symbol = writer.kernel(kernel_name(number), kInstructions * kInstructionBytes);
    if (has_callees) add_callees(writer, number);
    const size_t before = program.bytes().size();
    program.set_address(symbol);
    SequenceWriter sequence(program, names, random);
    // A scheduler interleaves a few neighbouring lines.
    for (uint64_t i = 0; i < kInstructions; ++i) {
      if (i != 0 && !begins_row(random)) continue;
      const uint64_t around = i * kLocations / kInstructions;
      sequence.row(i * kInstructionBytes, std::min(kLocations - 1, around + random() % 5));
    }
    program.end_sequence(kInstructions * kInstructionBytes);
    bytes += kInstructions * kInstructionBytes + program.bytes().size() - before + 500;
  }
  std::vector<std::string> files;
  for (int i = 0; i < kFiles; ++i) files.push_back("block_" + std::to_string(i) + ".cuh");
  writer.unit(program, files);
  return writer.finish();
}

const std::vector<std::byte>& image_bytes() {
  static const std::vector<std::byte> bytes = make_image();
  return bytes;
}

std::shared_ptr<const Image> parse(std::vector<std::byte> bytes) {
  auto image = Image::parse(std::move(bytes));
  if (image) return *image;
  std::fprintf(stderr, "%s\n", image.error().message.c_str());
  std::abort();
}

uint64_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

void index_20_mb(benchmark::State& state) {
  const auto& bytes = image_bytes();
  for (auto _ : state) {
    state.PauseTiming();
    auto copy = bytes;
    const uint64_t before = heap_bytes();
    state.ResumeTiming();
    auto image = parse(std::move(copy));
    state.PauseTiming();
    const auto table = static_cast<double>(image->line_table_bytes());
    state.counters["image_mb"] = static_cast<double>(bytes.size()) / 1e6;
    state.counters["table_mb"] = table / 1e6;
    state.counters["index_per_table"] = static_cast<double>(image->line_index_bytes()) / table;
    // With the functions and their names, as malloc counts it.
    state.counters["heap_per_table"] = static_cast<double>(heap_bytes() - before) / table;
    image.reset();
    state.ResumeTiming();
  }
}
BENCHMARK(index_20_mb)->Unit(benchmark::kMillisecond);

void look_up(benchmark::State& state, bool in_callees) {
  const auto image = parse(in_callees ? make_image(true) : image_bytes());
  std::mt19937_64 random(11);
  struct Pc {
    std::string_view function;
    uint64_t offset;
  };
  std::vector<Pc> pcs;
  for (const Function& function : image->functions()) {
    if (function.is_kernel == in_callees) continue;
    for (uint64_t i = 0; i < (1 << 20) / image->functions().size(); ++i) {
      pcs.push_back({function.mangled,
                     random() % (function.size_bytes / kInstructionBytes) * kInstructionBytes});
    }
  }
  std::shuffle(pcs.begin(), pcs.end(), random);
  uint64_t frames = 0;
  size_t at = 0;
  for (auto _ : state) {
    const Pc& pc = pcs[at];
    at = at + 1 < pcs.size() ? at + 1 : 0;
    const Resolution resolution = image->resolve(pc.function, pc.offset);
    if (resolution.status == SourceStatus::kUnmapped) std::abort();
    frames += resolution.frames.size();
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["frames"] = static_cast<double>(frames) / static_cast<double>(state.iterations());
}
void lookup(benchmark::State& state) { look_up(state, false); }
BENCHMARK(lookup);
void lookup_in_callees(benchmark::State& state) { look_up(state, true); }
BENCHMARK(lookup_in_callees);

// The first question about a function inside each kernel, which reads all code.
void callers_of_20_mb(benchmark::State& state) {
  const auto bytes = make_image(true);
  uint64_t questions = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto image = parse(bytes);
    state.ResumeTiming();
    for (const Function& function : image->functions()) {
      if (function.is_kernel) continue;
      if (image->resolve(function.mangled, 0).frames.empty()) std::abort();
      ++questions;
    }
    state.PauseTiming();
    image.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(static_cast<int64_t>(questions));
}
BENCHMARK(callers_of_20_mb)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpuprof::cubin

BENCHMARK_MAIN();
