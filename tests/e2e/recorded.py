# SPDX-License-Identifier: Apache-2.0
"""Sessions recorded on a GPU (tests/data/sessions), played through the real shim, eBPF and the shipped gpu-profiled.

Run by ctest: recorded.py CASE --build DIR. Needs root; without it the case is skipped (exit 77).
"""

import collections
import pathlib
import signal
import subprocess
import sys
import time

import pc_checks
import pprof_raw
from bench import Bench, check, equal, read_truth, run_named_case, wait_for_memfd
from pc_sampling import check_refusal

ROOT = pathlib.Path(__file__).resolve().parents[2]
SESSIONS = ROOT / "tests/data/sessions"
SOURCES = ROOT / "tests/hardware"
RECORDED_SOURCES = "/build/src/tests/hardware"
# As recorded: 2^(5 + 6) cycles.
PERIOD = ("--pc-period", "11")
HOT = {"hot_math": "math", "hot_chase": "chase", "hot_shared": "shared"}
FOR_EVER = 1_000_000
SHARE_TOLERANCE = 0.001

sys.path[:0] = [str(SOURCES), str(ROOT / "tests/record")]
import device_code  # noqa: E402
import pprof_reader  # noqa: E402
import session_data  # noqa: E402
from session_file import Session  # noqa: E402


class Recording:
    """One of tests/data/sessions, unpacked for a bench."""

    def __init__(self, bench, name):
        self.folder = bench.dir / name
        session_data.unpack(SESSIONS / name, self.folder)
        self.session = Session(self.play_file.read_text())

    @property
    def play_file(self):
        return self.folder / "session"

    def replay(self, passes, seconds, *paths, more=""):
        """From here on it is played so (Session.replayed), with the lines `more`."""
        self.play_file.write_text(self.session.replayed(passes, seconds, *paths) + more)

    def launches(self, passes=1):
        return collections.Counter({name: count * passes for name, count in self.session.launches().items()})


def check_totals(path, summary, truth, tier):
    """What of GPU work came out: as much as the truth has, by the summary and by the profile. The profile by pprof."""
    profile = pprof_raw.load(path)
    equal(summary["total"]["gpu_time_ns"]["received"], profile.total("gpu_time"), "gpu_time in summary and profile")
    equal(summary["total"]["executions"]["received"], profile.total("gpu_executions"), "executions")
    equal(profile.total("gpu_pc_samples"), truth["pc"]["pc_delivered"], "PC samples")
    pc_checks.check_summary(summary, truth, tier, profile)
    return profile


def run(bench, recording, tier="continuous", *options):
    """(profile's path, summary, truth)."""
    path, summary, truth, _ = bench.run(bench.player(recording.play_file), "--pc-sampling", tier, *PERIOD, *options)
    check_totals(path, summary, truth, tier)
    return path, summary, truth


def by_kernel(samples, value):
    """Kernel's mangled name -> sum, of samples of kernels."""
    counts = collections.Counter()
    for sample in samples:
        counts[device_code.kernel_name(sample)] += sample.values[value]
    return counts


def check_kernels(profile, recording, truth, passes):
    """Each kernel's executions are those of the session's text, its time is the truth's."""
    executions, time_ns = by_kernel(profile.samples, "gpu_executions"), by_kernel(profile.samples, "gpu_time")
    want_ns = collections.Counter()
    for row in truth["rows"]:
        want_ns[row["kernel"]] += row["gpu_ns"]
    for kernel, count in recording.launches(passes).items():
        equal(executions[kernel], count, f"executions of {kernel}")
        equal(time_ns[kernel], want_ns[kernel], f"gpu_time of {kernel}")


def places(samples, truth):
    """Kernel -> Counter of samples by (pc, stall): by the samples' addresses, and by the truth. A kernel's code has
    its own stretch of the profile's addresses; where it begins follows from its lowest sampled address."""
    got, want = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    for row in truth["pc"]["rows"]:
        if row["delivered"]:
            want[row["kernel"]][row["pc"], row["stall"]] += row["delivered"]
    for sample in samples:
        place = sample.locations[0].address, str(sample.labels["gpu_stall"])
        got[device_code.kernel_name(sample)][place] += sample.values[device_code.PC]
    moved = {}
    for kernel, counts in got.items():
        start = min(at for at, _ in counts) - min((pc for pc, _ in want[kernel]), default=0)
        moved[kernel] = collections.Counter({(at - start, stall): n for (at, stall), n in counts.items()})
    return moved, want


def check_places(samples, truth):
    """Every sample is at the instruction, and with the stall, that the fake delivered."""
    got, want = places(samples, truth)
    equal(got.keys(), want.keys(), "sampled kernels")
    for kernel, counts in want.items():
        equal(got[kernel], counts, f"samples of {kernel} by pc and stall")
    return got


