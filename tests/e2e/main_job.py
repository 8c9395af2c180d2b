# SPDX-License-Identifier: Apache-2.0
"""The main job against known ground truth: the shipped gpu-profiled, the real shim, real eBPF and a
fake GPU whose driver writes down what it ran (tests/fake_cuda). Profiles are read by `go tool pprof`.

Run by ctest: main_job.py CASE --build DIR. Needs root; without it the case is skipped (exit 77) and
says so, which scripts/check counts as a failure in CI.
"""

import collections
import math
import os
import pathlib
import re
import signal
import subprocess
import sys

import pprof_raw
from bench import (Bench, OtherLoad, PATIENCE, STATE_IDLE, STATE_TRACING, check, check_accounting, equal, read_truth,
                   run_named_case, status, wait_for_state)

MODES = ["", "no_uprobe_multi", "no_sleepable", "no_nop5", "no_find_vma"]


def kernel_frame(row):
    """The system name of the truth row's leaf frame in the profile."""
    if row["kind"] == "memset":
        return "[memset]"
    if row["kind"] == "memcpy":
        return {1: "[memcpy HtoD]", 2: "[memcpy DtoH]", 8: "[memcpy DtoD]"}[row["copy_kind"]]
    return row["kernel"]


def leaf(sample):
    return sample.frames[-1].system_name


def check_stacks(profile, truth, share=0.995):
    """At least `share` of gpu_time lies on stacks that reach main or the thread's start routine
    through exactly the functions that the workload called, in that order."""
    stacks = {tuple(row["stack"]) for row in truth["rows"]}
    names = {name for stack in stacks for name in stack}
    right, wrong = 0, collections.Counter()
    for sample in profile.samples:
        path = tuple(f for f in sample.functions if f in names)
        # The outermost frame is the process's or a thread's first function, nothing of garbage.
        root_ok = sample.functions[0] in ("_start", "clone3", "clone", "__clone3", "__clone")
        if path in stacks and root_ok:
            right += sample.values["gpu_time"]
        else:
            wrong[tuple(sample.functions[:4]) + ("…",) + tuple(sample.functions[-4:])] += sample.values["gpu_time"]
    total = profile.total()
    check(right >= share * total, f"{right / total:.4%} of gpu_time on right stacks; wrong: {wrong.most_common(3)}")
    return right / total


def present(counter):
    return {key: value for key, value in counter.items() if value}


def check_kernels(profile, truth):
    """gpu_time and gpu_executions of every kernel, copy and fill equal the truth."""
    want_ns, want_count = collections.Counter(), collections.Counter()
    for row in truth["rows"]:
        frame = kernel_frame(row)
        want_ns[frame] += row["recorded_gpu_ns"]
        want_count[frame] += row["recorded_executions"]
    got_ns, got_count = profile.by(leaf), profile.by(leaf, "gpu_executions")
    equal(present(got_ns), present(want_ns), "gpu_time by kernel")
    equal(present(got_count), present(want_count), "executions by kernel")


def check_views(path):
    """pprof's other views work without a warning and bill no function for another."""
    for view in ("-top", "-traces", "-tree", "-peek=kernel_07", "-tags", "-comments"):
        pprof_raw.pprof(view, path=path)
    listed = pprof_raw.pprof("-top", "-focus=kernel_03", path=path)
    check("kernel_04" not in listed, "kernel_03's view shows kernel_04")
    profile = pprof_raw.load(path)
    ranges = sorted((start, limit) for start, limit, _ in profile.mappings.values())
    for (_, limit), (start, _) in zip(ranges, ranges[1:]):
        check(limit <= start, "two mappings share addresses")
    equal(profile.default, "gpu_time", "default sample type")
    for sample in profile.samples:
        for name in sample.functions:
            check("0x" not in name, f"a frame's name holds an address: {name}")


