// SPDX-License-Identifier: Apache-2.0
// Symbols of live stacks through libraries whose source is known, in every form of debug
// information.
#include "daemon/symbolize/symbolizer.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/unwind/capture.h"

#define DECLARE_VARIANT(name)         \
  namespace name {                    \
  void entry(void (*)(void*), void*); \
  }
DECLARE_VARIANT(dwarf4)
DECLARE_VARIANT(dwarf5)
DECLARE_VARIANT(compressed)
DECLARE_VARIANT(symtab_only)
DECLARE_VARIANT(stripped)

namespace gpuprof::symbolize {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using unwind::AddressSpace;
using unwind::RawStack;
using unwind::test::Sample;

void capture(void* sample) {
  unwind::test::gpuprof_test_capture(static_cast<Sample*>(sample), 1 << 20);
  asm volatile("" ::: "memory");  // no tail call: the frame is counted on
}

class SymbolizerTest : public testing::Test {
 protected:
  SymbolizerTest() { open(getpid()); }
  void open(pid_t pid) {
    auto space = AddressSpace::open({static_cast<uint32_t>(pid), 0}, files_);
    ASSERT_TRUE(space.has_value());
    space_ = *space;
    symbolizer_ = std::make_unique<Symbolizer>(space_, cache_);
  }
  // The frames of one pc of a sample's stack, by its position from the leaf.
  SymbolizedPc at(const Sample& sample, size_t index) {
    const RawStack stack = unwind::Unwinder(space_).unwind(sample.view());
    EXPECT_EQ(stack.end, unwind::StackEnd::kWhole);
    if (stack.pcs.size() <= index) return {};
    return symbolizer_->resolve(stack.pcs[index]);
  }
  // pcs[0] is the capture entry, pcs[1] capture() above, pcs[2] the innermost fixture frame.
  void expect_inline_chain(const Sample& sample, const std::string& variant) {
    const SymbolizedPc run = at(sample, 2);
    ASSERT_EQ(run.frames.size(), 3u);
    EXPECT_EQ(run.frames[0].function, variant + "::inlined_twice(void (*)(void*), void*)");
    EXPECT_EQ(run.frames[0].line, 10u);
    EXPECT_EQ(run.frames[0].start_line, 9u);
    EXPECT_EQ(run.frames[1].function, variant + "::inlined_once(void (*)(void*), void*)");
    EXPECT_EQ(run.frames[1].line, 16u);
    EXPECT_EQ(run.frames[2].function,
              variant + "::Outer<unsigned int>::run(void (*)(void*), void*)");
    EXPECT_EQ(run.frames[2].line, 24u);
    for (const SourceFrame& f : run.frames) {
      EXPECT_THAT(f.file, EndsWith("/tests/unit/symbolize/inline_lib.cc"));
      EXPECT_THAT(f.file, StartsWith("/")) << "whatever the build system compiled it as";
      EXPECT_THAT(f.file, Not(HasSubstr("/../")));
    }
    const SymbolizedPc entry = at(sample, 3);
    ASSERT_EQ(entry.frames.size(), 1u);
    EXPECT_EQ(entry.frames[0].function, variant + "::entry(void (*)(void*), void*)");
    EXPECT_EQ(entry.frames[0].system_name,
              "_ZN" + std::to_string(variant.size()) + variant + "5entryEPFvPvES0_");
    EXPECT_EQ(entry.frames[0].line, 30u);
    EXPECT_EQ(entry.frames[0].start_line, 29u);
  }

