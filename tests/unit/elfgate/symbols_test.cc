// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"

namespace gpuprof::elfgate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kInText = ", Type: STT_FUNC, Section: .text, Value: 0x2002 }";

std::vector<uint8_t> with_symbol(const std::string& name, const std::string& rest) {
  return Fixture().add("symbols", "- { Name: " + name + rest).build();
}

TEST(Exports, ExactlyTheNamed) {
  EXPECT_THAT(violations_of(Fixture(), "exports start"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture(), "exports none"),
              ElementsAre("exports: defines the symbol start, which is not to be exported (the "
                          "dynamic symbol table)"));
  EXPECT_THAT(violations_of(Fixture(), "exports start stop"),
              ElementsAre("exports: does not define stop (the dynamic symbol table)"));
}

TEST(Exports, WeakAndUniqueOnesCount) {
  const auto weak = with_symbol("leak", std::string(", Binding: STB_WEAK") + kInText);
  EXPECT_THAT(violations_of(weak, "exports start"),
              ElementsAre(HasSubstr("defines the weak symbol leak")));
  EXPECT_THAT(violations_of(weak, "exports start leak"), IsEmpty());
  const auto unique = with_symbol("leak", std::string(", Binding: STB_GNU_UNIQUE") + kInText);
  EXPECT_THAT(violations_of(unique, "exports start"),
              ElementsAre(HasSubstr("defines the unique symbol leak")));
  EXPECT_THAT(violations_of(unique, "unique-exports forbid"),
              ElementsAre(HasSubstr("unique symbol leak")));
  EXPECT_THAT(violations_of(weak, "unique-exports forbid"), IsEmpty());
}

TEST(Exports, WhatNobodyCanBindToIsNone) {
  EXPECT_THAT(violations_of(
                  with_symbol("inner", std::string(", Binding: STB_GLOBAL, Other: [ STV_HIDDEN ]") +
                                           kInText),
                  "exports start"),
              IsEmpty());
  EXPECT_THAT(
      violations_of(
          with_symbol("inner",
                      std::string(", Binding: STB_GLOBAL, Other: [ STV_PROTECTED ]") + kInText),
          "exports start"),
      ElementsAre(HasSubstr("defines the symbol inner")));
}

TEST(Exports, AVersionIsPartOfTheName) {
  Fixture fixture;
  fixture.set("VERSION_OF_START", "5");
  EXPECT_THAT(violations_of(fixture, "exports start@@SMALL_1"), IsEmpty());
  EXPECT_THAT(violations_of(fixture, "exports start"),
              ElementsAre(HasSubstr("defines the symbol start@@SMALL_1"),
                          HasSubstr("does not define start")));
  fixture.set("VERSION_OF_START", "0x8005");  // hidden: an old version
  EXPECT_THAT(violations_of(fixture, "exports start@SMALL_1"), IsEmpty());
}

TEST(Exports, AVersionsOwnMarkIsNone) {
  Fixture fixture;
  fixture.add("symbols",
              "- { Name: SMALL_1, Type: STT_OBJECT, Binding: STB_GLOBAL, Index: SHN_ABS }");
  EXPECT_THAT(violations_of(fixture, "exports start"), IsEmpty());
  fixture.add("symbols",
              "- { Name: OTHER_1, Type: STT_OBJECT, Binding: STB_GLOBAL, Index: SHN_ABS }");
  EXPECT_THAT(violations_of(fixture, "exports start"), ElementsAre(HasSubstr("symbol OTHER_1")));
}

TEST(Exports, DeniedOnesAlone) {
  const auto image = with_symbol("malloc", std::string(", Binding: STB_GLOBAL") + kInText);
  EXPECT_THAT(
      violations_of(image, "deny-export malloc free"),
      ElementsAre(
          "exports: defines the symbol malloc, which is denied (the dynamic symbol table)"));
  EXPECT_THAT(violations_of(image, "deny-export calloc"), IsEmpty());
}

