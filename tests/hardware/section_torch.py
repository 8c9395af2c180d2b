# SPDX-License-Identifier: Apache-2.0
"""torch: a training loop under run and late attach, and torch.profiler beside the idle shim."""
import time

import section_w2 as w2
from harness import Process, wait_for_file

STEPS = 60


def training(bench):
    command = bench.python("train.py", "--steps", STEPS)
    counts = w2.listen(bench, command, 120)
    if counts is None:
        return
    again = w2.listen(bench, command, 120)
    if again is not None:
        same = again["names"] == counts["names"]
        bench.report.add("torch: fixed work", "two listener runs agree" if same else "two listener runs differ",
                         "agree", "met" if same else "not shown")
    w2.run_profiled(bench, "torch run", command, counts, timeout=180)
    setup = w2.listen(bench, bench.python("train.py", "--steps", 1), 120)
    two = w2.listen(bench, bench.python("train.py", "--steps", 2), 120)
    if setup is None or two is None:
        return
    gate = bench.gate_directory()
    w2.attach_gated(bench, "torch late attach", [*command, "--gate", gate], gate, steps_alone(counts, setup, two),
                    ("bessel_j0",), ready_timeout=90)


def steps_alone(counts, one, two):
    """Counts of STEPS steps without the program's start: start = one step's run - (two - one)."""

    def start(key):
        return 2 * one[key] - two[key]

    names = {}
    for name, count in counts["names"].items():
        rest = count - (2 * one["names"].get(name, 0) - two["names"].get(name, 0))
        if rest:
            names[name] = rest
    return {**counts, **{k: counts[k] - start(k) for k in ("memcpys", "peer_memcpys", "memsets")}, "names": names}


def profiler(bench, name, env, moments, between):
    """cuda_events by moment; `between` runs after the first moment."""
    gate = bench.gate_directory()
    process = Process(bench.python("profiler.py", "--gate", gate, "--moments", ",".join(moments)), env)
    try:
        if not wait_for_file(gate / "ready", process, 90):
            bench.report.require(f"{name}: workload", False, process.finish(1).why(), "starts")
            return {}
        for index, moment in enumerate(moments):
            if index or moment == "after":
                between(process)
            (gate / moment).touch()
            wait_for_file(gate / f"{moment}.done", process, 60)
    finally:
        (gate / "stop").touch()
        done = process.finish(30)
    bench.report.require(f"{name}: ends well", done.ok(), "exit 0" if done.ok() else done.why(), "exit 0")
    return {line["moment"]: line["cuda_events"] for line in done.lines() if "moment" in line}


def torch_profiler(bench):
    """Beside the idle shim torch.profiler sees what it sees without it, before and after an attach."""
    alone = profiler(bench, "torch.profiler alone", bench.env(), ["before", "after"], lambda process: time.sleep(0.2))
    if not alone:
        return
    want = alone.get("before")
    attached = {}

    def attach(process):
        profile = bench.path(".pb.gz")
        done = bench.run(bench.attached(process.pid, profile, options=("--duration", "2s")), 40)
        attached["why"] = "profile written" if done.ok() else done.why()
        attached["rc"] = done.rc

    both = profiler(bench, "torch.profiler before and after an attach", bench.shim_env(), ["before", "after"], attach)
    bench.report.require("torch.profiler before and after, same process, shim idle",
                         both.get("before") == want and both.get("after") == want,
                         f"{both.get('before')} and {both.get('after')} CUDA events; the attach between: "
                         f"{attached.get('why')}", f"{want} each, as without the shim")
    # Kineto keeps the subscriber once it was used, so an attach in between must say busy, not break it.
    bench.report.require("attach while torch.profiler holds CUPTI", attached.get("rc") in (0, 3),
                         f"exit {attached.get('rc')}: {attached.get('why')}", "a profile, or exit 3 with the reason")
    after = profiler(bench, "torch.profiler after an attach", bench.shim_env(), ["after"], attach)
    bench.report.require("torch.profiler first used after a detach", after.get("after") == want,
                         f"{after.get('after')} CUDA events; the attach: {attached.get('why')}", f"{want}")


def run(bench):
    training(bench)
    torch_profiler(bench)
