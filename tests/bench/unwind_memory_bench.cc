// SPDX-License-Identifier: Apache-2.0
// Memory of unwinding and naming 10,000 different stacks of 44 frames through 2 GB of libraries
// with 1.6 million functions. Target: 100 MiB.
//   build/dev/tests/bench/unwind_memory_bench [PLACES]   return addresses that occur, 20,000 by
//   default
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "daemon/symbolize/symbolizer.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/symbolize/big_library.h"

namespace gpuprof {
namespace {

constexpr unsigned kLibraries = 8;
constexpr size_t kFunctions = 200'000;
constexpr size_t kStacks = 10'000;
constexpr size_t kFrames = 44;

long status_kib(const char* key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) return std::atol(line.c_str() + std::strlen(key) + 1);
  }
  return 0;
}

int run(size_t places) {
  std::vector<std::unique_ptr<symbolize::test::BigLibrary>> libraries;
  uint64_t bytes = 0;
  for (unsigned i = 0; i < kLibraries; ++i) {
    libraries.push_back(std::make_unique<symbolize::test::BigLibrary>(kFunctions, i));
    bytes += libraries.back()->file_bytes();
  }
  std::mt19937_64 random(1);
  std::vector<uint64_t> addresses(places);
  for (uint64_t& at : addresses)
    at = libraries[random() % kLibraries]->return_address(random() % kFunctions, random() % 1024);
  const long anon = status_kib("RssAnon"), file = status_kib("RssFile");
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak so far
  const auto start = std::chrono::steady_clock::now();
  unwind::FileCache files;
  symbolize::SymbolCache symbols;
  auto space = *unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
  unwind::Unwinder unwinder(space);
  symbolize::Symbolizer symbolizer(space, symbols);
  unwind::RawStack stack;
  size_t named = 0;
  for (size_t i = 0; i < kStacks; ++i) {
    const auto sample = symbolize::test::stack_through(
        kFrames, [&] { return addresses[random() % addresses.size()]; });
    unwinder.unwind(sample.view(), stack);
    for (const uint64_t pc : stack.pcs) named += symbolizer.resolve(pc).frames.size();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%zu stacks, %zu of %zu frames named, %zu places, %.2f GB of libraries, %.1f s\n",
              kStacks, named, kStacks * kFrames, places, static_cast<double>(bytes) / 1e9,
              took.count());
  std::printf("memory: %.1f MiB of its own, %.1f MiB of the files; peak of both %.1f MiB\n",
              static_cast<double>(status_kib("RssAnon") - anon) / 1024,
              static_cast<double>(status_kib("RssFile") - file) / 1024,
              static_cast<double>(status_kib("VmHWM") - anon - file) / 1024);
  return named == kStacks * kFrames ? 0 : 1;
}

}  // namespace
}  // namespace gpuprof

int main(int argc, char** argv) {
  return gpuprof::run(argc > 1 ? static_cast<size_t>(std::atol(argv[1])) : 20'000);
}
