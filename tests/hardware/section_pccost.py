# SPDX-License-Identifier: Apache-2.0
"""pccost: what PC sampling costs over tracing alone, by section_cost's method, and what it gives.

Launch rate: two arms alive at a time that take turns, as there. GPU-bound work is steady from run to run, so its
arms run alone, one after the other: a process that is sampled may change the GPU for its neighbours too.
The PyTorch loop is one process, attached to in each way in turn, so that its start is paid once.

Seconds on an H200: launch rate 55, of the listener 50 each of four ways, GPU-bound 65, PyTorch 150, duties 300; 770 in all. Needed at least: 10 pairs."""
import functools
import json
import pathlib
import random
import statistics
import subprocess

import device_code as code
import pc_checks
import pprof_reader
import section_cost as cost
import section_w2 as w2
from harness import Process
from section_pc import is_sampling, run_parts
from shim_control import NoShim, Target, is_sampled_below

SETS = 10
TURNS = 20
GPU_BOUND_PAIRS = 12
GPU_BOUND = ["--rounds", 5, "--tiny", 100, "--pairs", 1500, "--graphs", 0, "--driver", 1]
TRAINING_ROUNDS = 11
TRAINING_STEPS = 250
PERIODS = (12, 14, 16, 18, 20)
DUTY_ROUNDS = 10
DUTY_STEPS = {"10": 250, "5": 250, "2.5": 500, "1": 1250}  # percent -> steps of at least one window and its pause
LAUNCHES = (("tiny_ns", "launch rate"), ("graph_us", "10-node graph"), ("driver_ns", "cuLaunchKernel"))
SAMPLES_TARGET = 1000  # a second and busy SM
CONTINUOUS = ("--pc-sampling", "continuous")


class NotSampled(Exception):
    """An arm that was to be sampled was not: its cost would be that of nothing."""


def sampled(path):
    """The summary of a run that must have been sampled."""
    summary = json.loads(path.read_text())
    if pc_checks.shim_count(summary, "samples") == 0:
        raise NotSampled(f"no samples: {pc_checks.show_state(summary)}")
    return summary


def launch_rate(bench):
    summaries = []

    def arms(bench):
        prefix, work = cost.serving(bench)
        summaries.append(bench.path(".json"))
        return {
            "tracing": (prefix + bench.profiled(work, bench.path(".pb.gz")), bench.env()),
            "continuous": (prefix + bench.profiled(work, bench.path(".pb.gz"), summaries[-1], CONTINUOUS), bench.env()),
        }

    def is_warm(running):  # the daemon's wish has reached the shim, and sampling is on
        return is_sampled_below(running["continuous"].popen.pid)

    sets, failures = cost.measure(bench, arms, SETS, TURNS, is_warm)
    unsampled = []
    for path in summaries[:len(sets)] if not failures else []:
        try:
            sampled(path)
        except (NotSampled, OSError, ValueError) as error:
            unsampled.append(str(error))
    bench.report.require("pccost: runs", not failures and not unsampled,
                         "; ".join((failures + unsampled)[:3]) or f"{len(sets)} sets ended well", "all end well, all sampled")
    bench.report.fact("pccost medians", cost.medians(sets))
    if unsampled:
        return
    for metric, what in LAUNCHES:
        cost.judge(bench, sets, f"continuous: {what} lost over tracing alone", "continuous", "tracing", metric, cost.rate_loss,
                   0.03, "<= 3 %", cost.percent)
    cost.judge_values(bench, "continuous: GPU-bound pair beside other processes",
                      [cost.pair(s, "continuous", "tracing", "pair_ms", cost.relative) for s in sets], None, "", cost.percent)


