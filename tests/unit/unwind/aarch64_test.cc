// SPDX-License-Identifier: Apache-2.0
// Unwinding on aarch64 where the recordings have no example: a signal handler's frame, and the leaf
// whose signed return address is still in the link register. Ours and libdwfl's.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/unwind/dwfl_reference.h"
#include "tests/unit/unwind/elf_builder.h"

namespace gpuprof::unwind {
namespace {

using test::Bytes;

constexpr uint64_t kBias = 0xaaaa'0000'0000;
constexpr uint64_t kStack = 0xffff'8000'0000;
constexpr uint64_t kHandler = 0x4000, kTrampoline = 0x5000, kWork = 0x6000, kStart = 0x7000;
constexpr uint64_t kSignature = 0x0034'0000'0000'0000;

// A CIE with augmentation "zR" or "zRS", data alignment -8, return address in x30, absolute
// pointers; CFA = sp. Then FDEs of 256 bytes each.
class Frames {
 public:
  size_t cie(bool is_signal) {
    Bytes body;
    test::put(body, 0, 4);
    body.push_back(1);
    for (const char* c = is_signal ? "zRS" : "zR"; *c != 0; ++c)
      body.push_back(static_cast<uint8_t>(*c));
    body.insert(body.end(), {0, 1, 0x78, 30, 1, 0 /* absolute */, 0x0c, 31, 0});
    return add(body);
  }
  void fde(size_t cie, uint64_t start, const Bytes& program) {
    Bytes body;
    test::put(body, bytes_.size() + 4 - cie, 4);
    test::put(body, start, 8);
    test::put(body, 256, 8);
    body.push_back(0);
    body.insert(body.end(), program.begin(), program.end());
    add(body);
  }
  [[nodiscard]] Bytes finish() {
    test::put(bytes_, 0, 4);
    return bytes_;
  }

 private:
  size_t add(Bytes body) {
    while (body.size() % 8 != 4) body.push_back(0);  // DW_CFA_nop
    const size_t at = bytes_.size();
    test::put(bytes_, body.size(), 4);
    bytes_.insert(bytes_.end(), body.begin(), body.end());
    return at;
  }
  Bytes bytes_;
};

Bytes program() {
  Frames frames;
  const size_t plain = frames.cie(false);
  const size_t signal = frames.cie(true);
  // paciasp; nothing saved yet: DW_CFA_AARCH64_negate_ra_state behind the first instruction.
  frames.fde(plain, kHandler, {0x44, 0x2d});
  // As the kernel's __kernel_rt_sigreturn: CFA = x29, x29 at CFA, x30 at CFA + 8, and an
  // instruction before it, since its own first one is what the handler returns to
  // (vdso/sigreturn.S).
  frames.fde(signal, kTrampoline - 4, {0x0c, 29, 0, 0x80 | 29, 0, 0x11, 30, 0x7f});
  // stp x29, x30, [sp, #-32]!: CFA = sp + 32, x29 at CFA - 32, x30 at CFA - 24; signed.
  frames.fde(plain, kWork, {0x44, 0x2d, 0x44, 0x0e, 32, 0x80 | 29, 4, 0x80 | 30, 3});
  frames.fde(plain, kStart, {0x07, 30});  // the return address is undefined
  return test::elf_file(EM_AARCH64, frames.finish());
}

class Aarch64Test : public testing::Test {
 protected:
  Aarch64Test() {
    const Bytes image = program();
    Mapping mapping;
    mapping.start = kBias;
    mapping.end = kBias + 0x10000;
    mapping.kind = MappingKind::kFile;
    mapping.file = *files_.from_memory(image);
    mapping.bias = kBias;
    space_ = AddressSpace::of_mappings({mapping}, files_);
    sample_.bytes.resize(512);
    sample_.stack_address = kStack;
    sample_.stack_top = kStack + sample_.bytes.size();
    sample_.regs[31] = kStack;
    reference_ = std::make_unique<test::DwflReference>(
        std::vector<test::RecordedModule>{{"program", {image.begin(), image.end()}, kBias}},
        Machine::kAarch64);
  }
  void put(uint64_t offset, uint64_t word) { std::memcpy(&sample_.bytes[offset], &word, 8); }
  RawStack unwind() { return Unwinder(space_, Machine::kAarch64).unwind(sample_.view()); }

  FileCache files_;
  std::shared_ptr<AddressSpace> space_;
  std::unique_ptr<test::DwflReference> reference_;
  test::Sample sample_;
};

TEST_F(Aarch64Test, TheLeafReturnsByItsSignedLinkRegister) {
  sample_.regs[32] = kBias + kHandler + 8;
  sample_.regs[30] = (kBias + kStart + 0x20) | kSignature;
  const RawStack stack = unwind();
  EXPECT_EQ(stack.pcs, (std::vector<uint64_t>{kBias + kHandler + 8, kBias + kStart + 0x1f}));
  EXPECT_EQ(stack.end, StackEnd::kWhole);
  EXPECT_EQ(stack.by_frame_pointer, 0u);
  EXPECT_EQ(reference_->unwind(sample_), stack.pcs);
}

// The interrupted instruction is exact, also a function's first, and what it interrupted may itself
// have its return address in the frame only.
TEST_F(Aarch64Test, ASignalFrameIsExactAboveTheHandler) {
  for (const uint64_t interrupted : {kWork + 0x10, kWork + 8}) {
    sample_.regs[32] = kBias + kHandler + 8;
    sample_.regs[30] = kBias + kTrampoline;
    sample_.regs[29] = kStack + 64;  // the frame record that the kernel made
    put(64, kStack + 256);           // the interrupted x29
    put(72, kBias + interrupted);    // the interrupted pc
    const RawStack stack = unwind();
    ASSERT_GE(stack.pcs.size(), 3u);
    EXPECT_EQ(stack.pcs[0], kBias + kHandler + 8);
    EXPECT_EQ(stack.pcs[1], kBias + kTrampoline);
    EXPECT_EQ(stack.pcs[2], kBias + interrupted);
    const auto theirs = reference_->unwind(sample_);
    ASSERT_GE(theirs.size(), 3u);
    EXPECT_EQ(std::vector<uint64_t>(theirs.begin(), theirs.begin() + 3),
              std::vector<uint64_t>(stack.pcs.begin(), stack.pcs.begin() + 3));
  }
}

TEST_F(Aarch64Test, SavedAddressesAreStrippedOfTheirSignatures) {
  sample_.regs[32] = kBias + kWork + 0x10;
  sample_.regs[29] = 1;  // no frame pointer is looked at
  put(0, 0);
  put(8, (kBias + kWork + 0x40) | kSignature);
  put(32, 0);
  put(40, (kBias + kStart + 4) | kSignature);
  const RawStack stack = unwind();
  EXPECT_EQ(stack.pcs, (std::vector<uint64_t>{kBias + kWork + 0x10, kBias + kWork + 0x3f,
                                              kBias + kStart + 3}));
  EXPECT_EQ(stack.end, StackEnd::kWhole);
  EXPECT_EQ(reference_->unwind(sample_), stack.pcs);
}

}  // namespace
}  // namespace gpuprof::unwind
