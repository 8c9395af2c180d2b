# SPDX-License-Identifier: Apache-2.0
"""End-to-end halves of 1 to 4: what a sample's frames are. The truth is the fake GPU's, and what NVIDIA's tools say of the
fixtures (tests/data/cubin/*.lines), not our reader."""
import collections
import os
import pathlib
import re

import device_code
import pc_checks
import pc_sampling
import pprof_raw
from bench import check, equal
from pc_checks import CUBINS, Oracle, present

SESSIONS = pathlib.Path(__file__).resolve().parent / "sessions"
CONTINUOUS = ("--pc-sampling", "continuous")
GRAPH = "[cuda graph]"
# Values of labels, of which none may be in a frame's name.
LABEL_VALUES = ("resolved", "no-lineinfo", "no-module", "unmapped", "kernel-ambiguous", "kernel-multidevice", "graph-refused",
                "long_scoreboard", "short_scoreboard", "math_pipe_throttle", "branch_resolving", "lg_throttle")


def run(bench, session, *options, **values):
    """(profile's path, profile, summary, truth) of a session of this folder."""
    path, summary, truth, _ = bench.run(bench.player(SESSIONS / f"{session}.session", **values), *options)
    return path, pprof_raw.load(path), summary, truth


def path_of(functions):
    return tuple(name for name in functions if name == "main" or name.startswith("path_"))


def function_at(file, line):
    """The function of the fixture's source whose definition holds the line."""
    for name, spans in device_code.function_ranges(str(CUBINS / file)).items():
        if any(first <= line <= last for first, last in spans):
            return name
    raise AssertionError(f"{file}:{line} is in no function of the source")


def device_names(oracle, kernel, pc):
    """What the frames on the GPU must be called, the kernel first. A function of the toolkit's without lines: "__cuda"."""
    _, lines = oracle(kernel, pc)
    names = [function_at(file, line) for file, line in reversed(lines)] or [device_code.short_name(kernel)]
    if lines and not oracle.innermost(kernel, pc):
        names.append("__cuda")
    return tuple(names)


def split(sample):
    """(CPU's functions, whether a graph's, device frames from the kernel on)."""
    at = next((i for i, frame in enumerate(sample.frames) if frame.system_name in pc_checks.CUBIN_OF), None)
    check(at is not None, f"no kernel in {sample.functions}")
    has_graph = at > 0 and sample.functions[at - 1] == GRAPH
    cpu = sample.functions[:at - has_graph]
    check(GRAPH not in cpu and GRAPH not in sample.functions[at:], f"{GRAPH} is not right above its kernel: {sample.functions}")
    return cpu, has_graph, sample.frames[at:]


def check_names(profile):
    for name in {name for sample in profile.samples for name in sample.functions}:
        check(not re.search(r"0x[0-9a-f]|\b[0-9a-f]{7,}\b|[@+:#]\s*\d", name), f"a frame is called {name}: an address or an id")
        for value in LABEL_VALUES:
            check(value not in name, f"a frame is called {name}, which has the label's value {value}")


def top_rows(path, sample_type):
    """Function -> [cum] of `pprof -top`."""
    text = pprof_raw.pprof(f"-sample_index={sample_type}", "-top", "-nodecount=10000", "-nodefraction=0", path=path)
    rows = collections.defaultdict(list)
    for row in text.splitlines():
        words = row.removesuffix(" (inline)").split()
        if len(words) >= 6 and words[1].endswith("%") and words[4].endswith("%"):
            rows[" ".join(words[5:])].append(int(words[3]))
    return rows


def gate01(bench):
    path, profile, _, truth = run(bench, "frames", *CONTINUOUS, loops=700)
    oracle, want, got = Oracle(), collections.Counter(), collections.Counter()
    of_graph = {"_Z10scale_twinPff"}
    for row in truth["pc"]["rows"]:
        names = device_names(oracle, row["kernel"], row["pc"])
        want[path_of(row["stack"]), row["kernel"] in of_graph, names, row["stall"]] += row["delivered"]
    for sample in pc_checks.pc_samples(profile):
        cpu, has_graph, device = split(sample)
        equal(cpu[0], "_start", "the outermost frame")
        names = tuple("__cuda" if name.function.startswith("__cuda_sm") else name.function for name in device)
        got[path_of(cpu), has_graph, names, sample.labels["gpu_stall"]] += sample.values["gpu_pc_samples"]
    equal(present(got), present(want), "PC samples by call path, graph, device frames and stall")
    deepest = max(len(names) for _, _, names, _ in present(got))
    check(deepest >= 4 and any(graph for _, graph, _, _ in present(got)), "neither deep chains nor a graph: nothing is tested")
    check_names(profile)
    rows = top_rows(path, "gpu_pc_samples")
    for kernel in {row["kernel"] for row in truth["pc"]["rows"]}:
        equal(rows[device_code.short_name(kernel)], [pc_checks.delivered(truth, kernel=kernel)],
              f"rows of {kernel} at function granularity")
    print(f"{sum(got.values())} PC samples, {len(present(got))} different ones, chains up to {deepest} deep")


