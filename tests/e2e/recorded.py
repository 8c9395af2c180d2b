# SPDX-License-Identifier: Apache-2.0
"""Sessions recorded on a GPU (tests/data/sessions), played through the real shim, eBPF and the shipped gpu-profiled.

Run by ctest: recorded.py CASE --build DIR. Needs root; without it the case is skipped (exit 77).
"""

import collections
import pathlib
import sys

import pc_checks
import pprof_raw
from bench import Bench, check, equal, run_named_case
from pc_sampling import check_refusal

ROOT = pathlib.Path(__file__).resolve().parents[2]
SESSIONS = ROOT / "tests/data/sessions"
SOURCES = ROOT / "tests/hardware"
# As recorded: 2^(5 + 6) cycles.
PERIOD = ("--pc-period", "11")
HOT = {"hot_math": "math", "hot_chase": "chase", "hot_shared": "shared"}

sys.path.insert(0, str(SOURCES))
import device_code  # noqa: E402
import pprof_reader  # noqa: E402


def run(bench, name, tier="continuous"):
    """(profile's path, summary, truth)."""
    path, summary, truth, _ = bench.run(bench.player(SESSIONS / name / "session"), "--pc-sampling", tier, *PERIOD)
    profile = pprof_raw.load(path)
    equal(summary["total"]["gpu_time_ns"]["received"], profile.total("gpu_time"), "gpu_time in summary and profile")
    equal(summary["total"]["executions"]["received"], profile.total("gpu_executions"), "executions")
    equal(profile.total("gpu_pc_samples"), truth["pc"]["pc_delivered"], "PC samples")
    pc_checks.check_summary(summary, truth, tier, profile)
    return path, summary, truth


def recorded_launches(name):
    """Kernel's name -> executions that the session's text says."""
    names, counts, loops = {}, collections.Counter(), [1]
    for line in (SESSIONS / name / "session").read_text().splitlines():
        words = line.split()
        if words[:1] == ["kernel"]:
            names[words[1]] = next(word[9:] for word in words if word.startswith("function="))
        elif words[:1] == ["loop"]:
            loops.append(loops[-1] * int(words[1]))
        elif words[:1] == ["end"]:
            loops.pop()
        elif words[:1] == ["launch"] and words[1] in names:
            count = next((int(word[6:]) for word in words if word.startswith("count=")), 1)
            counts[names[words[1]]] += count * loops[-1]
    return counts


def case_inlined(build):
    """Every sample at a line, the loops' lines hottest as they were on the GPU, each under its chain of inlined calls."""
    bench = Bench(build)
    try:
        path, _, truth = run(bench, "inlined")
        check(truth["pc"]["pc_delivered"] > 50_000, f"{truth['pc']['pc_delivered']} samples: nothing is tested")
        profile = pprof_reader.read(path)
        by_kernel = collections.Counter()
        for sample in profile.samples:
            by_kernel[device_code.kernel_name(sample)] += sample.values["gpu_executions"]
        for kernel, count in recorded_launches("inlined").items():
            equal(by_kernel[kernel], count, f"executions of {kernel}")
        samples = device_code.pc_samples(profile)
        equal(set(device_code.by_label(samples, "gpu_src_status")), {"resolved"}, "gpu_src_status")
        lines = device_code.hot_lines(samples)
        marks = device_code.marked_lines(SOURCES / "hot_loops.cu")
        for kernel, part in HOT.items():
            found = lines[kernel]
            equal({hot.file for hot in found}, {"/build/src/tests/hardware/hot_loops.cu"}, f"files of {kernel}")
            share = device_code.share_on_marks(found, marks[kernel])
            check(share >= 0.9, f"{kernel}: {share:.3f} on its marked lines")
            chain = [call.split(":")[0] for call in found[0].chains.most_common(1)[0][0].split(" < ")]
            equal(chain, [f"{part}_inner", f"{part}_middle", f"{part}_outer", kernel], f"chain of {kernel}")
        text = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-trim_path=/build/src", f"-source_path={ROOT}",
                               "-list=^math_inner", path=path)
        hottest = [row for row in text.splitlines() if "// hot: hot_math" in row and not row.split()[0] == "."]
        check(hottest, f"pprof -list shows no samples on the marked line:\n{text[:2000]}")
        print(f"{truth['pc']['pc_delivered']} PC samples, each at its line")
    finally:
        bench.close()


def case_graph_serialized(build):
    """Serialized sampling is refused where the graph ran."""
    bench = Bench(build)
    try:
        _, summary, truth = run(bench, "graph", "serialized")
        check_refusal(summary, truth, "graph", "graph_refused")
    finally:
        bench.close()


def case_graph(build):
    """The graph's kernels lie under [cuda graph]."""
    bench = Bench(build)
    try:
        path, _, truth = run(bench, "graph")
        check(truth["pc"]["pc_delivered"] > 1000, f"{truth['pc']['pc_delivered']} samples: nothing is tested")
        under = collections.Counter()
        for sample in pprof_reader.read(path).samples:
            functions = [frame.function for place in sample.locations for frame in place.frames]
            kernel = device_code.short_name(device_code.kernel_name(sample))
            under[kernel, "[cuda graph]" in functions] += sample.values["gpu_executions"]
        equal(under["graph_node", True], 1000, "nodes under [cuda graph]")
        equal(under["graph_node", False], 0, "nodes elsewhere")
        check(under["tiny", False] >= 200 and under["tiny", True] == 0, f"tiny: {under}")
    finally:
        bench.close()


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, lambda function, options: function(options.build)))
