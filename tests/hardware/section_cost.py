# SPDX-License-Identifier: Apache-2.0
"""cost: median of paired ratios with its 95 % bootstrap interval; "met" only if the interval's worse end
meets the target, else "not shown".

The launch rate of an untouched process on a shared host has two levels, 3.5 and 4.6 us a launch, and
changes between them within tenths of a second: runs one after the other differ by +-10 %. So the arms
are alive at the same time on one core and take turns of some 30 ms, and what is compared are turns of
the same cycle. A set of processes gives one pair: the median over its cycles."""
import json
import os
import random
import select
import shutil
import statistics
import subprocess
import time

import bootstrap

SETS = 20
MIN_SETS = 10
CYCLES = 40
WORK = ["--tiny", 4000, "--pairs", 30, "--graphs", 100, "--driver", 1000]
METRICS = ("tiny_ns", "pair_ms", "graph_us", "driver_ns")
TURN_LIMIT_SECONDS = 20
WARM_LIMIT_SECONDS = 15
# "0 on GPU-bound work" needs a resolution: a difference of this share counts as none.
GPU_BOUND_RESOLUTION = 0.002


class TurnError(Exception):
    pass


class Arm:
    """One w2 that does a round when it is told to."""

    def __init__(self, command, env):
        self.popen = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, env=env, start_new_session=True)
        self._buffer = b""

    def _line(self):
        deadline = time.monotonic() + TURN_LIMIT_SECONDS
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.popen.stdout], [], [], left)[0]:
                raise TurnError("no answer: hung")
            data = os.read(self.popen.stdout.fileno(), 65536)
            if not data:
                raise TurnError(f"ended early, exit {self.popen.wait()}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def turn(self, text=""):
        """Sends a line; the answer."""
        try:
            self.popen.stdin.write(text.encode() + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError as error:
            raise TurnError("ended early") from error
        return self._line()

    def end(self):
        """Resident KiB at the end; the process must end by itself and well."""
        self.popen.stdin.close()
        kib = self._line().get("rss_kib")
        try:
            if self.popen.wait(TURN_LIMIT_SECONDS) != 0:
                raise TurnError(f"exit {self.popen.returncode}")
        except subprocess.TimeoutExpired as error:
            raise TurnError("does not end: hung") from error
        return kib

    def kill(self):
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, 9)
            self.popen.wait()


def placement():
    """(prefix of every command, w2's options): the launching threads share one core, all else gets the
    others, in every arm alike; nothing where there are few cores."""
    cpus = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    if len(cpus) < 6 or taskset is None:
        return [], []
    return [taskset, "-c", ",".join(map(str, cpus[:-2]))], ["--cpu", cpus[-2]]


def serving(bench):
    """(prefix of every command, w2 that does a round when it is told to)."""
    prefix, pinned = placement()
    return prefix, [bench.w2, "--serve", 1, *WORK, *pinned]


def arms(bench):
    """name -> (command, environment); all do the same work."""
    prefix, work = serving(bench)
    return {
        "none": (prefix + work, bench.env()),
        "idle, modules off": (prefix + work, bench.shim_env(GPU_PROFILED_MODULES="off")),
        "idle, modules on": (prefix + work, bench.shim_env()),
        "empty hash callback": (prefix + work, bench.listener_env("hash")),
        "bare listener": (prefix + work, bench.listener_env("trace")),
        "armed": (prefix + bench.profiled(work, bench.path(".pb.gz")), bench.env()),
    }


def measure_set(bench, rng, make_arms=arms, cycles=CYCLES, is_warm=lambda running: True):
    """arm -> {"turns": [...], "rss_kib": n}; TurnError names the arm that failed. Turns count once `is_warm` says so
    of the arms by name."""
    running = {}
    try:
        for name, (command, env) in make_arms(bench).items():
            running[name] = Arm(command, env)
        turns = {name: [] for name in running}
        cycle, too_late = 0, time.monotonic() + WARM_LIMIT_SECONDS
        while cycle <= cycles:
            order = list(running)
            rng.shuffle(order)
            for name in order:
                try:
                    result = running[name].turn()
                except TurnError as error:
                    raise TurnError(f"{name}: {error}") from error
                if cycle > 0:  # the first turn waits for the process to come up
                    turns[name].append({metric: result[metric] for metric in METRICS})
            cycle += cycle > 0 or is_warm(running)
            if cycle == 0 and time.monotonic() > too_late:
                raise TurnError(f"not warm after {WARM_LIMIT_SECONDS} s")
        found = {}
        for name, arm in running.items():
            try:
                found[name] = {"turns": turns[name], "rss_kib": arm.end()}
            except TurnError as error:
                raise TurnError(f"{name}: {error}") from error
        return found
    finally:
        for arm in running.values():
            arm.kill()


def measure(bench, make_arms=arms, count=SETS, cycles=CYCLES, is_warm=lambda running: True):
    """Up to `count` sets, as far as the time goes."""
    rng = random.Random(1)
    sets, failures, took = [], [], 0.0
    for _ in range(count):
        if bench.left() < took * 1.2 + 5:
            break
        start = bench.left()
        try:
            sets.append(measure_set(bench, rng, make_arms, cycles, is_warm))
        except TurnError as error:
            failures.append(str(error))
        took = max(took, start - bench.left())
    return sets, failures


def pair(one_set, ours, theirs, metric, how):
    if metric == "rss_kib":
        return how(one_set[ours][metric], one_set[theirs][metric])
    return statistics.median(how(a[metric], b[metric])
                             for a, b in zip(one_set[ours]["turns"], one_set[theirs]["turns"]))


def judge(bench, sets, check, ours, theirs, metric, how, limit, text, show):
    """One target on a difference or ratio that should be small."""
    judge_values(bench, check, [pair(s, ours, theirs, metric, how) for s in sets], limit, text, show)


def judge_values(bench, check, values, limit, text, show):
    """The same of one value a pair; no limit: for the record only."""
    if limit is not None and len(values) < MIN_SETS or not values:
        bench.report.add(check, f"only {len(values)} pairs", text, "not shown")
        return
    middle, low, high = bootstrap.interval(values)
    bench.report.add(check, f"{show(middle)} [{show(low)}, {show(high)}], {len(values)} pairs", text,
                     "measured" if limit is None else "met" if high <= limit else "not shown")


def relative(ours, theirs):
    return ours / theirs - 1


def rate_loss(ours, theirs):
    """Share of the launch rate that is lost; both are times per launch."""
    return 1 - theirs / ours


def difference(ours, theirs):
    return ours - theirs


def percent(value):
    return f"{value * 100:+.2f} %"


def medians(sets):
    """arm -> metric -> median over everything, for the record."""
    table = {}
    for name in sets[0] if sets else ():
        table[name] = {m: statistics.median(t[m] for s in sets for t in s[name]["turns"]) for m in METRICS}
        table[name]["rss_kib"] = statistics.median(s[name]["rss_kib"] for s in sets)
    return table


def run(bench):
    sets, failures = measure(bench)
    bench.report.require("cost: runs", not failures, "; ".join(failures[:3]) or f"{len(sets)} sets ended well",
                         "all end well")
    bench.report.fact("cost medians", medians(sets))
    bench.report.fact("cost pairs", {f"{a} : {b}": [round(pair(s, a, b, "tiny_ns", relative), 4) for s in sets]
                                     for a, b in (("idle, modules off", "none"), ("armed", "bare listener"))})

    def want(*arguments):
        judge(bench, sets, *arguments)

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