# What a bare client of CUPTI is asked to do -> its environment.
FLOORS = {
    "2^18": {"LISTENER_PERIOD": "18"},
    "2^20": {"LISTENER_PERIOD": "20"},
    "enabled, never started": {"LISTENER_PERIOD": "18", "LISTENER_TURNS": "0,1000"},
    "started a quarter of the time": {"LISTENER_PERIOD": "18", "LISTENER_TURNS": "250,750"},
    "switched on a quarter of the time": {"LISTENER_PERIOD": "18", "LISTENER_TURNS": "500,1500", "LISTENER_SWITCH": "1"},
    "switched with decoder 10 ms": {"LISTENER_PERIOD": "18", "LISTENER_TURNS": "500,1500", "LISTENER_SWITCH": "1",
                                "LISTENER_SLEEP": "10"},
}


def mean_loss(one_set, ours, theirs, metric):
    """Share of the launch rate that is lost over all turns together: a median would leave out those with a switch in them."""
    ours, theirs = (sum(turn[metric] for turn in one_set[arm]["turns"]) for arm in (ours, theirs))
    return cost.rate_loss(ours, theirs)


def floor(bench, name):
    """The same of the bare listener: what any client of CUPTI pays. Sets of its own: one process samples a GPU at a time."""

    def arms(bench):
        prefix, work = cost.serving(bench)
        outs.append(bench.path(".json"))
        return {"listener": (prefix + work, bench.listener_env("trace")),
                "sampling listener": (prefix + work, bench.listener_env("pc", outs[-1], **FLOORS[name]))}

    outs = []
    sets, failures = cost.measure(bench, arms, SETS, TURNS)
    counts = [json.loads(path.read_text()) for path in outs if path.exists()]
    samples = [c["pc_samples"] for c in counts]
    turns = [(c["pc_turns"], round(c["pc_turn_ns"] / 1e6, 2), round(c["pc_slowest_turn_ns"] / 1e6, 2)) for c in counts]
    bench.report.fact(f"bare listener, {name}: turns, mean and slowest ms", turns)
    expected = [name == "enabled, never started" or count > 0 for count in samples]
    bench.report.require(f"bare listener, {name}: runs", not failures and sets and all(expected) and len(samples) == len(sets),
                         "; ".join(failures[:3]) or f"{len(sets)} sets ended well, {samples} samples", "all end well, all sampled")
    bench.report.fact(f"bare listener, {name}: medians", cost.medians(sets))
    for metric, what in LAUNCHES:
        cost.judge_values(bench, f"bare listener, {name}: {what} lost by sampling",
                          [mean_loss(s, "sampling listener", "listener", metric) for s in sets], None, "", cost.percent)


def gpu_bound_once(bench, tier):
    """(median ms of a pair, profile path, summary path) of a run on its own."""
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    done = bench.run(bench.profiled([bench.w2, *GPU_BOUND], profile, summary, ("--pc-sampling", tier)), 60)
    times = [line["pair_ms"] for line in done.lines() if "pair_ms" in line][1:]
    if not done.ok() or not times:
        raise cost.TurnError(f"{tier}: {done.why()}")
    if tier == "continuous":
        sampled(summary)
    return statistics.median(times), profile, summary


def gpu_bound(bench):
    values, took, last = [], 0.0, None
    try:
        for index in range(GPU_BOUND_PAIRS):
            if bench.left() < took * 1.3 + 5:
                break
            start = bench.left()
            times = {}
            for tier in ("off", "continuous") if index % 2 else ("continuous", "off"):
                found = gpu_bound_once(bench, tier)
                times[tier] = found[0]
                last = found if tier == "continuous" else last
            values.append(times["continuous"] / times["off"] - 1)
            took = max(took, start - bench.left())
    except (cost.TurnError, NotSampled, OSError, ValueError) as error:
        bench.report.require("continuous: GPU-bound runs", False, str(error), "all end well, all sampled")
        return
    cost.judge_values(bench, "continuous: GPU-bound work over tracing alone", values, 0.01, "<= 1 %", cost.percent)
    if last is not None:
        samples_per_sm(bench, pprof_reader.read(last[1]), json.loads(last[2].read_text()))


