// SPDX-License-Identifier: Apache-2.0
//
// More images than fit into memory at once.
#include <gtest/gtest.h>

#include <map>

#include "daemon/cubin/store.h"
#include "daemon/join/flat_index.h"
#include "tests/unit/cubin/cubin_writer.h"
#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

constexpr uint32_t kImages = 20;
constexpr uint32_t kKernels = 50;  // in each
constexpr uint64_t kCodeBytes = 0x100;

std::string kernel_name(uint32_t image, uint32_t number) {
  return "k" + std::to_string(image) + "_" + std::to_string(number);
}
std::string callee_name(const std::string& kernel) { return "$" + kernel + "$callee"; }
uint64_t id_of(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

// Kernels, each with a function of its own that was not inlined.
std::vector<std::byte> image_bytes(uint32_t image) {
  cubin::test::CubinWriter writer;
  for (uint32_t i = 0; i < kKernels; ++i) {
    const std::string kernel = kernel_name(image, i);
    const size_t text = writer.text(kernel, 2 * kCodeBytes);
    writer.symbol(kernel, text, 0, 2 * kCodeBytes, true);
    writer.symbol(callee_name(kernel), text, kCodeBytes, kCodeBytes, false, true);
  }
  return writer.finish();
}

class StoredImages : public FakeDevice {
 public:
  explicit StoredImages(const cubin::StoreLimits& limits) : store_(limits) {
    for (uint32_t image = 0; image < kImages; ++image) {
      cubin::Store::Writer writer(store_);
      EXPECT_TRUE(writer.add(image_bytes(image)).has_value());
      hashes_[kCubin + image] = *writer.finish();
    }
  }
  const DeviceModule& device_module(ProcessId, uint64_t cubin_key) override {
    module_ = {};
    auto image = store_.image(hashes_.at(cubin_key));
    EXPECT_TRUE(image.has_value());
    module_.image = *image;
    module_.sha256 = hashes_.at(cubin_key);
    return module_;
  }
  [[nodiscard]] cubin::StoreStats stats() const { return store_.stats(); }

 private:
  cubin::Store store_;
  std::map<uint64_t, std::string> hashes_;
  DeviceModule module_;
};

class DeviceImages : public ::testing::Test {
 protected:
  // Room for a quarter of them.
  static cubin::StoreLimits limits() {
    cubin::StoreLimits out;
    out.max_parsed_bytes = image_bytes(0).size() * kImages / 4;
    return out;
  }
  // Kernel by kernel, each time of another image. `name_of` tells what the sample names.
  template <class NameOf>
  void sample_all(NameOf name_of) {
    for (uint32_t number = 0; number < kKernels; ++number) {
      for (uint32_t image = 0; image < kImages; ++image) {
        for (const ProcessId process : {kProcess, kOther}) {
          const std::string kernel = kernel_name(image, number);
          const std::string sampled = name_of(kernel);
          for (const std::string& name : {kernel, sampled})
            frames_[process].kernels[id_of(name)] = name;
          add(joiner_, exec(++id_, id_of(kernel), 1000), process);
          gpuprof_pc_sample_v1 record = pc_sample(id_of(sampled), 0x20, 1);
          record.cubin_key = kCubin + image;
          add(joiner_, record, process);
        }
      }
    }
  }
  uint64_t resolved() {
    const JoinResult result = joiner_.finish_window(&frames_, &device_);
    EXPECT_EQ(result.pc_rows.size(), 2 * kImages * kKernels);
    AssembleStats stats;
    const StackTable stacks;
    (void)assemble(result, stacks, frames_, &device_, {}, &stats);
    uint64_t out = 0;
    for (const SourceCounts& counts : stats.sources)
      out += counts.of(cubin::SourceStatus::kNoLineInfo);
    return out;
  }

  static constexpr ProcessId kOther{200, 1};
  FakeFrames frames_;
  StoredImages device_{limits()};
  Joiner joiner_;
  uint32_t id_ = 0;
};

TEST_F(DeviceImages, EachIsParsedOnceForAProfile) {
  sample_all([](const std::string& kernel) { return kernel; });
  EXPECT_EQ(resolved(), 2u * kImages * kKernels);
  EXPECT_EQ(device_.stats().parsed, kImages);
  EXPECT_LE(device_.stats().parsed_bytes, limits().max_parsed_bytes);
}

// Which kernel they belong to is asked before the rows are made.
TEST_F(DeviceImages, OnceMoreWhereFunctionsInKernelsAreSampled) {
  sample_all(callee_name);
  EXPECT_EQ(resolved(), 2u * kImages * kKernels);
  EXPECT_LE(device_.stats().parsed, 2u * kImages);
}

}  // namespace
}  // namespace gpuprof::join