def case_ground_truth(build, mode):
    """200,000 launches of 20 kernels from 4 threads, 30 frames deep, with copies, fills and graphs."""
    bench = Bench(build, mode)
    try:
        load = OtherLoad()
        path, summary, truth, _ = bench.run(
            bench.workload("--threads", 4, "--launches", 200000, "--rate", 50000, "--main", "--memcpy-every", 50, "--memset-every", 70,
                           "--graph-every", 500, "--driver-every", 5),
            FAKE_CUDA_INSTANT=1)
        others = load.cores()
        bench.take_programs_away()
        equal(truth["recorded_executions"], truth["executions"], "executions recorded since the first launch")
        check_accounting(summary, truth["executions"])
        profile = pprof_raw.load(path)
        equal(profile.total(), truth["gpu_ns"], "gpu_time in all")
        equal(profile.total("gpu_executions"), truth["executions"], "executions in all")
        check_kernels(profile, truth)
        share = check_stacks(profile, truth)
        check_views(path)
        graph = [s for s in profile.samples if "[cuda graph]" in s.functions]
        want_graph = sum(r["gpu_ns"] for r in truth["rows"] if r.get("graph"))
        equal(sum(s.values["gpu_time"] for s in graph), want_graph, "gpu_time under [cuda graph]")
        rate = truth["executions"] / (summary["duration_ns"] / 1e9)
        print(f"mode {mode or 'default'} ({summary['attach']}): {truth['executions']} executions at {rate:,.0f}/s, "
              f"{share:.3%} of gpu_time on right stacks")
        # The forced fallbacks and sanitizers are slower by nature; the default must keep up on a machine
        # that it has for itself. On one that others use as well, the rate tells of them.
        if others > 0.2:
            print(f"others kept {others:.1f} cores busy: its rate is not judged")
        elif not mode and not bench.sanitized():
            check(rate >= 150000, f"{rate:,.0f} executions/s: the main job is 200,000, at least 150,000 are due")
    finally:
        bench.close()


def check_source_views(bench, path, truth):
    """-weblist bills every function and kernel what it caused, with source lines (alpha) and without any
    (beta, gamma, the kernels), and no other; with the binaries at hand and without."""
    want = collections.Counter()
    for row in truth["rows"]:
        for name in set(row["stack"]):
            want[name] += row["gpu_ns"]
    want = {name: (0, ns) for name, ns in want.items() if re.match("(alpha|beta|gamma)_", name)}
    functions = "^(alpha|beta|gamma)_"
    # Where pprof finds the binaries it takes their line tables and leaves out what has none.
    equal(pprof_raw.weblist(functions, path), {name: sums for name, sums in want.items() if name.startswith("alpha_")},
          "-weblist with the binaries")
    bench.take_programs_away()
    equal(pprof_raw.weblist(functions, path), want, "-weblist of the CPU's functions")
    alone = "alpha_left_3"
    equal(pprof_raw.weblist(f"^{alone}$", path), {alone: want[alone]}, "-weblist of one function")
    kernels = collections.Counter()
    for row in truth["rows"]:
        if found := re.fullmatch(r"_Z9(kernel_\d+)Pfi", kernel_frame(row)):
            kernels[found[1]] += row["gpu_ns"]
    check(kernels, "no kernel of a plain name")
    equal(pprof_raw.weblist(r"^kernel_\d+$", path), {name: (ns, ns) for name, ns in kernels.items()},
          "-weblist of the kernels")
    for file in {f.file for s in pprof_raw.load(path).samples for f in s.frames if f.function.startswith("alpha_")}:
        check(os.path.isabs(file) and file.endswith("tests/e2e/workload/alpha.cc"), f"source of alpha: {file}")