def samples_per_sm(bench, profile, summary):
    """Both kernels of the pair fill the GPU: while one runs, every SM is busy."""
    busy = [s for s in profile.samples if code.short_name(code.kernel_name(s)) in ("compute", "scale_copy")]
    seconds = sum(s.values["gpu_time"] for s in busy) / 1e9
    sms = max((d["sm_count"] for t in summary["targets"] for d in t.get("devices", [])), default=0)
    rate = sum(s.values[code.PC] for s in busy) / seconds / sms if seconds and sms else 0
    bench.report.require("samples a second and busy SM at the default period", rate >= SAMPLES_TARGET,
                         f"{rate:.0f} on {sms} SMs, {pc_checks.show_state(summary)}", f">= {SAMPLES_TARGET}")


def diagnose(pid, daemon):
    """What the target's threads and the daemon do, for the log; how the daemon ended."""
    for process in (pid, daemon.pid):
        for task in sorted(pathlib.Path(f"/proc/{process}/task").glob("*")):
            try:
                print(task, *((task / name).read_text().strip() for name in ("comm", "wchan", "syscall", "stack")), flush=True)
            except OSError as error:
                print(task, error, flush=True)
    kernel = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=20, check=False).stdout.splitlines()
    print("\n".join(kernel[-15:]), flush=True)
    state = "alive" if daemon.alive() else "ended"
    daemon.interrupt()
    done = daemon.finish(10)
    print(done.out, done.err, flush=True)
    return f"daemon {state}: {done.why()}"


class Training:
    """train.py --serve, attached to for a turn in one way after the other."""

    def __init__(self, bench):
        self.bench = bench
        self.arm = cost.Arm(bench.python("train.py", "--serve"), bench.shim_env())
        self.arm.turn("20")
        self.control = Target.wait_for(self.arm.popen.pid, 30)

    def step_until(self, good, timeout=20.0):
        """Steps until `good` is true of the shim's status: it acts in launches only."""
        deadline = self.bench.left() - timeout
        while not good(self.control.status()):
            if self.bench.left() < deadline:
                status = self.control.status()
                raise cost.TurnError(f"state {status['state']}, PC sampling {status['pc_state']} {status['pc_text']}")
            self.arm.turn("5")

    def turn(self, options):
        """Milliseconds a step while attached with these options; None: nobody attached."""
        duty = options[-1] if options and "--pc-duty" in options else ""
        steps = str(DUTY_STEPS.get(duty, TRAINING_STEPS))
        if options is None:
            return self.arm.turn(steps)["step_ms"]
        profile, summary = self.bench.path(".pb.gz"), self.bench.path(".json")
        windows = self.control.status()["pc"]["windows"]

        def ready(status):
            """In its steady state: the first serialized window, which is long, is over."""
            if "off" in options:
                return w2.is_tracing(status)
            first = 2 if "serialized" in options else 1
            return is_sampling(status) and (status["pc"]["windows"] >= windows + first or status["pc_state"] == "refused")

        daemon = Process(self.bench.attached(self.arm.popen.pid, profile, summary, options), self.bench.env())
        try:
            self.step_until(ready)
            result = self.arm.turn(steps)["step_ms"]
            daemon.interrupt()
            self.step_until(lambda status: status["state"] == "idle")
            done = daemon.finish(30)
        except (cost.TurnError, NoShim, OSError) as error:
            raise cost.TurnError(f"{' '.join(options)}: {error}; {diagnose(self.arm.popen.pid, daemon)}") from error
        if not done.ok():
            raise cost.TurnError(f"gpu-profiled --pid {' '.join(options)}: {done.why()}")
        if "off" not in options:
            try:
                sampled(summary)
            except NotSampled as error:
                raise NotSampled(f"{' '.join(options)}: {error}") from error
        return result


