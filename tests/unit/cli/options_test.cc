// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/options.h"

#include <gtest/gtest.h>

namespace gpuprof::cli {
namespace {

Result<Options> parse(std::vector<const char*> args) {
  args.insert(args.begin(), "gpu-profiled");
  return parse_options(static_cast<int>(args.size()), args.data());
}

TEST(Options, AttachToSeveral) {
  auto options =
      parse({"--pid", "12", "--pid", "34", "--pid", "12", "--duration", "2m", "-o", "x.pb.gz"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->action, Options::Action::kAttach);
  EXPECT_EQ(options->pids, (std::vector<uint32_t>{12, 34}));
  EXPECT_EQ(options->duration, std::chrono::minutes(2));
  EXPECT_EQ(options->output, "x.pb.gz");
}

TEST(Options, AllIsOfTheNode) {
  auto options = parse({"--all", "--duration", "30s"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->action, Options::Action::kNode);
  EXPECT_TRUE(options->pids.empty());
}

TEST(Options, CgroupsAndExclusionsAreOfTheNode) {
  auto options = parse({"--cgroup", "/a", "--cgroup", "/b", "--exclude", "comm:x*"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->action, Options::Action::kNode);
  EXPECT_EQ(options->cgroups, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(options->exclude, (std::vector<std::string>{"comm:x*"}));
}

TEST(Options, RunTakesEverythingAfterTheDashes) {
  auto options = parse({"run", "--stack-rate", "all", "--python", "off", "--user", "bob", "--force",
                        "--shim", "/s.so", "--", "prog", "--pid", "1", "--", "-o", "y"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->action, Options::Action::kRun);
  EXPECT_EQ(options->command, (std::vector<std::string>{"prog", "--pid", "1", "--", "-o", "y"}));
  EXPECT_EQ(options->stack_rate, UINT32_MAX);
  EXPECT_FALSE(options->python);
  EXPECT_TRUE(options->force);
  EXPECT_EQ(options->user, "bob");
  EXPECT_EQ(options->shim, "/s.so");
  EXPECT_TRUE(options->output.empty());
}

TEST(Options, Defaults) {
  auto options = parse({"run", "--", "prog"});
  ASSERT_TRUE(options.has_value());
  EXPECT_TRUE(options->python);
  EXPECT_FALSE(options->force);
  EXPECT_EQ(options->stack_rate, 0u);
  EXPECT_FALSE(options->duration.has_value());
}

TEST(Options, PythonIsOfBothCommands) {
  EXPECT_TRUE(parse({"--pid", "1"})->python);
  EXPECT_TRUE(parse({"--pid", "1", "--python", "on"})->python);
  EXPECT_FALSE(parse({"--pid", "1", "--python", "off"})->python);
  EXPECT_FALSE(parse({"run", "--python", "off", "--", "prog"})->python);
}

TEST(Options, ThreadFramesAreOfBothCommands) {
  EXPECT_FALSE(parse({"--pid", "1"})->thread_frames);
  EXPECT_TRUE(parse({"--pid", "1", "--thread-frames"})->thread_frames);
  EXPECT_TRUE(parse({"run", "--thread-frames", "--", "prog"})->thread_frames);
  EXPECT_TRUE(parse({"--pid", "1", "--yield"})->yield);
  EXPECT_TRUE(parse({"run", "--yield", "--", "prog"})->yield);
  EXPECT_FALSE(parse({"--pid", "1"})->yield);
}

TEST(Options, CudaCompatIsOfRunAlone) {
  EXPECT_EQ(parse({"run", "--", "prog"})->cuda_compat, "");
  auto options = parse({"run", "--cuda-compat", "auto", "--", "prog"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->cuda_compat, "auto");
  EXPECT_EQ(parse({"--pid", "1", "--cuda-compat", "auto"}).error().code, Code::kInvalidArgument);
}

TEST(Options, Doctor) {
  auto options = parse({"doctor", "--pid", "12", "--json", "--pid", "34"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->action, Options::Action::kDoctor);
  EXPECT_EQ(options->pids, (std::vector<uint32_t>{12, 34}));
  EXPECT_TRUE(options->doctor_json);
  for (const std::vector<const char*>& wrong :
       std::vector<std::vector<const char*>>{{"doctor", "--pid", "0"},
                                             {"doctor", "12"},
                                             {"doctor", "--pid", "1", "--", "x"},
                                             {"doctor", "--pid", "1", "--output", "x"},
                                             {"doctor", "--pid", "1", "run", "--", "x"}}) {
    EXPECT_FALSE(parse(wrong).has_value()) << wrong.back();
  }
}

TEST(Options, PcSampling) {
  EXPECT_EQ(parse({"--pid", "1"})->tier, GPUPROF_TIER_TRACE);
  EXPECT_EQ(parse({"--pid", "1", "--pc-sampling", "off"})->tier, GPUPROF_TIER_TRACE);
  auto attach = parse({"--pid", "1", "--pc-sampling", "continuous"});
  ASSERT_TRUE(attach.has_value()) << attach.error().message;
  EXPECT_EQ(attach->tier, GPUPROF_TIER_CONTINUOUS);
  EXPECT_EQ(attach->pc_period, 0u) << "the shim's default";
  auto run = parse({"run", "--pc-sampling", "serialized", "--pc-period", "12", "--", "prog"});
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ(run->tier, GPUPROF_TIER_SERIALIZED);
  EXPECT_EQ(run->pc_period, 12u);
  EXPECT_EQ(run->pc_duty, 0u) << "the shim's default";
  for (const auto& [text, per_mille] :
       {std::pair("0.1", 1u), {"1", 10u}, {"2.5", 25u}, {"10", 100u}}) {
    const auto duty = parse({"--pid", "1", "--pc-sampling", "serialized", "--pc-duty", text});
    ASSERT_TRUE(duty.has_value()) << duty.error().message;
    EXPECT_EQ(duty->pc_duty, per_mille);
  }
}

TEST(Options, Cubin) {
  auto resolve =
      parse({"cubin", "resolve", "a.cubin", "--function", "f", "--pc", "0x10,20", "--json"});
  ASSERT_TRUE(resolve.has_value()) << resolve.error().message;
  EXPECT_EQ(resolve->action, Options::Action::kCubinResolve);
  EXPECT_EQ(resolve->cubin.file, "a.cubin");
  EXPECT_EQ(resolve->cubin.function, "f");
  EXPECT_EQ(resolve->cubin.pcs, "0x10,20");
  EXPECT_TRUE(resolve->cubin.json);
  auto info = parse({"cubin", "info", "a.cubin"});
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_EQ(info->action, Options::Action::kCubinInfo);
  EXPECT_FALSE(info->cubin.json);
}

TEST(Options, HiddenFallbacks) {
  auto options =
      parse({"--pid", "1", "--debug-no-uprobe-multi", "--debug-no-find-vma", "--debug-seed", "5"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->debug_fallback, "no-uprobe-multi,no-find-vma");
  EXPECT_EQ(options->seed, 5u);
}

TEST(Options, HelpAndVersion) {
  auto help = parse({"--help"});
  ASSERT_TRUE(help.has_value());
  EXPECT_EQ(help->action, Options::Action::kPrint);
  for (const char* name :
       {"--pid", "--all", "--duration", "--output", "--stack-rate", "--summary-json",
        "--pc-sampling", "--pc-period", "--window", "cubin", "doctor", "run"})
    EXPECT_NE(help->text.find(name), std::string::npos) << name;
  for (const char* name : {"--debug"})
    EXPECT_EQ(help->text.find(name), std::string::npos)
        << name << " is not built, so it is not shown";
  auto run_help = parse({"run", "--help"});
  ASSERT_TRUE(run_help.has_value()) << run_help.error().message;
  EXPECT_NE(run_help->text.find("--python"), std::string::npos);
  EXPECT_EQ(parse({"--version"})->text.rfind("gpu-profiled ", 0), 0u);
}

class UsageError : public testing::TestWithParam<std::vector<const char*>> {};

TEST_P(UsageError, IsOneLine) {
  auto options = parse(GetParam());
  ASSERT_FALSE(options.has_value());
  EXPECT_EQ(options.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(options.error().message.empty());
  EXPECT_EQ(options.error().message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Each, UsageError,
    testing::Values(
        std::vector<const char*>{}, std::vector<const char*>{"--bogus"},
        std::vector<const char*>{"--all", "--pid", "1"},
        std::vector<const char*>{"--all", "run", "--", "prog"},
        std::vector<const char*>{"--all", "doctor"},
        std::vector<const char*>{"--all", "--cgroup", "/a"},
        std::vector<const char*>{"--cgroup", "/a", "--pid", "1"},
        std::vector<const char*>{"--exclude", "comm:x"},
        std::vector<const char*>{"--pid", "1", "--exclude", "comm:x"},
        std::vector<const char*>{"--all", "--exclude", "x"},
        std::vector<const char*>{"--all", "--exclude", "pid:x"},
        std::vector<const char*>{"--cgroup", "/a", "run", "--", "prog"},
        std::vector<const char*>{"--cgroup", "/a", "cubin", "info", "a"},
        std::vector<const char*>{"--all", "cubin", "info", "a"},
        std::vector<const char*>{"--all", "--", "prog"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "always"},
        std::vector<const char*>{"--pid", "1", "--pc-period", "10"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "continuous", "--pc-period", "4"},
        std::vector<const char*>{"--pid", "1", "--pc-duty", "4"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "continuous", "--pc-duty", "4"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "serialized", "--pc-duty", "0.04"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "serialized", "--pc-duty", "10.1"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "serialized", "--pc-duty", "4%"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "serialized", "--pc-duty", "nan"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "continuous", "--pc-period", "32"},
        std::vector<const char*>{"--pid", "1", "--pc-sampling", "continuous", "--pc-period",
                                 "2^10"},
        std::vector<const char*>{"--pid", "1", "--save-cubins", "d"},
        std::vector<const char*>{"cubin"}, std::vector<const char*>{"cubin", "info"},
        std::vector<const char*>{"cubin", "resolve", "a", "--pc", "1"},
        std::vector<const char*>{"cubin", "resolve", "a", "--function", "f"},
        std::vector<const char*>{"cubin", "info", "a", "--pc", "1"},
        std::vector<const char*>{"--pid", "1", "cubin", "info", "a"},
        std::vector<const char*>{"cubin", "info", "a", "--", "prog"},
        std::vector<const char*>{"--pid"}, std::vector<const char*>{"--pid", "x"},
        std::vector<const char*>{"--pid", "0"}, std::vector<const char*>{"--pid", "-3"},
        std::vector<const char*>{"--pid", "99999999999"},
        std::vector<const char*>{"--pid", "1", "--duration", "soon"},
        std::vector<const char*>{"--pid", "1", "--stack-rate", "0"},
        std::vector<const char*>{"--pid", "1", "--stack-rate", "some"},
        std::vector<const char*>{"--pid", "1", "--user", "bob"},
        std::vector<const char*>{"--pid", "1", "extra"},
        std::vector<const char*>{"--pid", "1", "--", "prog"}, std::vector<const char*>{"run"},
        std::vector<const char*>{"run", "prog"}, std::vector<const char*>{"run", "--"},
        std::vector<const char*>{"run", "--bogus", "--", "prog"},
        std::vector<const char*>{"run", "--python", "maybe", "--", "prog"},
        std::vector<const char*>{"--pid", "1", "--python", "maybe"},
        std::vector<const char*>{"--pid", "1", "run", "--", "prog"}));

TEST(Options, ADashIsStandardOutput) {
  const auto options = parse({"--pid", "1", "-o", "-", "--summary-json", "-"});
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->output, "/dev/stdout");
  EXPECT_EQ(options->summary_json, "/dev/stdout");
  EXPECT_EQ(parse({"--pid", "1", "-o", "./-"})->output, "./-");
}

TEST(Options, AForgottenDashDashIsToldWithTheWholeCommand) {
  struct Case {
    std::vector<const char*> args;
    const char* text;
  };
  const Case cases[] = {
      {{"run", "python3", "x.py"},
       "run: -- is missing before the command: gpu-profiled run [options] -- python3 x.py"},
      {{"run", "-o", "a", "python3", "x.py", "--epochs", "3"},
       "[options] -- python3 x.py --epochs 3"},
      {{"-o", "a", "run", "python3", "-o", "b", "x.py"}, "run [options] -- python3 -o b x.py"},
      {{"run", "python3", "--", "x.py"},
       "'python3' stands before --, where only options are: gpu-profiled run [options] -- python3 "
       "x.py"},
      {{"run", "--epochs", "3", "python3"},
       "unknown option --epochs: if it is the command's, put -- before"},
      {{"run", "--epochs", "3", "--", "python3"}, "unknown option --epochs"},
      {{"run", "--", "-o", "x", "python3"},
       "'-o' stands after --, where the command begins: put options before it"},
      {{"--", "run", "python3"}, "needs 'run' before it: gpu-profiled run -- python3"},
      {{"--", "python3", "x.py"}, "gpu-profiled run -- python3 x.py"},
      {{"python3", "x.py"}, "to start a command and profile it: gpu-profiled run -- python3 x.py"},
      {{"run", "--pid", "3"}, "run and --pid exclude each other"},
      {{"--bogus"}, "unknown option --bogus"},
  };
  for (const Case& one : cases) {
    const auto options = parse(one.args);
    ASSERT_FALSE(options.has_value()) << one.text;
    EXPECT_EQ(options.error().code, Code::kInvalidArgument);
    EXPECT_NE(options.error().message.find(one.text), std::string::npos)
        << options.error().message << "\nwanted " << one.text;
  }
}

TEST(Options, Windows) {
  auto options = parse({"--pid", "1", "--window", "60s", "-o", "a-%s.pb.gz", "--summary-json",
                        "now.json", "--duration", "60s"});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->window, std::chrono::seconds(60));
  EXPECT_TRUE(parse({"run", "--window", "100ms", "--", "prog"}).has_value());
  EXPECT_FALSE(parse({"--pid", "1"})->window.has_value());
}

TEST(Options, WindowsThatMakeNoSense) {
  const auto trouble = [](std::vector<const char*> more) {
    std::vector<const char*> args = {"--pid", "1", "--window"};
    args.insert(args.end(), more.begin(), more.end());
    auto options = parse(args);
    EXPECT_FALSE(options.has_value());
    if (options) return std::string();
    EXPECT_EQ(options.error().code, Code::kInvalidArgument);
    return options.error().message;
  };
  EXPECT_EQ(trouble({"10ms"}), "--window: '10ms' is not from 100ms to 168h");
  EXPECT_EQ(trouble({"169h"}), "--window: '169h' is not from 100ms to 168h");
  EXPECT_NE(trouble({"often"}).find("is no duration"), std::string::npos);
  EXPECT_EQ(trouble({"60s", "--duration", "30s"}),
            "--window 60s is longer than --duration 30s: leave it out, or make it shorter");
  EXPECT_NE(trouble({"1s", "-o", "one.pb.gz"}).find("tell them apart by time"), std::string::npos);
  EXPECT_NE(trouble({"1s", "-o", "-"}).find("tell them apart by time"), std::string::npos);
  EXPECT_NE(trouble({"1s", "-o", "%D.pb.gz"}).find("'%D'"), std::string::npos);
  EXPECT_NE(trouble({"1s", "--summary-json", "%x"}).find("--summary-json: '%x'"),
            std::string::npos);
}

}  // namespace
}  // namespace gpuprof::cli