def case_every_launch(build, mode):
    """Every launch drawn: each execution joins its own launch, none is estimated."""
    bench = Bench(build, mode)
    launches, rate = (2000, 20) if bench.stacks_are_large() else (20000, 1000)
    try:
        path, summary, truth, _ = bench.run(
            bench.workload("--threads", 4, "--launches", launches, "--rate", rate, "--graph-every", 100, "--memcpy-every", 10),
            "--stack-rate", "all", FAKE_CUDA_INSTANT=1)
        check_accounting(summary, truth["executions"], exact_only=True)
        profile = pprof_raw.load(path)
        check_kernels(profile, truth)
        # Exact: per stack and kernel, not only in sum.
        stacks = {tuple(r["stack"]) for r in truth["rows"]}
        names = {n for stack in stacks for n in stack}
        want = collections.Counter()
        for row in truth["rows"]:
            want[tuple(row["stack"]), kernel_frame(row)] += row["gpu_ns"]
        got = profile.by(lambda s: (tuple(f for f in s.functions if f in names), leaf(s)))
        equal(present(got), present(want), "gpu_time by stack and kernel")
        check_source_views(bench, path, truth)
    finally:
        bench.close()


def case_sampling(build, mode):
    """p below 0.1 and at least 20,000 draws: every stack's share within 2 points and 4 standard errors
    of the truth, with a thread whose rate changes 100-fold and call paths that follow from their place
    in a burst. The draws are of a rate, so the runs are of a time."""
    bench = Bench(build, mode)
    rate, stack_rate = (40000, "2000") if bench.stacks_are_large() else (15000, "500")
    try:
        path, summary, truth, _ = bench.run(
            bench.workload(*bench.threads(4), "--launches", 0, "--seconds", 12, "--rate", rate, "--bursts"),
            "--stack-rate", stack_rate, FAKE_CUDA_INSTANT=1, GPU_PROFILED_SEED=20261129)
        check_shares(path, summary, truth)
        path, summary, truth, _ = bench.run(
            bench.workload(*bench.threads(1), "--launches", 0, "--seconds", 24, "--rate", 1000, "--bursts", "--rate-steps"),
            "--stack-rate", "2000", FAKE_CUDA_INSTANT=1, GPU_PROFILED_SEED=7)
        # 99 of 100 launches are of the fast half of the time. Those of the slow half, 1,000 a second,
        # are drawn each and stand for themselves, and so do the draws of the first moments after each
        # step, before p has followed the rate: of 54,000 draws the 2,000 a second in 12 s stand for
        # the rest.
        check_shares(path, summary, truth, most_draws=2000 * 12)
    finally:
        bench.close()


def check_shares(path, summary, truth, most_draws=math.inf, points=0.02):
    shim = summary["targets"][0]["shim"]
    drawn, p = shim["launches_drawn"], shim["launches_drawn"] / shim["launches_seen"]
    draws = min(drawn, most_draws)
    check(draws >= 20000 and p <= 0.1, f"{draws} draws that count, p {p:.3f}: the case does not test what it should")
    check_accounting(summary, truth["executions"])
    profile = pprof_raw.load(path)
    equal(profile.total(), truth["gpu_ns"], "gpu_time in all")
    stacks = {tuple(r["stack"]) for r in truth["rows"]}
    names = {n for stack in stacks for n in stack}
    want = collections.Counter()
    for row in truth["rows"]:
        want[tuple(row["stack"])] += row["gpu_ns"]
    got = profile.by(lambda s: tuple(f for f in s.functions if f in names))
    total, worst, most = truth["gpu_ns"], 0.0, 0.0
    for stack in stacks | set(got):
        share, found = want[stack] / total, got[stack] / total
        # A draw's time varies with its kernel as well: the kernels' durations spread by up to their
        # mean, which at most doubles the variance of the count.
        error = math.sqrt(2 * max(share, 1 / draws) * (1 - share) / draws)
        worst, most = max(worst, abs(found - share) / error), max(most, abs(found - share))
        check(abs(found - share) <= points, f"{stack[-1:]}: share {found:.3%}, truth {share:.3%}")
        check(abs(found - share) <= 4 * error, f"{stack[-1:]}: share {found:.3%}, truth {share:.3%}, "
              f"{abs(found - share) / error:.1f} standard errors")
    print(f"{draws} draws that count (p = {p:.3f}) over {len(stacks)} stacks: at most {worst:.1f} standard errors and "
          f"{100 * most:.2f} points")