def check_shares(counts, recording, kernels):
    """Each (pc, stall) of `kernels` has the share of its kernel's samples that it had on the GPU."""
    for kernel in kernels:
        weights = recording.session.weights()[kernel]
        total, whole = sum(counts[kernel].values()), sum(weight.all for weight in weights.values())
        check(total * SHARE_TOLERANCE > 10, f"{total} samples of {kernel}: nothing is tested")
        for place in weights.keys() | counts[kernel].keys():
            share = counts[kernel][place] / total
            recorded = weights[place].all / whole if place in weights else 0
            check(abs(share - recorded) <= SHARE_TOLERANCE,
                  f"{kernel} at {place[0]:#x}, {place[1]}: {share:.4f} of its samples, recorded {recorded:.4f}")


def check_inlined(profile, truth, recording):
    """Every sample at a line, the loops' lines hottest as they were on the GPU, each under its chain of inlined calls."""
    samples = device_code.pc_samples(profile)
    equal(set(device_code.by_label(samples, "gpu_src_status")), {"resolved"}, "gpu_src_status")
    mangled = {device_code.short_name(kernel): kernel for kernel in recording.session.weights()}
    check_shares(check_places(samples, truth), recording, [mangled[kernel] for kernel in HOT])
    lines = device_code.hot_lines(samples)
    marks = device_code.marked_lines(SOURCES / "hot_loops.cu")
    for kernel, part in HOT.items():
        found = lines[kernel]
        equal({hot.file for hot in found}, {f"{RECORDED_SOURCES}/hot_loops.cu"}, f"files of {kernel}")
        share = device_code.share_on_marks(found, marks[kernel])
        check(share >= 0.9, f"{kernel}: {share:.3f} on its marked lines")
        chain = [call.split(":")[0] for call in found[0].chains.most_common(1)[0][0].split(" < ")]
        equal(chain, [f"{part}_inner", f"{part}_middle", f"{part}_outer", kernel], f"chain of {kernel}")


def case_inlined(build):
    """From the start: lines, chains and shares as they were on the GPU."""
    bench, passes = Bench(build), 5
    try:
        recording = Recording(bench, "inlined")
        recording.replay(passes, 0.7)
        path, _, truth = run(bench, recording)
        profile = pprof_reader.read(path)
        check_kernels(profile, recording, truth, passes)
        check_inlined(profile, truth, recording)
        text = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-trim_path=/build/src", f"-source_path={ROOT}",
                               "-list=^math_inner", path=path)
        hottest = [row for row in text.splitlines() if "// hot: hot_math" in row and not row.split()[0] == "."]
        check(hottest, f"pprof -list shows no samples on the marked line:\n{text[:2000]}")
        print(f"{truth['pc']['pc_delivered']} PC samples, each at its line")
    finally:
        bench.close()


def case_late_attach(build):
    """The run in a loop, and a daemon that comes in the middle of it: as good as from the start."""
    bench = Bench(build)
    try:
        recording = Recording(bench, "inlined")
        recording.replay(FOR_EVER, 0.3)
        env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file())
        target = bench.spawn(bench.player(recording.play_file), env, stdout=subprocess.DEVNULL)
        wait_for_memfd(target.pid)
        time.sleep(1)  # it runs unprofiled for a while: that is the case, not a synchronisation
        path, summary, _ = bench.attach_for(target.pid, 2000, "--pc-sampling", "continuous", *PERIOD)
        target.send_signal(signal.SIGTERM)
        equal(target.wait(60), 0, "the session's exit status")
        truth = read_truth(bench.truth_file())
        check_totals(path, summary, truth, "continuous")
        check(truth["executions"] > summary["total"]["executions"]["received"], "nothing ran before the daemon came")
        check_inlined(pprof_reader.read(path), truth, recording)
        print(f"{truth['pc']['pc_delivered']} PC samples, each at its line")
    finally:
        bench.close()


def path_of(functions):
    """The functions of a session's call path, of frames or of the truth's stack, root first."""
    return tuple(name for name in functions if name == "main" or name.startswith("path_"))


