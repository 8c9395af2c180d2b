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

// rustc -C symbol-mangling-version=v0; expected as llvm-cxxfilt 14 has them, but for the letter
// of the constant, which it escapes.
TEST(Demangle, RustV0) {
  EXPECT_EQ(demangle("_RNvCs4fqI2P2rA04_7mycrate3foo"), "mycrate::foo");
  EXPECT_EQ(demangle("_RNCNvXCsjMaewn57Afh_1tINtB4_1ShKj2_EINtB4_2TrFG_RL0_hExE2go0B4_"),
            "<t::S<u8, 2> as t::Tr<for<'a> fn(&'a u8) -> i64>>::go::{closure#0}");
  EXPECT_EQ(
      demangle("_RINvNtCsjMaewn57Afh_1tu11ncode_cta3gu9gre_6ka8iFUKCPhOStEuEB4_"),
      "t::\u00fcn\u00efcode::gr\u00f6\u00dfe::<unsafe extern \"C\" fn(*const u8, *mut [u16])>");
  EXPECT_EQ(demangle("_RNvMs_CsjMaewn57Afh_1tINtB4_1CKb1_Kcfc_Kln5_E1cB4_"),
            "<t::C<true, '\u00fc', -5>>::c");
  EXPECT_EQ(
      demangle("_RINvNtCsgEmfK2I1SDS_4core3ptr13drop_in_placeINtNtCslNYArtu3iFV_5alloc5boxed3Box"
               "DG0_INtNtNtB4_3ops8function2FnTRL1_INtNtCsjrHSEGnQ3l9_3std5panic13PanicHookInfoL0_"
               "EEEp6OutputuNtNtB4_6marker4SyncNtB2N_4SendEL_EEB1T_"),
      "core::ptr::drop_in_place::<alloc::boxed::Box<dyn for<'a, 'b> core::ops::function::Fn<(&'a "
      "std::panic::PanicHookInfo<'b>,), Output = ()> + core::marker::Sync + core::marker::Send>>");
  EXPECT_EQ(demangle("_RNvC1a1b.llvm.1234"), "a::b");
  EXPECT_EQ(demangle("_RNvC1a1b.cold"), "a::b.cold");
}

TEST(Demangle, MalformedNamesStayAsTheyAre) {
  for (const char* name : {"_Z999999foo", "_R", "_RNvC1a", "_RNvC1a9b", "_RNvC1a1bX", "_RB_",
                           "_RNvB_1a", "_RINvC1a1bB2_", "_RNvC1a1b1c", "_RINvC1a1bKbz_E",
                           "_RINvC1a1bL0_E", "_RNvCu3a_01b", "_RINvC1a1bDE"}) {
    EXPECT_EQ(demangle(name), name);
  }
  EXPECT_EQ(demangle("_ZN3fooE"), "foo");
}

// Deep nesting, and tuples that hold the one before them twice.
TEST(Demangle, RustV0IsBounded) {
  const std::string deep = "_RINvC1a1b" + std::string(10'000, 'S') + "hE";
  EXPECT_EQ(demangle(deep), deep);
  std::string name = "_RINvC1a1bThhE";
  std::string previous = "7_";  // the place of the first tuple
  const std::string digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  for (int level = 0; level < 40; ++level) {
    const size_t place = name.size() - 2;
    name += "TB" + previous + "B" + previous + "E";
    previous = place < 62 ? std::string() : std::string(1, digits[(place - 1) / 62]);
    previous += digits[(place - 1) % 62];
    previous += "_";
    if (level == 1) {
      EXPECT_EQ(
          demangle(name + "E"),
          "a::b::<(u8, u8), ((u8, u8), (u8, u8)), (((u8, u8), (u8, u8)), ((u8, u8), (u8, u8)))>");
    }
  }
  EXPECT_EQ(demangle(name + "E"), name + "E");
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