def right_pairs(profile, truth):
    """The share of gpu_time on a stack from which the truth knows that kernel launched."""
    pairs = {(tuple(row["stack"]), kernel_frame(row)) for row in truth["rows"]}
    names = {name for stack, _ in pairs for name in stack}
    missed = collections.Counter()
    for sample in profile.samples:
        if (tuple(f for f in sample.functions if f in names), leaf(sample)) not in pairs:
            missed[leaf(sample), *sample.functions[-4:-1]] += sample.values["gpu_time"]
    share = 1 - sum(missed.values()) / profile.total()
    check(share >= 0.995, f"{share:.4%} of gpu_time on right stacks; wrong: {missed.most_common(5)}")
    return share


def case_rare_kernels(build, mode):
    """A thread floods the GPU with one kernel, then launches 19 others, 300 times each in one burst,
    and hardly ever a graph: each of them has its stacks, from the start and in a late attach."""
    bench = Bench(build, mode)
    flood = (*bench.threads(1), "--rate", 50000, "--flood", 20000, "--graph-every", 2000, "--memcpy-every", 3000)
    try:
        path, summary, truth, _ = bench.run(bench.workload("--launches", 25700, *flood), FAKE_CUDA_INSTANT=1)
        check_accounting(summary, truth["executions"])
        profile = pprof_raw.load(path)
        check_kernels(profile, truth)
        share = right_pairs(profile, truth)
        shim = summary["targets"][0]["shim"]
        p = shim["launches_drawn"] / shim["launches_seen"]
        check(p < 0.1, f"p = {p:.3f}: the case does not test what it should")
        target = bench.start_target("--launches", 0, *flood, FAKE_CUDA_INSTANT=1)
        # The flood and the bursts come round every 25,700 launches.
        path, summary, _ = bench.attach_for(target.pid, 100000)
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
        truth = read_truth(bench.truth_file())
        profile = pprof_raw.load(path)
        equal(profile.total(), truth["recorded_gpu_ns"], "gpu_time while attached")
        late = right_pairs(profile, truth)
        print(f"p = {p:.3f}; {share:.3%} of gpu_time on right stacks from the start, {late:.3%} attached late")
    finally:
        bench.close()


def case_late_attach(build, mode):
    """Attach, detach, attach again to one running process; then the daemon is killed."""
    bench = Bench(build, mode)
    try:
        target = bench.start_target("--threads", 4, "--launches", 0, "--rate", 5000, "--graph-every", 100,
                                    "--memcpy-every", 20, FAKE_CUDA_INSTANT=1)
        received = time_ns = 0
        for turn in range(8):
            path, summary, _ = bench.attach_for(target.pid, 4000, name=f"turn{turn}")
            executions = summary["total"]["executions"]
            check_accounting(summary, executions["received"])
            profile = pprof_raw.load(path)
            received += profile.total("gpu_executions")
            time_ns += profile.total()
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
        truth = read_truth(bench.truth_file())
        # No loss outside of the gaps: what CUPTI owed a record for is what arrived.
        equal(received, truth["recorded_executions"], "executions over all turns")
        equal(time_ns, truth["recorded_gpu_ns"], "gpu_time over all turns")
        check(truth["executions"] > truth["recorded_executions"], "there were no gaps")
        print(f"8 turns: {received} of {truth['executions']} executions, none lost while attached")
    finally:
        bench.close()


