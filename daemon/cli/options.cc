// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <sstream>

#include "daemon/cli/duration.h"
#include "daemon/cli/name_pattern.h"
#include "daemon/cli/scope.h"
#include "daemon/cli/version.h"

namespace gpuprof::cli {
namespace {

// Values as the user typed them: checked after CLI11 is done, so that every message is ours.
struct RawOptions {
  std::vector<std::string> pids, cgroups, exclude;
  std::string duration, window, output, stack_rate, summary_json, python = "on", user, shim;
  std::string fallback, seed;
  std::string pc_sampling = "off", pc_period, pc_duty, save_cubins, cuda_compat;
  bool force = false, version = false, thread_frames = false, yield = false, all = false;
  bool no_uprobe_multi = false, no_sleepable = false, no_nop5 = false, no_find_vma = false;
};

template <class T>
bool parse_number(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && at == end;
}

void add_common(CLI::App& app, RawOptions& raw) {
  app.add_option("--duration", raw.duration,
                 "stop after this time: 500ms, 30s, 2m; a number alone is seconds")
      ->type_name("TIME");
  app.add_option("--window", raw.window,
                 "write a profile each TIME, 100ms to 168h; -o and --summary-json name them by "
                 "strftime conversions of their start: -o 'gpu-%Y%m%dT%H%M%S.pb.gz'")
      ->type_name("TIME");
  app.add_option("-o,--output", raw.output,
                 "profile to write, strftime conversions allowed "
                 "(default: gpu-<comm>-<pid>-<time>.pb.gz, never overwriting)")
      ->type_name("FILE");
  app.add_option("--stack-rate", raw.stack_rate,
                 "call stacks a second and thread, or 'all' (default: 200)")
      ->type_name("N|all");
  app.add_option("--python", raw.python,
                 "on|off: Python functions and lines on the call paths (default: on)")
      ->type_name("on|off");
  app.add_flag("--thread-frames", raw.thread_frames,
               "begin each call path with its thread's name: [thread NAME]");
  app.add_option(
         "--pc-sampling", raw.pc_sampling,
         "off|continuous|serialized: sample what the GPU's instructions wait for; serialized "
         "is exact per launch and runs kernels one at a time in short windows (default: off)")
      ->type_name("MODE");
  app.add_option("--pc-period", raw.pc_period,
                 "sample every 2^N cycles, 5 to 31 (default: chosen for the GPU)")
      ->type_name("N");
  app.add_option("--pc-duty", raw.pc_duty,
                 "serialized: the percentage of the time in which kernels run one at a time, 0.1 "
                 "to 10 (default: 4)")
      ->type_name("PERCENT");
  app.add_option("--save-cubins", raw.save_cubins,
                 "save each sampled cubin there as <sha256>.cubin, for nvdisasm and ncu")
      ->type_name("DIR");
  app.add_flag("--yield", raw.yield,
               "SIGUSR1 to gpu-profiled gives CUPTI to other clients (torch.profiler, nsys) in all "
               "that it profiles, SIGUSR2 takes it back; the run goes on");
  app.add_option("--summary-json", raw.summary_json, "write the accounting as JSON")
      ->type_name("FILE");
  // Hidden: force what an older kernel would make us do, fix the sampler's seed.
  app.add_flag("--debug-no-uprobe-multi", raw.no_uprobe_multi)->group("");
  app.add_flag("--debug-no-sleepable", raw.no_sleepable)->group("");
  app.add_flag("--debug-no-nop5", raw.no_nop5)->group("");
  app.add_flag("--debug-no-find-vma", raw.no_find_vma)->group("");
  app.add_option("--debug-seed", raw.seed)->group("");
}

Status check_pc_duty(const RawOptions& raw, Options& out) {
  if (raw.pc_duty.empty()) return {};
  const char* const end = raw.pc_duty.data() + raw.pc_duty.size();
  double percent = 0;
  const auto [rest, error] = std::from_chars(raw.pc_duty.data(), end, percent);
  const double per_mille = std::round(percent * 10);
  if (error != std::errc() || rest != end || !(per_mille >= 1) || per_mille > GPUPROF_PC_DUTY_MAX)
    return fail(Code::kInvalidArgument,
                "--pc-duty: '" + raw.pc_duty + "' is no percentage from 0.1 to 10");
  if (out.tier != GPUPROF_TIER_SERIALIZED)
    return fail(Code::kInvalidArgument, "--pc-duty has no use without --pc-sampling serialized");
  out.pc_duty = static_cast<uint32_t>(per_mille);
  return {};
}

Status check_pc_sampling(const RawOptions& raw, Options& out) {
  if (raw.pc_sampling == "continuous") {
    out.tier = GPUPROF_TIER_CONTINUOUS;
  } else if (raw.pc_sampling == "serialized") {
    out.tier = GPUPROF_TIER_SERIALIZED;
  } else if (raw.pc_sampling != "off") {
    return fail(Code::kInvalidArgument, "--pc-sampling: '" + raw.pc_sampling +
                                            "' is neither off, continuous nor serialized");
  }
  out.save_cubins = raw.save_cubins;
  if (out.tier == GPUPROF_TIER_TRACE && !raw.save_cubins.empty())
    return fail(Code::kInvalidArgument,
                "--save-cubins saves what is sampled: it needs --pc-sampling continuous or "
                "serialized");
  if (auto ok = check_pc_duty(raw, out); !ok) return ok;
  if (raw.pc_period.empty()) return {};
  if (!parse_number(raw.pc_period, out.pc_period) || out.pc_period < 5 || out.pc_period > 31)
    return fail(Code::kInvalidArgument,
                "--pc-period: '" + raw.pc_period + "' is no number from 5 to 31 (log2 of cycles)");
  if (out.tier == GPUPROF_TIER_TRACE)
    return fail(Code::kInvalidArgument,
                "--pc-period has no use without --pc-sampling continuous or serialized");
  return {};
}

struct CubinCommands {
  CLI::App* cubin;
  CLI::App* resolve;
  CLI::App* info;
};

CubinCommands add_cubin(CLI::App& app, CubinQuery& query) {
  CubinCommands out{};
  out.cubin = app.add_subcommand("cubin",
                                 "functions and source lines of a cubin:\n"
                                 "gpu-profiled cubin resolve FILE --function F --pc 0x10,0x20\n"
                                 "gpu-profiled cubin info FILE");
  out.cubin->require_subcommand(1);
  out.resolve = out.cubin->add_subcommand("resolve",
                                          "the source line of each pc, and the inlined "
                                          "calls that led there, innermost first");
  out.resolve->add_option("FILE", query.file, "the cubin")->required();
  out.resolve->add_option("--function", query.function, "mangled name of the kernel or function")
      ->type_name("F")
      ->required();
  out.resolve
      ->add_option("--pc", query.pcs,
                   "offsets in the function, hexadecimal: 0x10,0x20, or @FILE with one a line")
      ->type_name("LIST")
      ->required();
  out.info = out.cubin->add_subcommand("info", "architecture, functions, line info, hashes");
  out.info->add_option("FILE", query.file, "the cubin")->required();
  for (CLI::App* const command : {out.resolve, out.info}) {
    command->add_flag("--json", query.json, "as JSON");
    command->set_help_flag("-h,--help", "print this help");
  }
  out.cubin->set_help_flag("-h,--help", "print this help");
  return out;
}

void add_repeatable(CLI::App& app, const char* name, std::vector<std::string>& values,
                    const char* type, const char* meaning) {
  app.add_option(name, values, meaning)
      ->type_name(type)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_pids(CLI::App& app, RawOptions& raw, const char* meaning) {
  add_repeatable(app, "--pid", raw.pids, "PID", meaning);
}

CLI::App* add_doctor(CLI::App& app, RawOptions& raw, Options& out) {
  CLI::App* const doctor =
      app.add_subcommand("doctor",
                         "can this host, or processes, be profiled, and if not, why:\n"
                         "gpu-profiled doctor [--pid PID...] [--json]");
  doctor->set_help_flag("-h,--help", "print this help");
  add_pids(*doctor, raw, "this process and its children (repeatable)");
  doctor->add_flag("--json", out.doctor_json, "as JSON");
  return doctor;
}

// After duration, output and summary_json.
Status check_window(const RawOptions& raw, Options& out) {
  if (raw.window.empty()) return {};
  auto window = parse_duration(raw.window);
  if (!window) return fail_with(window.error(), "--window");
  if (*window < std::chrono::milliseconds(100) || *window > std::chrono::hours(168))
    return fail(Code::kInvalidArgument, "--window: '" + raw.window + "' is not from 100ms to 168h");
  if (out.duration && *out.duration < *window)
    return fail(Code::kInvalidArgument, "--window " + raw.window + " is longer than --duration " +
                                            raw.duration + ": leave it out, or make it shorter");
  if (!out.output.empty()) {
    auto name = NamePattern::parse(out.output, "-o");
    if (!name) return tl::unexpected<Error>(name.error());
    if (!name->has_time())
      return fail(Code::kInvalidArgument,
                  "--window writes many profiles: tell them apart by time, as in -o "
                  "'gpu-%Y%m%dT%H%M%S.pb.gz'");
  }
  if (!out.summary_json.empty()) {
    auto name = NamePattern::parse(out.summary_json, "--summary-json");
    if (!name) return tl::unexpected<Error>(name.error());
  }
  out.window = *window;
  return {};
}

Status check_common(const RawOptions& raw, Options& out) {
  if (raw.python != "on" && raw.python != "off")
    return fail(Code::kInvalidArgument, "--python: '" + raw.python + "' is neither on nor off");
  out.python = raw.python == "on";
  out.thread_frames = raw.thread_frames;
  out.yield = raw.yield;
  if (!raw.duration.empty()) {
    auto duration = parse_duration(raw.duration);
    if (!duration) return fail_with(duration.error(), "--duration");
    out.duration = *duration;
  }
  if (raw.stack_rate == "all") {
    out.stack_rate = UINT32_MAX;
  } else if (!raw.stack_rate.empty() && (!parse_number(raw.stack_rate, out.stack_rate) ||
                                         out.stack_rate == 0 || out.stack_rate > 1'000'000)) {
    return fail(Code::kInvalidArgument, "--stack-rate: '" + raw.stack_rate +
                                            "' is neither a number from 1 to 1000000 nor 'all'");
  }
  if (!raw.seed.empty() && !parse_number(raw.seed, out.seed))
    return fail(Code::kInvalidArgument, "--debug-seed: '" + raw.seed + "' is no number");
  if (auto ok = check_pc_sampling(raw, out); !ok) return ok;
  // As other programs have it; a file of that name is ./-.
  const auto file_of = [](const std::string& name) { return name == "-" ? "/dev/stdout" : name; };
  out.output = file_of(raw.output);
  out.summary_json = file_of(raw.summary_json);
  if (auto ok = check_window(raw, out); !ok) return ok;
  auto add = [&](bool on, const char* name) {
    if (on) out.debug_fallback += (out.debug_fallback.empty() ? "" : ",") + std::string(name);
  };
  add(raw.no_uprobe_multi, "no-uprobe-multi");
  add(raw.no_sleepable, "no-sleepable");
  add(raw.no_nop5, "no-nop5");
  add(raw.no_find_vma, "no-find-vma");
  return {};
}

bool names_a_node(const RawOptions& raw) {
  return raw.all || !raw.cgroups.empty() || !raw.exclude.empty();
}

Status check_node(const RawOptions& raw, Options& out) {
  if (!out.pids.empty())
    return fail(
        Code::kInvalidArgument,
        "--pid names processes, --all, --cgroup and --exclude are about all others: use one");
  if (raw.all && !raw.cgroups.empty())
    return fail(Code::kInvalidArgument, "--all has every cgroup's processes: leave out --cgroup");
  if (!raw.all && raw.cgroups.empty())
    return fail(Code::kInvalidArgument, "--exclude leaves processes out of --all or --cgroup");
  out.action = Options::Action::kNode;
  out.cgroups = raw.cgroups;
  out.exclude = raw.exclude;
  for (const std::string& rule : out.exclude) {
    if (auto ok = Exclusion::parse(rule); !ok) return tl::unexpected<Error>(ok.error());
  }
  return {};
}

Status check_pids(const RawOptions& raw, Options& out) {
  for (const std::string& text : raw.pids) {
    uint32_t pid = 0;
    if (!parse_number(text, pid) || pid == 0 || pid > INT32_MAX)
      return fail(Code::kInvalidArgument, "--pid: '" + text + "' is no process id");
    if (std::find(out.pids.begin(), out.pids.end(), pid) == out.pids.end()) out.pids.push_back(pid);
  }
  return {};
}

Status check_run(const RawOptions& raw, Options& out) {
  if (out.command.empty())
    return fail(Code::kInvalidArgument,
                "run: no command given: gpu-profiled run [options] -- COMMAND [ARGUMENTS]");
  if (out.command.front().starts_with("-"))
    return fail(Code::kInvalidArgument, "run: '" + out.command.front() +
                                            "' stands after --, where the command begins: put "
                                            "options before it: gpu-profiled run [options] -- "
                                            "COMMAND [ARGUMENTS]");
  out.force = raw.force;
  out.user = raw.user;
  out.shim = raw.shim;
  out.cuda_compat = raw.cuda_compat;
  return {};
}

std::string joined(std::span<const std::string> words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

// CLI11 found `extra`, none of ours, in the words before --. `separator`: there was one.
std::string explain_extra(const std::vector<std::string>& words, const std::string& extra,
                          bool separator, const std::vector<std::string>& command) {
  const auto at = std::find(words.begin(), words.end(), extra);
  const std::string rest = joined({at, words.end()});
  const auto run = std::find(words.begin(), words.end(), "run");
  const bool runs = run != words.end() && run <= at;
  if (runs && extra == "--pid") return "run and --pid exclude each other";
  if (extra.starts_with("-"))
    return "unknown option " + extra +
           (runs && !separator
                ? ": if it is the command's, put -- before the command: gpu-profiled run "
                  "[options] -- COMMAND [ARGUMENTS]"
                : std::string());
  if (runs && separator)
    return "run: '" + rest + "' stands before --, where only options are: gpu-profiled run " +
           "[options] -- " + rest + " " + joined(command);
  if (runs) return "run: -- is missing before the command: gpu-profiled run [options] -- " + rest;
  return "'" + extra + "' is no option; to start a command and profile it: gpu-profiled run -- " +
         rest;
}

}  // namespace

Result<Options> parse_options(int argc, const char* const* argv) {
  Options out;
  RawOptions raw;
  // Everything after the first "--" is the command, whatever it looks like.
  std::vector<std::string> ours;
  bool separator = false;
  for (int i = 1; i < argc; ++i) {
    if (!separator && std::string_view(argv[i]) == "--") {
      separator = true;
    } else {
      (separator ? out.command : ours).emplace_back(argv[i]);
    }
  }
  const std::vector<std::string> words = ours;
  std::reverse(ours.begin(), ours.end());  // CLI11 takes a vector back to front

  CLI::App app("GPU time of CUDA programs on their CPU call stacks, as a pprof profile.\n",
               "gpu-profiled");
  app.set_help_flag("-h,--help", "print this help");
  app.add_flag("--version", raw.version, "print the version");
  add_pids(app, raw, "attach to this process and its children (repeatable)");
  add_repeatable(
      app, "--cgroup", raw.cgroups, "PATH",
      "the processes of this cgroup and those below it (v2 or v1; repeatable), also such "
      "as start or move there later: /sys/fs/cgroup/kubepods.slice");
  add_repeatable(app, "--exclude", raw.exclude, "RULE",
                 "with --all or --cgroup, leave out: comm:GLOB, exe:GLOB, pid:N, cgroup:PATH "
                 "(repeatable)");
  app.add_flag("--all", raw.all,
               "every process of the node that runs the shim, those that start later from their "
               "first launch on; ends by --duration or Ctrl-C");
  add_common(app, raw);
  CLI::App* run = app.add_subcommand("run",
                                     "start a command with the shim and profile it:\n"
                                     "gpu-profiled run [options] -- COMMAND [ARGUMENTS]");
  run->set_help_flag("-h,--help", "print this help");
  add_common(*run, raw);
  run->add_option("--user", raw.user, "run the command as this user (default: who called sudo)")
      ->type_name("NAME");
  run->add_flag("--force", raw.force, "replace a CUDA_INJECTION64_PATH of somebody else");
  run->add_option("--shim", raw.shim,
                  "the shim to inject (default: GPU_PROFILED_SHIM, else the installed one)")
      ->type_name("PATH");
  run->add_option("--cuda-compat", raw.cuda_compat,
                  "never|auto|DIR: run the command on the forward-compatibility libcuda of DIR, or "
                  "of /usr/local/cuda, where it is newer than the driver's and works on the GPU "
                  "(default: never; auto on Jetson)")
      ->type_name("WHEN");
  const CubinCommands cubin = add_cubin(app, out.cubin);
  const CLI::App* const doctor = add_doctor(app, raw, out);
  try {
    app.parse(ours);
  } catch (const CLI::CallForHelp&) {
    out.action = Options::Action::kPrint;
    out.text = app.help();
    return out;
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining(true);
    const auto first = std::find_first_of(words.begin(), words.end(), extras.begin(), extras.end());
    return fail(Code::kInvalidArgument,
                explain_extra(words, first == words.end() ? "" : *first, separator, out.command));
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return fail(Code::kInvalidArgument, text);
  }
  if (raw.version) {
    out.action = Options::Action::kPrint;
    out.text = version_text();
    return out;
  }
  if (cubin.cubin->parsed()) {
    if (!raw.pids.empty() || names_a_node(raw) || run->parsed() || separator)
      return fail(Code::kInvalidArgument, "cubin reads a file: it goes with no process");
    out.action =
        cubin.info->parsed() ? Options::Action::kCubinInfo : Options::Action::kCubinResolve;
    return out;
  }
  if (auto ok = check_pids(raw, out); !ok) return tl::unexpected<Error>(ok.error());
  if (doctor->parsed()) {
    out.action = Options::Action::kDoctor;
    if (separator || names_a_node(raw) || run->parsed())
      return fail(Code::kInvalidArgument, "doctor looks at what runs: it goes with no command");
    return out;
  }
  if (auto ok = check_common(raw, out); !ok) return tl::unexpected<Error>(ok.error());
  if (run->parsed()) {
    if (!out.pids.empty()) return fail(Code::kInvalidArgument, "run and --pid exclude each other");
    if (names_a_node(raw))
      return fail(Code::kInvalidArgument,
                  "run has the command's processes: leave out --all, --cgroup and --exclude");
    out.action = Options::Action::kRun;
    if (auto ok = check_run(raw, out); !ok) return tl::unexpected<Error>(ok.error());
    return out;
  }
  if (separator)
    return fail(
        Code::kInvalidArgument,
        "a command after -- needs 'run' before it: gpu-profiled run -- " +
            joined(std::span(out.command)
                       .subspan(!out.command.empty() && out.command.front() == "run" ? 1 : 0)));
  if (names_a_node(raw)) {
    if (auto ok = check_node(raw, out); !ok) return tl::unexpected<Error>(ok.error());
    return out;
  }
  if (out.pids.empty())
    return fail(Code::kInvalidArgument,
                "nothing to profile: give --pid PID or --all, or run -- COMMAND");
  return out;
}

}  // namespace gpuprof::cli
