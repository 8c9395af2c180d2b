# SPDX-License-Identifier: Apache-2.0
"""cost: interleaved pairs of runs of w2; median of the paired ratios with its 95 % bootstrap interval.

"met" only if the interval's worse end meets the target, else "not shown"."""
import os
import random
import shutil
import statistics

import bootstrap

PAIRS = 24
MIN_PAIRS = 10
COMMAND = ["--rounds", 8, "--tiny", 20000, "--pairs", 100, "--graphs", 200, "--driver", 2000]
METRICS = ("tiny_ns", "pair_ms", "graph_us", "driver_ns")
# "0 on GPU-bound work" needs a resolution: a difference of this share counts as none.
GPU_BOUND_RESOLUTION = 0.002


def placement():
    """(prefix of every command, w2's options): the launching thread gets a core of its own, all else
    the others, in every arm alike; nothing where there are few cores."""
    cpus = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    if len(cpus) < 6 or taskset is None:
        return [], []
    return [taskset, "-c", ",".join(map(str, cpus[:-2]))], ["--cpu", cpus[-2]]


def arms(bench):
    """name -> (command, environment); all run the same work."""
    prefix, pinned = placement()
    work = [bench.w2, *COMMAND, *pinned]
    return {
        "none": (lambda: prefix + work, bench.env()),
        "idle, modules off": (lambda: prefix + work, bench.shim_env(GPU_PROFILED_MODULES="off")),
        "idle, modules on": (lambda: prefix + work, bench.shim_env()),
        "empty hash callback": (lambda: prefix + work, bench.listener_env("hash")),
        "bare listener": (lambda: prefix + work, bench.listener_env("trace")),
        "armed": (lambda: prefix + bench.profiled(work, bench.path(".pb.gz")), bench.env()),
    }


def one_run(bench, command, env):
    """Medians over the run's rounds, without the first, and its resident size; None if it failed."""
    done = bench.run(command, 60, env)
    lines = done.lines()
    rounds = [line for line in lines if "round" in line][1:]
    end = next((line for line in lines if line.get("end")), None)
    if not done.ok() or not rounds or end is None:
        return None, done.why()
    result = {metric: statistics.median(line[metric] for line in rounds) for metric in METRICS}
    result["rss_kib"] = end["rss_kib"]
    return result, ""


def measure(bench, table):
    """arm -> list of results; a round in which any arm failed is left out whole and reported."""
    rng = random.Random(1)
    results = {name: [] for name in table}
    failures = []
    took = 0.0
    for _ in range(PAIRS):
        if bench.left() < took * 1.2 + 5:
            break
        start = bench.left()
        order = list(table)
        rng.shuffle(order)
        this_round = {}
        for name in order:
            command, env = table[name]
            this_round[name], why = one_run(bench, command(), env)
            if this_round[name] is None:
                failures.append(f"{name}: {why}")
        if all(this_round.values()):
            for name, result in this_round.items():
                results[name].append(result)
        took = max(took, start - bench.left())
    return results, failures


def judge(bench, results, check, ours, theirs, metric, how, limit, text, show):
    """One target on a difference or ratio that should be small."""
    pairs = min(len(results[ours]), len(results[theirs]))
    if pairs < MIN_PAIRS:
        bench.report.add(check, f"only {pairs} pairs", text, "not shown")
        return
    middle, low, high = bootstrap.paired([r[metric] for r in results[ours]], [r[metric] for r in results[theirs]], how)
    bench.report.add(check, f"{show(middle)} [{show(low)}, {show(high)}], {pairs} pairs", text,
                     "met" if high <= limit else "not shown")


def relative(ours, theirs):
    return ours / theirs - 1


def rate_loss(ours, theirs):
    """Share of the launch rate that is lost; both are times per launch."""
    return 1 - theirs / ours


def difference(ours, theirs):
    return ours - theirs


def percent(value):
    return f"{value * 100:+.2f} %"


def run(bench):
    results, failures = measure(bench, arms(bench))
    bench.report.require("cost: runs", not failures, "; ".join(failures[:3]) or "all ended well", "all end well")
    bench.report.fact("cost medians", {name: {m: statistics.median(r[m] for r in runs) for m in (*METRICS, "rss_kib")}
                                       for name, runs in results.items() if runs})
    bench.report.fact("cost runs", results)

    def want(*arguments):
        judge(bench, results, *arguments)

    want("idle, modules off: launch rate lost", "idle, modules off", "none", "tiny_ns", rate_loss, 0.01, "<= 1 %", percent)
    want("idle, modules on: per launch above an empty hash callback", "idle, modules on", "empty hash callback",
         "tiny_ns", difference, 100, "<= 100 ns", lambda v: f"{v:+.0f} ns")
    for arm in ("idle, modules off", "idle, modules on"):
        want(f"{arm}: GPU-bound work", arm, "none", "pair_ms", relative, GPU_BOUND_RESOLUTION,
             f"0 (resolution {GPU_BOUND_RESOLUTION * 100} %)", percent)
    want("armed: launch rate lost against a bare listener", "armed", "bare listener", "tiny_ns", rate_loss, 0.05, "<= 5 %",
         percent)
    want("armed: graph launch against a bare listener", "armed", "bare listener", "graph_us", rate_loss, 0.05, "<= 5 %",
         percent)
    want("armed: GPU-bound work against a bare listener", "armed", "bare listener", "pair_ms", relative, 0.01, "<= 1 %",
         percent)
    for arm, base in (("idle, modules on", "empty hash callback"), ("armed", "bare listener")):
        want(f"RSS, {arm} beside {base}", arm, base, "rss_kib", difference, 16 * 1024, "<= 16 MiB",
             lambda v: f"{v / 1024:+.1f} MiB")