def case_daemon_killed(build, mode):
    """kill -9 of the daemon: the shim disarms when the lease ends, and another daemon can attach."""
    bench = Bench(build, mode)
    try:
        target = bench.start_target("--threads", 2, "--launches", 0, "--rate", 2000, FAKE_CUDA_INSTANT=1)
        for _ in range(2):
            daemon = bench.spawn([str(bench.daemon), "--pid", str(target.pid), "-o", str(bench.dir / "x.pb.gz")],
                                 bench.env(), stderr=subprocess.DEVNULL)
            wait_for_state(target.pid, STATE_TRACING)
            daemon.kill()
            daemon.wait()
            wait_for_state(target.pid, STATE_IDLE)
            check(not list(bench.dir.glob("*.pb.gz*")), "a killed daemon left a half file")
        _, summary, _ = bench.attach_for(target.pid, 100)
        check(summary["total"]["executions"]["received"] >= 100, "nothing after the kill")
        wait_for_state(target.pid, STATE_IDLE)
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
        cupti = read_truth(bench.truth_file())["cupti"]
        # Its rate is that of an idle process: nobody is subscribed, so nothing is called back.
        equal((cupti["subscribes"], cupti["unsubscribes"]), (3, 3), "subscribed and given back, killed or not")
        equal(cupti["enables"], cupti["disables"], "activity kinds enabled and disabled")
    finally:
        bench.close()


def case_neighbour(build, mode):
    """--pid A leaves B alone: no subscriber, no activity, no output."""
    bench = Bench(build, mode)
    try:
        a = bench.start_target("--threads", 2, "--launches", 0, "--rate", 2000, FAKE_CUDA_INSTANT=1,
                               FAKE_CUDA_TRUTH=bench.truth_file("a"))
        b = bench.start_target("--threads", 2, "--launches", 0, "--rate", 2000, FAKE_CUDA_INSTANT=1,
                               FAKE_CUDA_TRUTH=bench.truth_file("b"))
        path, summary, _ = bench.attach_for(a.pid, 2000)
        equal([t["pid"] for t in summary["targets"]], [a.pid], "targets")
        equal(status(b.pid), (STATE_IDLE, 0, 0), "B's state, arms and disarms")
        for process in (a, b):
            process.send_signal(signal.SIGTERM)
            equal(process.wait(PATIENCE), 0, "a target's exit status")
        truth_a, truth_b = read_truth(bench.truth_file("a")), read_truth(bench.truth_file("b"))
        equal(truth_b["cupti"]["subscribes"], 0, "B's subscriptions")
        equal(truth_b["recorded_executions"], 0, "B's recorded executions")
        equal(pprof_raw.load(path).total(), truth_a["recorded_gpu_ns"], "A's gpu_time")
    finally:
        bench.close()


def children_of(pid):
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def case_short_runs(build, mode, runs=60):
    """Start/exit cycles of a short process under `run` with various endings: exit status kept, file
    written, no zombie, no descriptor left behind."""
    bench = Bench(build, mode)
    try:
        fds = len(os.listdir("/proc/self/fd"))
        for turn in range(runs):
            wanted = turn % 4 * 3
            profile = bench.dir / f"short{turn}.pb.gz"
            done = subprocess.run(
                [str(bench.daemon), "run", "--shim", str(bench.shim), "-o", str(profile), "--",
                 *bench.workload(5, wanted, name="workload_short")],
                env=bench.env(FAKE_CUDA_TRUTH=bench.truth_file()), cwd=bench.dir, capture_output=True, text=True,
                timeout=120, check=False)
            equal(done.returncode, wanted, f"turn {turn}: exit status ({done.stderr})")
            truth = read_truth(bench.truth_file())
            equal(pprof_raw.load(profile).total("gpu_executions"), truth["executions"], f"turn {turn}: executions")
            profile.unlink()
        equal(children_of(os.getpid()), [], "children left")
        equal(len(os.listdir("/proc/self/fd")), fds, "descriptors")
        print(f"{runs} runs, every exit status and every execution right")
    finally:
        bench.close()


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, lambda function, options: function(options.build, options.mode),
                            mode={"default": "", "help": "fallbacks to force, as in GPU_PROFILED_DEBUG_FALLBACK"}))
