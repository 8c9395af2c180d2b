// SPDX-License-Identifier: Apache-2.0
//
// Recordings of real processes' stacks: reading and writing them, and unwinding from them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/stack.h"
#include "tests/unit/unwind/capture.h"
#include "tests/unit/unwind/dwfl_reference.h"
#include "tests/unit/unwind/recorded/recording.pb.h"

namespace gpuprof::unwind::test {

// Both end the program with a line where the file is not what it should be.
Recording read_recording(const std::string& path);
void write_recording(const Recording& recording, const std::string& path);

Sample sample_of(const Recording::Stack& stack);
// The same with the kBelow bytes below its stack pointer, for libdwfl.
inline constexpr uint64_t kBelow = 256;
Sample sample_with_below(const Recording::Stack& stack);
// The summary's word for how a stack ended.
const char* end_name(StackEnd end);

// How our frames and libdwfl's compare.
enum class Agreement : uint8_t {
  kSame,
  kBeyond,   // libdwfl stopped where a frame pointer led ours on
  kGarbage,  // the same, then libdwfl has a caller that lies in no mapping
  kDifferent,
};
inline constexpr int kAgreementCount = 4;
Agreement compare(const RawStack& ours, std::span<const uint64_t> libdwfl,
                  const std::function<bool(uint64_t)>& is_mapped);

// What both unwinders made of a stack.
void add_result(Recording::Stack& stack, const RawStack& ours,
                const std::vector<uint64_t>& libdwfl);
// Words that led an unwinder, or may, stay; all others (the program's data) become 1.
void remove_data(Recording::Stack& stack, const std::function<bool(uint64_t)>& is_mapped);

// A process that is over, as a recording tells it, for both unwinders.
class RecordedProcess {
 public:
  explicit RecordedProcess(const Recording& recording);
  RawStack ours(const Sample& sample);
  std::vector<uint64_t> libdwfl(const Sample& sample) { return reference_->unwind(sample); }
  [[nodiscard]] bool is_mapped(uint64_t pc) { return space_->find(pc) != nullptr; }

 private:
  FileCache files_;
  Machine machine_ = Machine::kX86_64;
  std::shared_ptr<AddressSpace> space_;
  std::unique_ptr<DwflReference> reference_;
};

}  // namespace gpuprof::unwind::test