def case_serialized(build):
    """Windows over the run in a loop, below two call paths in turn: every sample joins its own launch."""
    bench = Bench(build)
    try:
        recording = Recording(bench, "inlined")
        recording.replay(FOR_EVER, 0.3, "a/b", "c", more="thread stop\n  await-window 4\n  sleep 300ms\n  terminate\n")
        path, summary, truth = run(bench, recording, "serialized", "--stack-rate", "all")
        check(truth["pc"]["pc_starts"] >= 4, f"{truth['pc']['pc_starts']} windows: nothing is tested")
        check(truth["pc"]["pc_delivered"] > 10_000, f"{truth['pc']['pc_delivered']} samples: nothing is tested")
        windows = summary["targets"][0]["pc_sampling"]["shim"]["windows"]
        equal(windows, truth["pc"]["pc_starts"], "windows opened")
        check(windows - 1 <= truth["pc"]["pc_stops"] <= windows, "more than the last window is open at the end")
        samples = device_code.pc_samples(pprof_reader.read(path))
        check_places(samples, truth)
        for label, only in (("gpu_pc_attrib", "exact"), ("gpu_src_status", "resolved"), ("gpu_serialized", "true")):
            equal(set(device_code.by_label(samples, label)), {only}, label)
        got, want = collections.Counter(), collections.Counter()
        for sample in samples:
            got[path_of(reversed(sample.names())), device_code.kernel_name(sample)] += sample.values[device_code.PC]
        for row in truth["pc"]["rows"]:
            want[path_of(row["stack"]), row["kernel"]] += row["delivered"]
        equal(pc_checks.present(got), pc_checks.present(want), "PC samples by call path and kernel")
        print(f"{truth['pc']['pc_delivered']} PC samples in {truth['pc']['pc_starts']} windows, all exact")
    finally:
        bench.close()


def case_triton(build):
    """The Triton kernel's samples are at the lines that LLVM reads from its line table; PyTorch's have none."""
    bench, passes, ours = Bench(build), 20, "triton_add_kernel"
    try:
        recording = Recording(bench, "triton")
        recording.replay(passes, 0.2)
        path, _, truth = run(bench, recording)
        profile = pprof_reader.read(path)
        check_kernels(profile, recording, truth, passes)
        samples = device_code.pc_samples(profile)
        check_shares(check_places(samples, truth), recording, [ours])
        table = pc_checks.read_lines(SESSIONS / "triton/module-5.lines")[ours]
        got, want = collections.Counter(), collections.Counter()
        for sample in samples:
            leaf = device_code.device_frames(sample)[0]
            key = device_code.kernel_name(sample), sample.labels["gpu_src_status"], leaf.file if leaf.line else "", leaf.line
            got[key] += sample.values[device_code.PC]
        for row in truth["pc"]["rows"]:
            key = row["kernel"], "no-lineinfo", "", 0
            if row["kernel"] == ours:
                line = next(chain[0][1] for start, end, chain in table if start <= row["pc"] < end)
                key = ours, "resolved", f"{RECORDED_SOURCES}/triton_add.py", line
            want[key] += row["delivered"]
        equal(pc_checks.present(got), pc_checks.present(want), "PC samples by kernel, status and line")
        equal({status for _, status, _, _ in pc_checks.present(got)}, {"resolved", "no-lineinfo"}, "gpu_src_status")
        lines = {line for kernel, _, _, line in pc_checks.present(got) if kernel == ours}
        first, last = device_code.function_ranges(str(SOURCES / "triton_add.py"))[ours][0]
        check(all(first <= line <= last for line in lines) and len(lines) > 3, f"{lines} are not lines of {ours}")
        print(f"{truth['pc']['pc_delivered']} PC samples, those of {ours} at {len(lines)} lines")
    finally:
        bench.close()


def case_torch_step(build):
    """A training step, its backward pass on a thread of its own: 56 kernels of vendors' libraries, none with lines."""
    bench, passes = Bench(build), 10
    try:
        recording = Recording(bench, "torch_step")
        recording.replay(passes, 0.5)
        path, _, truth = run(bench, recording)
        profile = pprof_reader.read(path)
        check_kernels(profile, recording, truth, passes)
        equal(profile.total("gpu_time"), truth["gpu_ns"], "gpu_time in all")
        samples = device_code.pc_samples(profile)
        equal(set(device_code.by_label(samples, "gpu_src_status")), {"no-lineinfo"}, "gpu_src_status")
        sampled = by_kernel(samples, device_code.PC)
        want = collections.Counter()
        for row in truth["pc"]["rows"]:
            want[row["kernel"]] += row["delivered"]
        equal(pc_checks.present(sampled), pc_checks.present(want), "PC samples by kernel")
        equal(set(sampled), set(recording.session.weights()), "sampled kernels")
        threads = {name for sample in samples for name in sample.names() if name in ("main", "session_thread")}
        equal(threads, {"main", "session_thread"}, "threads that launched")
        print(f"{truth['pc']['pc_delivered']} PC samples of {len(sampled)} kernels")
    finally:
        bench.close()


def case_graph_serialized(build):
    """Serialized sampling is refused where the graph ran."""
    bench = Bench(build)
    try:
        _, summary, truth = run(bench, Recording(bench, "graph"), "serialized")
        check_refusal(summary, truth, "graph", "graph_refused")
    finally:
        bench.close()


def case_graph(build):
    """The graph's kernels lie under [cuda graph]."""
    bench = Bench(build)
    try:
        path, _, truth = run(bench, Recording(bench, "graph"))
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