TEST(Exports, ManyAreCountedInOneLine) {
  Fixture fixture;
  for (int i = 0; i < 24; ++i) {
    fixture.add("symbols", "- { Name: x" + std::to_string(i) + ", Binding: STB_GLOBAL" + kInText);
  }
  const auto lines = violations_of(fixture, "exports start");
  ASSERT_EQ(lines.size(), 21U);
  EXPECT_THAT(lines.back(), HasSubstr("exports: 4 more of the same kind"));
}

TEST(Exports, AreFunctions) {
  const std::string policy = "exports start\nexport-kind function";
  EXPECT_THAT(violations_of(Fixture(), policy), IsEmpty());
  const auto told = [&policy](const char* key, const char* value, const char* rules = nullptr) {
    return violations_of(Fixture().set(key, value), rules != nullptr ? rules : policy);
  };
  EXPECT_THAT(told("BINDING_OF_START", "STB_WEAK"),
              ElementsAre("exports: defines start as a weak function, not a function (the dynamic "
                          "symbol table)"));
  EXPECT_THAT(told("TYPE_OF_START", "STT_OBJECT"), ElementsAre(HasSubstr("start as a variable,")));
  EXPECT_THAT(told("TYPE_OF_START", "STT_TLS"),
              ElementsAre(HasSubstr("start as a thread-local variable,")));
  EXPECT_THAT(told("TYPE_OF_START", "STT_NOTYPE"),
              ElementsAre(HasSubstr("start as a symbol of another type,")));
  EXPECT_THAT(told("TYPE_OF_START", "STT_OBJECT", "exports start"), IsEmpty());
  // Told once.
  EXPECT_THAT(told("TYPE_OF_START", "STT_OBJECT", "exports none\nexport-kind function"),
              ElementsAre(HasSubstr("start, which is not to be exported")));
}

TEST(Imports, WithoutAVersion) {
  const std::string policy = "unversioned-imports forbid";
  EXPECT_THAT(violations_of(Fixture(), policy), IsEmpty());
  const auto strong = with_symbol("gettid", ", Type: STT_FUNC, Binding: STB_GLOBAL }");
  EXPECT_THAT(violations_of(strong, policy),
              ElementsAre("unversioned-imports: refers to gettid without a version (the dynamic "
                          "symbol table)"));
  EXPECT_THAT(violations_of(strong, ""), IsEmpty());
  EXPECT_THAT(violations_of(strong, policy + "\ndeny-import gettid"),
              ElementsAre(HasSubstr("imports: refers to gettid, which is denied")));
  EXPECT_THAT(violations_of(with_symbol("gettid", ", Type: STT_FUNC, Binding: STB_WEAK }"), policy),
              IsEmpty());
}

TEST(Imports, Denied) {
  EXPECT_THAT(
      violations_of(Fixture(), "deny-import dl*"),
      ElementsAre(
          "imports: refers to dlopen@GLIBC_2.17, which is denied (the dynamic symbol table)"));
  // A definition of that name is none.
  EXPECT_THAT(violations_of(Fixture(), "deny-import start abort"), IsEmpty());
}

TEST(CxxRuntime, ReferencesAndDefinitions) {
  const std::string policy = "cxx-runtime forbid\nexports start";
  EXPECT_THAT(violations_of(with_symbol("_ZNSt6thread4joinEv", ", Binding: STB_GLOBAL }"), policy),
              ElementsAre("cxx-runtime: refers to _ZNSt6thread4joinEv of the C++ runtime (the "
                          "dynamic symbol table)"));
  // Told once, not as an export too.
  EXPECT_THAT(
      violations_of(with_symbol("_ZdlPv", std::string(", Binding: STB_WEAK") + kInText), policy),
      ElementsAre("cxx-runtime: defines the weak symbol _ZdlPv of the C++ runtime (the dynamic "
                  "symbol table)"));
  EXPECT_THAT(violations_of(with_symbol("_ZdlPv", std::string(", Binding: STB_WEAK") + kInText),
                            policy + "\noff cxx-runtime"),
              ElementsAre(HasSubstr("exports: defines the weak symbol _ZdlPv")));
  EXPECT_THAT(violations_of(Fixture(), policy), IsEmpty());
}