def gate02(bench):
    _, profile, _, _ = run(bench, "frames", *CONTINUOUS, loops=300)
    pc_checks.check_sources(profile)
    for sample in pc_checks.pc_samples(profile):
        cpu, _, device = split(sample)
        leaf = device[-1]
        if path_of(cpu) != ("main", "path_a", "path_b", "path_c") or leaf.function != "inner":
            continue
        main = sample.frames[cpu.index("main")]
        check(main.file.endswith("tests/fake_cuda/play/main.cc") and main.line > 0, f"main is at {main.file}:{main.line}")
        text = (CUBINS / os.path.basename(leaf.file)).read_text().splitlines()[leaf.line - 1]
        if text.strip() == "x = x * 1.0001f + __sinf(x);":
            print(f"{' > '.join(path_of(cpu))} > {' > '.join(f.function for f in device)}, {leaf.file}:{leaf.line}: {text.strip()}")
            return
    raise AssertionError("no sample below main, path_a, path_b, path_c is at the loop of inner()")


def gate03(bench):
    path, profile, summary, truth = run(bench, "lineinfo", *CONTINUOUS, loops=800)
    by_status = collections.defaultdict(list)
    for sample in pc_checks.pc_samples(profile):
        by_status[sample.labels["gpu_src_status"]].append(sample)
    equal(set(by_status), {"resolved", "no-lineinfo"}, "values of gpu_src_status")
    opaque = [s for s in by_status["no-lineinfo"] if split(s)[2][0].function == "opaque"]
    # What pprof's source view takes for a file where there is none is called so.
    equal({(f.function, f.file.removeprefix("[no-source]/opaque"), f.line) for sample in opaque for f in split(sample)[2]},
          {("opaque", "", 0)},
          "frames of a kernel of which no build has line info")
    by_status["no-lineinfo"] = [s for s in by_status["no-lineinfo"] if s not in opaque]
    for sample in by_status["no-lineinfo"]:  # its file is the kernel's, which the other build tells: they are one frame
        equal([(f.function, f.line) for f in split(sample)[2]], [("chain", 0)], "device frames without line info")
    check(all(split(sample)[2][-1].line > 0 for sample in by_status["resolved"]), "a resolved sample without a line")
    shared = {status: {(tuple((f.function, f.file, f.line) for f in sample.frames[:len(split(sample)[0])]),
                        split(sample)[2][0].function, split(sample)[2][0].system_name, split(sample)[2][0].file)
                       for sample in samples}
              for status, samples in by_status.items()}
    equal(shared["resolved"], shared["no-lineinfo"], "stack and kernel frame of either build")
    equal(len(shared["resolved"]), 1, "stacks of one launch path")
    delivered = pc_checks.delivered(truth, kernel="chain")
    equal(top_rows(path, "gpu_pc_samples")["chain"], [delivered], "rows of the kernel at function granularity")
    for status, samples in by_status.items():
        check(sum(s.values["gpu_pc_samples"] for s in samples) > 10_000, f"too few samples are {status}: nothing is tested")
    pc_checks.check_summary(summary, truth, "continuous", profile)
    print(f"{delivered} PC samples of two builds of one kernel: one stack, one kernel")


STATUS_OF = {"chain": {"resolved"}, "softmax": {"resolved"}, "opaque": {"no-lineinfo"}, "jitted": {"no-module"},
             "_Z10scale_twinPff": {"resolved", "unmapped"}, "_Z8scale_upPff": {"resolved"}, "_Z10polynomialPffi": {"resolved"}}


def gate04(bench):
    path, _, truth, _ = bench.run(pc_sampling.play(bench, "pc_sampling", loops=800), *CONTINUOUS)
    profile = pprof_raw.load(path)
    statuses = pc_checks.check_samples(profile, truth, Oracle())
    equal(statuses, {"resolved", "no-lineinfo", "no-module", "unmapped"}, "values of gpu_src_status")
    got = collections.defaultdict(set)
    beyond = 0
    for sample in pc_checks.pc_samples(profile):
        _, _, device = split(sample)
        status = sample.labels["gpu_src_status"]
        got[device[0].system_name].add(status)
        if status == "unmapped":
            equal([f.line for f in device], [0], "a PC past its function's end has a line")
            beyond += sample.values["gpu_pc_samples"]
    equal(dict(got), STATUS_OF, "gpu_src_status by kernel")
    equal(beyond, pc_checks.delivered(truth, pc=0x4000), "samples past their function's end")
    check(beyond > 100, f"{beyond} samples past their function's end: nothing is tested")
    print(f"{truth['pc']['pc_delivered']} PC samples in four statuses, {beyond} of them past a function's end")
