// SPDX-License-Identifier: Apache-2.0
// What unwinding and naming stacks through large libraries takes of memory. Target: 100 MiB for
// 2 GB of libraries (tests/bench/unwind_memory_bench); this is a sixteenth of it.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <random>

#include "daemon/symbolize/symbolizer.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/symbolize/big_library.h"

namespace gpuprof::symbolize {
namespace {

constexpr size_t kFunctions = 100'000;
constexpr size_t kStacks = 2'000;
constexpr size_t kFrames = 44;
constexpr uint64_t kMiB = 1 << 20;

uint64_t heap_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(Memory, OfStacksThroughALargeLibrary) {
  const test::BigLibrary library(kFunctions, 0);
  EXPECT_GT(library.file_bytes(), 128 * kMiB);
  unwind::FileCache files;
  SymbolCache symbols;
  const uint64_t before = heap_in_use();
  auto space = *unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
  unwind::Unwinder unwinder(space);
  Symbolizer symbolizer(space, symbols);
  std::mt19937 random(1);
  unwind::RawStack stack;
  for (size_t i = 0; i < kStacks; ++i) {
    const auto sample = test::stack_through(
        kFrames, [&] { return library.return_address(random() % kFunctions, random() % 1024); });
    unwinder.unwind(sample.view(), stack);
    ASSERT_EQ(stack.pcs.size(), kFrames);
    ASSERT_EQ(stack.end, unwind::StackEnd::kWhole);
    for (const uint64_t pc : stack.pcs) ASSERT_EQ(symbolizer.resolve(pc).frames.size(), 1u);
  }
  const uint64_t pc = library.return_address(77'777, 5);
  const SymbolizedPc& named = symbolizer.resolve(pc);
  EXPECT_EQ(named.frames.at(0).system_name, library.mangled_name(77'777));
  EXPECT_EQ(named.frames.at(0).function.find("at::native::(anonymous namespace)::softmax_"), 0u);
  // 88,000 places that are all different: rules, 1.6 MB of symbol table, at most 8,192 names: 8.2
  // MB.
  const uint64_t used = heap_in_use() - before;
  EXPECT_LT(used, 12 * kMiB) << used;
  EXPECT_GT(used, kMiB) << used;
}

}  // namespace
}  // namespace gpuprof::symbolize