TEST(CxxRuntime, Names) {
  for (const char* name : {"_ZSt9terminatev",
                           "_ZNSt6vectorIiSaIiEE9push_backEOi",
                           "_ZNKSs4sizeEv",
                           "_ZTVSt9exception",
                           "_ZTISt9exception",
                           "_ZTVN10__cxxabiv117__class_type_infoE",
                           "_ZGVNSt7__cxx118numpunctIcE2idE",
                           "_ZZNSt19_Sp_make_shared_tag5_S_tiEvE5__tag",
                           "_Znwm",
                           "_ZdaPv",
                           "__cxa_throw",
                           "__cxa_guard_acquire",
                           "__gxx_personality_v0",
                           "__dynamic_cast",
                           "_ZNSt3__15mutex4lockEv",
                           "_ZGTtNSt11logic_errorC1EPKc",
                           "_ZGTtnwm",
                           "_ZGTtdlPv",
                           "_ZTv0_n24_NSoD1Ev",
                           "_ZThn16_NSdD0Ev",
                           "_ZTch0_v0_n24_NSt3foo3barEv",
                           "_ZTIPSt9exception",
                           "_ZTIPKc",
                           "_ZTIi",
                           "_ZTSPKDn",
                           "_ZTINSt6locale5facetE",
                           "_ZNKRSt8optionalIiE5valueEv",
                           "_ZNOSt8optionalIiE5valueEv",
                           "_ZNVKSt6atomicIiE4loadEv",
                           "_ZTCSdE0_Si",
                           "_ZTHSt3foo",
                           "_ZN9__gnu_cxx27__verbose_terminate_handlerEv",
                           "_ZTIN9__gnu_cxx13stdio_filebufIcEE",
                           "_ZNK11__gnu_debug16_Error_formatter8_M_errorEv",
                           "__once_proxy"}) {
    EXPECT_TRUE(is_cxx_runtime_name(name)) << name;
  }
  for (const char* name : {"__cxa_atexit",
                           "__cxa_finalize",
                           "__cxa_thread_atexit_impl",
                           "_ZN5StarsC1Ev",
                           "_ZN3app3runESt6vectorIiSaIiEE",
                           "std_thing",
                           "_ZL3newv",
                           "malloc",
                           "",
                           "_Z",
                           "_Z3Stdv",
                           "_ZThn16_N3app3FooD1Ev",
                           "_ZTv0_n24_N3app3FooD0Ev",
                           "_ZTIPN3app3FooE",
                           "_ZTIP3Foo",
                           "_ZTI1i",
                           "_ZTCN3app3FooE0_So",
                           "_ZNKR3app3Foo3getEv",
                           "_ZNO3app3Foo3getEv",
                           "_ZTh",
                           "_ZTv0",
                           "_ZTI",
                           "_ZGTtN3app3FooC1Ev",
                           "_ZN10__gnu_cxxx3fooEv"}) {
    EXPECT_FALSE(is_cxx_runtime_name(name)) << name;
  }
}

TEST(Ifunc, SymbolsAndRelocations) {
  EXPECT_THAT(
      violations_of(
          with_symbol(
              "fast",
              ", Type: STT_GNU_IFUNC, Binding: STB_GLOBAL, Section: .text, Value: 0x2002 }"),
          "ifunc forbid"),
      ElementsAre("ifunc: has the IFUNC fast (the dynamic symbol table)"));
  EXPECT_THAT(
      violations_of(Fixture().set("RELOCATION", "37"), "ifunc forbid"),  // R_X86_64_IRELATIVE
      ElementsAre("ifunc: has 1 IFUNC relocations (the relocations)"));
  EXPECT_THAT(violations_of(Fixture().set("MACHINE", "EM_AARCH64").set("RELOCATION", "1032"),
                            "ifunc forbid"),
              ElementsAre(HasSubstr("1 IFUNC relocations")));
  EXPECT_THAT(violations_of(Fixture(), "ifunc forbid"), IsEmpty());
  EXPECT_THAT(violations_of(Fixture().set("RELOCATION", "37"), "ifunc any"), IsEmpty());
}

}  // namespace
}  // namespace gpuprof::elfgate
