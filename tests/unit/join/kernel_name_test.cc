// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/kernel_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "proto/usdt_abi.h"

namespace gpuprof::join {
namespace {

TEST(Demangle, ItaniumNamesAndOthers) {
  EXPECT_EQ(demangle("_Z9saxpyif"), "_Z9saxpyif");  // too short for its length
  EXPECT_EQ(demangle("_Z5saxpyifPKfPf"), "saxpy(int, float, float const*, float*)");
  EXPECT_EQ(demangle("saxpy"), "saxpy");
  EXPECT_EQ(demangle(""), "");
  EXPECT_EQ(demangle("_Z"), "_Z");
}

TEST(Demangle, SubstitutionBombEndsAtOnce) {
  // Each level holds the one before twice: 2^60 names when written out.
  std::string bomb = "_Z1f1A";
  const auto seq = [](int id) {  // S_ is the first, S0_ the second, in base 36
    if (id == 0) return std::string("S_");
    std::string digits;
    for (int v = id - 1;; v /= 36) {
      digits.insert(digits.begin(), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[v % 36]);
      if (v < 36) break;
    }
    return "S" + digits + "_";
  };
  // Substitutions: 0 is A; level n adds the template name P (once, then substituted) and P<x, x>.
  int latest = 0;
  int next = 1;
  int pair_template = -1;
  for (int level = 0; level < 60; ++level) {
    if (pair_template < 0) {
      bomb += "1PI" + seq(latest) + seq(latest) + "E";
      pair_template = next++;
    } else {
      bomb += seq(pair_template) + "I" + seq(latest) + seq(latest) + "E";
    }
    latest = next++;
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(demangle(bomb), bomb);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  // A small one of the same make is well-formed: the size is what stops the other.
  EXPECT_EQ(demangle("_Z1f1A1PIS_S_ES0_IS1_S1_E"), "f(A, P<A, A>, P<P<A, A>, P<A, A> >)");
}

TEST(ShortKernelName, DropsReturnTypeAndParameters) {
  EXPECT_EQ(short_kernel_name("saxpy(int, float, float const*, float*)"), "saxpy");
  EXPECT_EQ(short_kernel_name("void at::native::k<4, float>(int, at::X<(int)3>)"),
            "at::native::k<4, float>");
  EXPECT_EQ(short_kernel_name("(anonymous namespace)::k(int)"), "(anonymous namespace)::k");
  EXPECT_EQ(short_kernel_name("void k<(anonymous namespace)::T>()"), "k<(anonymous namespace)::T>");
  EXPECT_EQ(short_kernel_name("ns::F::operator()(int) const"), "ns::F::operator()");
  EXPECT_EQ(short_kernel_name("k(void (*)(int)) [clone .x]"), "k");
  EXPECT_EQ(short_kernel_name("k<(int)3>"), "k<(int)3>");
  EXPECT_EQ(short_kernel_name("saxpy"), "saxpy");
  EXPECT_EQ(short_kernel_name(""), "");
  EXPECT_EQ(short_kernel_name("(x)"), "(x)");
}

TEST(ShortKernelName, LongTemplatesAreCutByDepth) {
  std::string deep = "T0";
  for (int i = 1; i < 40; ++i) deep = "ns::T" + std::to_string(i) + "<" + deep + ", int>";
  const std::string name = short_kernel_name("void ns::kernel<" + deep + ">(int)");
  EXPECT_LE(name.size(), kShortNameBytes);
  EXPECT_EQ(name.substr(0, 16), "ns::kernel<ns::T");
  EXPECT_NE(name.find("<...>"), std::string::npos);
  EXPECT_EQ(std::count(name.begin(), name.end(), '<'), std::count(name.begin(), name.end(), '>'));
  EXPECT_LE(short_kernel_name(std::string(3000, 'a')).size(), kShortNameBytes);
  EXPECT_LE(short_kernel_name("k<" + std::string(3000, 'a') + ">").size(), kShortNameBytes);
}

TEST(ShortKernelName, NamesTooLongToDemangleShowTheirIdentifiers) {
  std::string arguments;
  while (arguments.size() < 3000) arguments += "N16another_libraryx11SomeElementE";
  const auto shown = [&](const std::string& start) {
    const std::string mangled = start + arguments;
    EXPECT_EQ(demangle(mangled), mangled);
    return short_kernel_name(mangled);
  };
  EXPECT_EQ(shown("_Z6kernelI"), "kernel<...>");
  EXPECT_EQ(shown("_ZN2at6native6kernelI"), "at::native::kernel<...>");
  EXPECT_EQ(shown("_ZN2at47_GLOBAL__N__0123456789abcdef_7_file_cu_9876543f6kernelEP"),
            "at::(anonymous namespace)::kernel");
  EXPECT_EQ(shown("_ZL6kernelP"), "kernel");
  EXPECT_LE(shown("_ZSt").size(), kShortNameBytes);
  EXPECT_LE(shown("_Z99999").size(), kShortNameBytes);
  EXPECT_EQ(short_kernel_name("_Z"), "_Z");
}

TEST(CopyFrameName, HasNoSizesAndIsTotal) {
  EXPECT_EQ(copy_frame_name(GPUPROF_COPY_HTOD), "[memcpy HtoD]");
  EXPECT_EQ(copy_frame_name(GPUPROF_COPY_PTOP), "[memcpy PtoP]");
  EXPECT_EQ(copy_frame_name(12345), "[memcpy]");
}

}  // namespace
}  // namespace gpuprof::join
