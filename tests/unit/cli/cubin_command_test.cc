// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cubin_command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "daemon/cli/command_line.h"

namespace gpuprof::cli {
namespace {

std::string path_of(const std::string& name) { return CUBIN_FIXTURES "/" + name; }

std::shared_ptr<const cubin::Image> image(const std::string& name) {
  std::ifstream file(path_of(name), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return cubin::Image::parse({bytes.begin(), bytes.end()}).value();
}

// Without the writer's line breaks.
std::string flat(std::string text) {
  std::erase_if(text, [](char c) { return c == '\n' || c == ' '; });
  return text;
}

TEST(ParsePcs, ListsAndFiles) {
  EXPECT_EQ(*parse_pcs("0x10,20,0XfF"), (std::vector<uint64_t>{0x10, 0x20, 0xff}));
  char name[] = "/tmp/gpuprof-pcs-XXXXXX";
  ::close(::mkstemp(name));
  std::ofstream(name) << "0x10\n\n20\r\nff";
  EXPECT_EQ(*parse_pcs("@" + std::string(name)), (std::vector<uint64_t>{0x10, 0x20, 0xff}));
  std::ofstream(name) << "0x10,20\n";
  EXPECT_EQ(parse_pcs("@" + std::string(name)).error().code, Code::kInvalidArgument);
  std::ofstream(name) << "\n";
  EXPECT_EQ(parse_pcs("@" + std::string(name)).error().code, Code::kInvalidArgument);
  ::unlink(name);
  EXPECT_EQ(parse_pcs("@" + std::string(name)).error().code, Code::kIo);
  for (const char* bad : {"", ",", "10,", "0x", "g", "-1", "1 2", "0x10000000000000000"})
    EXPECT_EQ(parse_pcs(bad).error().code, Code::kInvalidArgument) << bad;
}

TEST(CubinResolve, Json) {
  constexpr const char* kChain = R"json([
  {"pc": 400, "status": "resolved", "frames": [
    {"function": "inner(float, int)", "mangled": "_Z5innerfi",
     "file": "/tmp/kernels/inline_chain.cu", "line": 7},
    {"function": "middle(float, int)", "mangled": "_Z6middlefi",
     "file": "/tmp/kernels/inline_chain.cu", "line": 13},
    {"function": "outer(float, int)", "mangled": "_Z5outerfi",
     "file": "/tmp/kernels/inline_chain.cu", "line": 18},
    {"function": "chain", "mangled": "chain",
     "file": "/tmp/kernels/inline_chain.cu", "line": 28}]},
  {"pc": 1048560, "status": "unmapped", "frames": []}])json";
  constexpr const char* kPlain = R"json([{"pc": 16, "status": "no-lineinfo", "frames": [
    {"function": "chain", "mangled": "chain", "file": "", "line": 0}]}])json";
  // A function of ptxas' own, which has no lines, and its call.
  constexpr const char* kCalled = R"json([{"pc": 10256, "status": "resolved", "frames": [
    {"function": "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     "mangled": "__cuda_sm3x_div_rn_noftz_f32_slowpath", "file": "", "line": 0},
    {"function": "apart(float, int)", "mangled": "_Z5apartfi",
     "file": "/tmp/kernels/inline_chain.cu", "line": 23},
    {"function": "chain", "mangled": "chain",
     "file": "/tmp/kernels/inline_chain.cu", "line": 29}]}])json";
  constexpr const char* kNone = R"json([{"pc": 16, "status": "unmapped", "frames": []}])json";
  const auto with_lines = image("inline_chain.sm_90.cubin");
  CubinQuery query;
  query.function = "chain";
  EXPECT_EQ(flat(resolve_json(*with_lines, query, {0x190, 0xffff0})), flat(kChain));
  EXPECT_EQ(flat(resolve_json(*with_lines, query, {0x2810})), flat(kCalled));
  EXPECT_EQ(flat(resolve_json(*image("inline_chain.sm_90.plain.cubin"), query, {0x10})),
            flat(kPlain));
  query.function = "no_such";
  EXPECT_EQ(flat(resolve_json(*with_lines, query, {0x10})), flat(kNone));
}