def training_ways(index):
    """Arm -> options of round `index`: the judged ones always, the periods in turns at first, nobody now and then."""
    ways = {"tracing": ("--pc-sampling", "off"), "serialized, 4 % duty": ("--pc-sampling", "serialized")}
    if index < 2 * len(PERIODS) and index % 2 == 0:
        period = PERIODS[index // 2]
        ways[f"continuous, 2^{period}"] = (*CONTINUOUS, "--pc-period", str(period))
    if index % 3 == 0:
        ways["nobody attached"] = None
    return ways


def duty_ways(_):
    """Every arm in each round: off, tracing, continuous, serialized at four shares of the time."""
    serialized = {f"serialized, {percent} % duty": ("--pc-sampling", "serialized", "--pc-duty", percent) for percent in DUTY_STEPS}
    return {"nobody attached": None, "tracing": ("--pc-sampling", "off"), "continuous": CONTINUOUS, **serialized}


def training(bench):
    """Table: nobody attached, tracing, continuous at five periods, serialized, on the wall time of a step."""
    rounds = training_rounds(bench, TRAINING_ROUNDS, training_ways)
    table(bench, rounds, ["nobody attached", "tracing", *(f"continuous, 2^{p}" for p in PERIODS), "serialized, 4 % duty"],
          {"serialized, 4 % duty": 0.05})


def duties(bench):
    """Table: off, tracing, continuous, serialized at 10, 5, 2.5 and 1 % of the time, on the wall time of a step."""
    rounds = training_rounds(bench, DUTY_ROUNDS, duty_ways)
    table(bench, rounds, list(duty_ways(0)), {"continuous": 0.01, **{f"serialized, {p} % duty": 0.05 for p in ("2.5", "1")}})


def training_rounds(bench, count, ways_of):
    """[{arm: ms a step}] of as many rounds as the time allows, the arms of each in a random order."""
    rounds, took, error = [], 0.0, ""
    rng = random.Random(2)
    process = None
    try:
        process = Training(bench)
        for index in range(count):
            if bench.left() < took * 1.2 + 10:
                break
            start = bench.left()
            ways = list(ways_of(index).items())
            rng.shuffle(ways)
            rounds.append({name: process.turn(options) for name, options in ways})
            took = max(took, start - bench.left())
        process.arm.end()
    except (cost.TurnError, NotSampled, NoShim, OSError, ValueError) as problem:
        error = str(problem)
    finally:
        if process is not None:
            process.arm.kill()
    bench.report.require("pccost: PyTorch rounds", not error and bool(rounds), error or f"{len(rounds)} rounds",
                         "all end well, all sampled")
    return rounds


def table(bench, rounds, names, limits):
    """Each arm over tracing alone; `limits`: of the arms that have one, as a share."""
    medians = {}
    for name in names:
        with_it = [r for r in rounds if name in r and "tracing" in r]
        if not with_it:
            bench.report.add(f"PyTorch step, {name}", "no turn", "", "not run")
            continue
        medians[name] = round(statistics.median(r[name] for r in with_it), 4)
        if name == "tracing":
            continue
        limit = limits.get(name)
        cost.judge_values(bench, f"PyTorch step, {name}, over tracing alone", [r[name] / r["tracing"] - 1 for r in with_it],
                          limit, f"<= {limit * 100:.0f} %" if limit else "", cost.percent)
    bench.report.fact("PyTorch ms a step", medians)


def run(bench):
    run_parts(bench, (("continuous: launch rate over tracing alone", 60, lambda: launch_rate(bench)),
                      *((f"bare listener, {name}: launch rate lost by sampling", 50, functools.partial(floor, bench, name))
                        for name in FLOORS),
                      ("continuous: GPU-bound work over tracing alone", 50, lambda: gpu_bound(bench)),
                      ("PyTorch loop, each tier", 60, lambda: training(bench)),
                      ("PyTorch loop, duties", 60, lambda: duties(bench))))