  unwind::FileCache files_;
  SymbolCache cache_;
  std::shared_ptr<AddressSpace> space_;
  std::unique_ptr<Symbolizer> symbolizer_;
};

TEST_F(SymbolizerTest, InlinedFramesWithFilesAndLinesFromDwarf4) {
  Sample sample;
  dwarf4::entry(capture, &sample);
  expect_inline_chain(sample, "dwarf4");
}

TEST_F(SymbolizerTest, InlinedFramesWithFilesAndLinesFromDwarf5) {
  Sample sample;
  dwarf5::entry(capture, &sample);
  expect_inline_chain(sample, "dwarf5");
}

TEST_F(SymbolizerTest, InlinedFramesWithFilesAndLinesFromCompressedSections) {
  Sample sample;
  compressed::entry(capture, &sample);
  expect_inline_chain(sample, "compressed");
}

TEST_F(SymbolizerTest, WithoutDwarfTheSymbolTableNamesTheFunctionOnly) {
  Sample sample;
  symtab_only::entry(capture, &sample);
  const SymbolizedPc run = at(sample, 2);
  ASSERT_EQ(run.frames.size(), 1u);
  EXPECT_EQ(run.frames[0].function,
            "symtab_only::Outer<unsigned int>::run(void (*)(void*), void*)");
  EXPECT_EQ(run.frames[0].file, "");
  EXPECT_EQ(run.frames[0].line, 0u);
}

// Only `entry` is exported: the hidden function below it has no symbol, and must not get its name.
TEST_F(SymbolizerTest, StrippedLibraryGivesDynamicSymbolsAndNoGuess) {
  Sample sample;
  stripped::entry(capture, &sample);
  const SymbolizedPc hidden = at(sample, 2);
  EXPECT_TRUE(hidden.frames.empty());
  const Module& module = symbolizer_->modules().at(hidden.module);
  EXPECT_THAT(module.path, EndsWith("libsymbolize_stripped.so"));
  EXPECT_EQ(module.build_id.size(), 40u);
  EXPECT_LT(module.start, module.limit);
  EXPECT_TRUE(hidden.address >= module.start && hidden.address < module.limit);
  const SymbolizedPc entry = at(sample, 3);
  ASSERT_EQ(entry.frames.size(), 1u);
  EXPECT_EQ(entry.frames[0].function, "stripped::entry(void (*)(void*), void*)");
  EXPECT_EQ(entry.module, hidden.module);
}

TEST_F(SymbolizerTest, VdsoHasNames) {
  void* vdso = dlopen("linux-vdso.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(vdso, nullptr);
  void* gettime = dlsym(vdso, "__vdso_clock_gettime");
  ASSERT_NE(gettime, nullptr);
  const SymbolizedPc& pc = symbolizer_->resolve(reinterpret_cast<uint64_t>(gettime));
  ASSERT_EQ(pc.frames.size(), 1u);
  EXPECT_THAT(pc.frames[0].function, HasSubstr("clock_gettime"));
  EXPECT_EQ(symbolizer_->modules().at(pc.module).path, "[vdso]");
}

TEST_F(SymbolizerTest, UnmappedPcHasNoFrames) {
  const SymbolizedPc& pc = symbolizer_->resolve(0x1234);
  EXPECT_TRUE(pc.frames.empty());
  EXPECT_EQ(symbolizer_->modules().at(pc.module).path, "[unknown]");
}

// The child has the parent's mappings, so the parent's own sample is as good as one of the child.
TEST_F(SymbolizerTest, WorksAfterTheProcessExited) {
  Sample sample;
  dwarf5::entry(capture, &sample);
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  open(child);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  expect_inline_chain(sample, "dwarf5");
}

TEST_F(SymbolizerTest, LibraryLoadedLaterAndDeletedIsFoundByRefresh) {
  const std::filesystem::path copy = std::filesystem::temp_directory_path() /
                                     ("symbolize_copy." + std::to_string(getpid()) + ".so");
  std::filesystem::copy_file(STRIPPED_LIBRARY, copy);
  void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove(copy);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* entry = reinterpret_cast<void (*)(void (*)(void*), void*)>(
      dlsym(library, "_ZN8stripped5entryEPFvPvES0_"));
  ASSERT_NE(entry, nullptr);
  Sample sample;
  entry(capture, &sample);
  const SymbolizedPc pc = at(sample, 3);
  ASSERT_EQ(pc.frames.size(), 1u);
  EXPECT_EQ(pc.frames[0].function, "stripped::entry(void (*)(void*), void*)");
  EXPECT_EQ(symbolizer_->modules().at(pc.module).path, copy.string());
  // Samples taken before it was unloaded stay good.
  dlclose(library);
  space_->refresh();
  const SymbolizedPc again = at(sample, 3);
  ASSERT_EQ(again.frames.size(), 1u);
  EXPECT_EQ(again.module, pc.module);
}

// CPython's perf trampoline: 3.12 moves the stack pointer only, 3.13 keeps a frame pointer.
class TrampolineTest : public SymbolizerTest, public testing::WithParamInterface<bool> {};

TEST_P(TrampolineTest, UnwindsThroughAndTakesItsNameFromThePerfMap) {
  const std::vector<uint8_t> plain = {0x48, 0x83, 0xec, 0x08,  // sub $8,%rsp
                                      0x48, 0x89, 0xf8, 0x48, 0x89,
                                      0xf7,                           // mov %rdi,%rax; %rsi,%rdi
                                      0xff, 0xd0,                     // call *%rax
                                      0x48, 0x83, 0xc4, 0x08, 0xc3};  // add $8,%rsp; ret
  const std::vector<uint8_t> framed = {0x55, 0x48, 0x89, 0xe5,        // push %rbp; mov %rsp,%rbp
                                       0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7,  //
                                       0xff, 0xd0, 0x5d, 0xc3};             // call; pop %rbp; ret
  const std::vector<uint8_t>& code = GetParam() ? framed : plain;
  void* memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::copy(code.begin(), code.end(), static_cast<uint8_t*>(memory));
  const std::string map = "/tmp/perf-" + std::to_string(getpid()) + ".map";
  Sample sample;
  reinterpret_cast<void (*)(void (*)(void*), void*)>(memory)(capture, &sample);
  // Without its line the frame has no name; the line may come later.
  const SymbolizedPc unnamed = at(sample, 2);
  EXPECT_TRUE(unnamed.frames.empty());
  EXPECT_EQ(symbolizer_->modules().at(unnamed.module).path, "[jit]");
  {
    std::ofstream out(map);
    out << "hostile line\n"
        << "zz 10 x\n"
        << std::hex << reinterpret_cast<uint64_t>(memory)
        << " 40 py::Model.forward:/srv/my:model.py\n"
        << "7f00 ";
  }
  usleep(150'000);  // the map is looked at every 100 ms
  const SymbolizedPc named = at(sample, 2);
  ASSERT_EQ(named.frames.size(), 1u);
  EXPECT_EQ(named.frames[0].function, "Model.forward");
  EXPECT_EQ(named.frames[0].file, "/srv/my:model.py");
  EXPECT_EQ(named.frames[0].system_name, "py::Model.forward:/srv/my:model.py");
  std::filesystem::remove(map);
  munmap(memory, 4096);
}
INSTANTIATE_TEST_SUITE_P(CPython, TrampolineTest, testing::Values(false, true));

}  // namespace
}  // namespace gpuprof::symbolize