TEST(CubinResolve, Text) {
  CubinQuery query;
  query.function = "chain";
  const std::string text = resolve_text(*image("inline_chain.sm_90.cubin"), query, {0x190});
  EXPECT_EQ(text.find("0x190  resolved\n    inner(float, int)  /tmp/kernels/inline_chain.cu:7\n"),
            0u)
      << text;
}

TEST(CubinInfo, SaysWhatTheFileHolds) {
  const auto cubin = image("inline_chain.sm_90.cubin");
  const std::string json = flat(info_json(*cubin, "x.cubin"));
  for (const char* part :
       {R"("file":"x.cubin")", R"("arch":"sm_90")", R"("abi_version":8)", R"("line_info":true)",
        R"("sha256":"b9a9b24016a399dee0b1c16f6ee91006089ac7cf19a29100d15a7df98475f8d2")",
        R"("kernels":[{"function":"chain","mangled":"chain",)", R"("functions":[{"function":)"})
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
  EXPECT_NE(info_text(*cubin, "x\x1b.cubin").find("x?.cubin\n  arch         sm_90\n"),
            std::string::npos);
  EXPECT_NE(
      flat(info_json(*image("inline_chain.sm_90.plain.cubin"), "x")).find(R"("line_info":false)"),
      std::string::npos);
}

TEST(CubinResolve, NearFunctions) {
  const auto cubin = image("inline_chain.sm_90.cubin");
  EXPECT_EQ(near_functions(*cubin, "chan"), std::vector<std::string>{"chain"});
  EXPECT_EQ(near_functions(*cubin, "hai"), (std::vector<std::string>{"chain", "$chain$_Z5apartfi"}))
      << "a part of both";
  EXPECT_TRUE(near_functions(*cubin, "zzzzzzzz").empty());
  EXPECT_TRUE(near_functions(*cubin, "").empty());
  EXPECT_TRUE(near_functions(*cubin, std::string(100'000, 'x')).empty());
}

class CubinErrors : public testing::Test {
 protected:
  static int status(std::vector<const char*> args, std::string& told) {
    args.insert(args.begin(), {"gpu-profiled", "cubin"});
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    const int out = main_command(static_cast<int>(args.size()), args.data());
    told = testing::internal::GetCapturedStderr();
    printed = testing::internal::GetCapturedStdout();
    return out;
  }
  static std::string printed;
};
std::string CubinErrors::printed;

TEST_F(CubinErrors, OneLineAndTheRightStatus) {
  const std::string good = path_of("inline_chain.sm_90.cubin"), no_elf = path_of("make");
  struct Case {
    std::vector<const char*> args;
    int status;
    const char* text;
  };
  const Case cases[] = {
      {{"info", "/no/such"}, 1, "No such file"},
      {{"info", "/dev/null"}, 1, "not a regular file"},
      {{"info", "/proc/self/exe"}, 1, "not a cubin"},
      {{"info", no_elf.c_str()}, 1, "not an ELF file"},
      {{"resolve", good.c_str(), "--function", "chain", "--pc", "zz"}, 2, "no hexadecimal"},
      {{"resolve", good.c_str(), "--function", "chain", "--pc", "@/no/such"}, 1, "No such file"},
      {{"resolve", good.c_str()}, 2, "--help"},
      {{"resolve", good.c_str(), "--function", "f", "--pc", "1", "--json"}, 1, "no function f"},
      {{"resolve", good.c_str(), "--function", "chian", "--pc", "1"}, 1, "did you mean chain? "},
      {{"resolve", good.c_str(), "--function", "zzzzz", "--pc", "1"},
       1,
       "has no function zzzzz: gpu-profiled cubin info --json "},
  };
  for (const Case& one : cases) {
    std::string told;
    EXPECT_EQ(status(one.args, told), one.status) << told;
    EXPECT_NE(told.find(one.text), std::string::npos) << told;
    EXPECT_EQ(std::ranges::count(told, '\n'), 1) << told;
    EXPECT_EQ(printed.empty(), one.status != 0);
  }
  std::string told;
  EXPECT_EQ(status({"info", good.c_str()}, told), 0);
  EXPECT_EQ(told, "");
}

}  // namespace
}  // namespace gpuprof::cli
