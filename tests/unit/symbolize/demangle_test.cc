// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/demangle.h"

#include <gtest/gtest.h>

namespace gpuprof::symbolize {
namespace {

TEST(Demangle, CxxAndC) {
  EXPECT_EQ(demangle("_ZN2at6native4reluERKNS_6TensorE"), "at::native::relu(at::Tensor const&)");
  EXPECT_EQ(demangle("cudaLaunchKernel"), "cudaLaunchKernel");
  EXPECT_EQ(demangle("i"), "i");  // a type's code, and a perfectly good C name
  EXPECT_EQ(demangle(""), "");
}

TEST(Demangle, RustLegacyLosesItsHashAndEscapes) {
  EXPECT_EQ(demangle("_ZN4core3ptr13drop_in_place17h0123456789abcdefE"),
            "core::ptr::drop_in_place");
  EXPECT_EQ(
      demangle("_ZN50_$LT$T$u20$as$u20$core..convert..Into$LT$U$GT$$GT$4into17h0123456789abcdefE"),
      "<T as core::convert::Into<U>>::into");
}

TEST(Demangle, RustV0AndMalformedStayAsTheyAre) {
  EXPECT_EQ(demangle("_RNvCs4fqI2P2rA04_7mycrate3foo"), "_RNvCs4fqI2P2rA04_7mycrate3foo");
  EXPECT_EQ(demangle("_ZN3fooE"), "foo");
  EXPECT_EQ(demangle("_Z999999foo"), "_Z999999foo");
}

TEST(Demangle, LongNamesAreBounded) {
  std::string name = "_ZN";
  for (int i = 0; i < 300; ++i) name += "10abcdefghij";
  name += "E";
  EXPECT_GT(demangle(name).size(), 3000u);
  EXPECT_EQ(demangle("_Z" + std::string(kMaxMangledBytes, 'a')).size(), kMaxMangledBytes + 2);
}

// Each type holds the one before it twice: 2^levels pieces of output for 8 bytes of name a level.
std::string doubling_name(size_t levels) {
  const std::string digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string name = "_Z1f1AIiiE";  // S_ is A, S0_ is A<int, int>
  std::string previous = "S0_";
  for (size_t i = 0; i < levels; ++i) {
    name += "S_I" + previous + previous + "E";
    previous = std::string("S") + digits[i + 1] + "_";
  }
  return name;
}

TEST(Demangle, ExponentialNameStopsAtTheBound) {
  EXPECT_GT(demangle(doubling_name(8)).size(), 2000u);  // it is well-formed
  EXPECT_EQ(demangle(doubling_name(30)), doubling_name(30));
}

}  // namespace
}  // namespace gpuprof::symbolize
