// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/unit/proto/abi_table.h"

extern "C" {
extern const abi_row kAbiTableC11[];
extern const uint32_t kAbiTableC11Rows;
}

namespace {

const abi_row kAbiTableCxx20[] = {
#include "abi_fields.inc"
};

#undef S
#undef M
#define S(type) #type,
#define M(type, member) #type "." #member,
const char* const kNames[] = {
#include "abi_fields.inc"
};

void expect_equal(const abi_row* other, size_t rows) {
  ASSERT_EQ(rows, std::size(kAbiTableCxx20));
  for (size_t i = 0; i < rows; ++i) {
    EXPECT_EQ(other[i].size, kAbiTableCxx20[i].size) << kNames[i];
    EXPECT_EQ(other[i].offset_plus_one, kAbiTableCxx20[i].offset_plus_one) << kNames[i];
  }
}

TEST(ProtoAbi, C11AndCxx20Agree) { expect_equal(kAbiTableC11, kAbiTableC11Rows); }

#ifdef GPUPROF_ABI_BPF_FILE
TEST(ProtoAbi, BpfAndCxx20Agree) {
  std::ifstream file(GPUPROF_ABI_BPF_FILE, std::ios::binary);
  ASSERT_TRUE(file) << GPUPROF_ABI_BPF_FILE;
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_EQ(bytes.size() % sizeof(abi_row), 0u);
  std::vector<abi_row> rows(bytes.size() / sizeof(abi_row));
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  expect_equal(rows.data(), rows.size());
}
#endif

// No hidden padding: the members of each struct fill it from end to end.
TEST(ProtoAbi, MembersFillTheirStructs) {
  uint32_t expected_offset = 0;
  uint32_t struct_size = 0;
  std::string struct_name;
  for (size_t i = 0; i <= std::size(kAbiTableCxx20); ++i) {
    const bool end = i == std::size(kAbiTableCxx20);
    if (end || kAbiTableCxx20[i].offset_plus_one == 0) {
      EXPECT_EQ(expected_offset, struct_size) << struct_name << " has a gap at its end";
      if (end) break;
      struct_size = kAbiTableCxx20[i].size;
      struct_name = kNames[i];
      expected_offset = 0;
      continue;
    }
    EXPECT_EQ(kAbiTableCxx20[i].offset_plus_one, expected_offset + 1)
        << kNames[i] << " has a gap before it";
    expected_offset = kAbiTableCxx20[i].offset_plus_one - 1 + kAbiTableCxx20[i].size;
  }
}

TEST(ProtoAbi, BatchesFitTheirBounds) {
  // The consumer refuses more than either bound, so one record of each kind must fit.
  for (size_t i = 0; i < std::size(kAbiTableCxx20); ++i) {
    const std::string name = kNames[i];
    if (name.ends_with("_v1")) {
      EXPECT_LE(kAbiTableCxx20[i].size, GPUPROF_MAX_BATCH_BYTES) << name;
    }
  }
  EXPECT_LE(256u * sizeof(gpuprof_exec_v1), GPUPROF_MAX_BATCH_BYTES)
      << "a full exec batch is 256 records";
  EXPECT_EQ(GPUPROF_PROBE_COUNT, 11);
  EXPECT_LE(size_t{GPUPROF_PROBE_COUNT}, std::size(gpuprof_status_page{}.probe_totals));
  EXPECT_LE(size_t{GPUPROF_DROP_CLASS_COUNT}, std::size(gpuprof_status_page{}.drop_totals));
}

}  // namespace
