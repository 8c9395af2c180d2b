# SPDX-License-Identifier: Apache-2.0
"""cycles: arm and disarm under full load on every CUPTI of the machine; during graph capture; 20 runs."""
import concurrent.futures
import functools
import glob
import os
import pathlib
import re
import time

import section_w2 as w2
from harness import Process, wait_for_file
from shim_control import NoShim, Target

CYCLES = 200
CAPTURE_CYCLES = 100
RUNS = 20
# By version note or file name; the same library under two names is tried once.
PATTERNS = ("/usr/local/cuda*/lib64/libcupti.so.*", "/usr/local/cuda*/extras/CUPTI/lib64/libcupti.so.*",
            "/usr/local/cuda*/targets/*/lib/libcupti.so.*", "/opt/**/nvidia/*/lib/libcupti.so.*",
            "/usr/**/site-packages/nvidia/*/lib/libcupti.so.*", "/usr/**/dist-packages/nvidia/*/lib/libcupti.so.*",
            "/opt/**/triton/backends/nvidia/lib/cupti/libcupti.so.*", "/usr/**/triton/backends/nvidia/lib/cupti/libcupti.so.*",
            "/opt/nvidia/nsight-compute/**/libcupti.so.*", "/usr/local/cuda*/nsight-compute*/**/libcupti.so.*")


@functools.cache  # each is started to be asked its version
def libcuptis(bench, carried=False):
    """[(version as the listener reads it, path)], each release once; 10.x and 11.0 to 11.7 are too old to be promised.

    carried: those of BUNDLE/cupti/ too, which the machine need not have."""
    patterns = PATTERNS + ((f"{bench.bundle}/cupti/*/libcupti.so.*",) if carried else ())
    files = {}
    for pattern in patterns:
        for path in glob.glob(pattern, recursive=True, include_hidden=True):
            real = os.path.realpath(path)
            files.setdefault(real, path)
    found = {}
    for real in sorted(files):
        out = bench.path(".listener.json")
        done = bench.run([bench.w2, "--rounds", 1, "--tiny", 10, "--pairs", 1, "--graphs", 1, "--driver", 1], 40,
                         {**bench.listener_env("load", out), "LISTENER_CUPTI": real})
        if done.ok() and out.exists():
            version = w2.truth.listener_counts(out)["cupti"]
            if version >= 18:
                found.setdefault((version, is_carried(bench, real)), (version, real))  # 12.0 answers 11.8's version
        elif is_carried(bench, real):
            bench.report.add(f"a listener on {real.removeprefix(str(bench.bundle))}", done.why(), "", "measured")
    return sorted(found.values())


def is_carried(bench, path):
    return bench.bundle in pathlib.Path(path).parents


def label(version, path):
    name = re.search(r"(?:cupti/([^/]+)/)?libcupti\.so\.(.+)$", path)
    return f"CUPTI {version} ({name.group(1) or name.group(2) if name else path})"


def cycle_one(bench, version, path):
    """200 cycles on one CUPTI while w2 launches at full rate."""
    name = f"cycles on {label(version, path)}"
    target = Process([bench.w2, "--seconds", 1000], bench.shim_env(GPU_PROFILED_CUPTI_PATH=path))
    done, error, status = 0, "", {}
    try:
        control = Target.wait_for(target.pid, 30)
        control.wait_state(("idle", "tracing"), 30)
        done = control.cycles(CYCLES, deadline=time.monotonic() + min(170, bench.left() - 10))
        status = control.status()
    except (NoShim, TimeoutError, OSError) as problem:
        error = str(problem)
    before = target.alive()
    target.popen.terminate()
    finished = target.finish(10)
    crashed = not before or finished.hung
    text = f"{done} cycles" + (f"; {error}" if error else "") + (f"; target: {finished.why()}" if crashed else "")
    if status:
        text += f"; {status['arms']} arms, {status['disarms']} disarms, CUPTI {status['cupti']}"
    enough = done == CYCLES and not error and not crashed
    bench.report.require(name, enough and status.get("cupti") == version, text, f"{CYCLES}, no hang, no crash")


def capture_cycles(bench):
    gate = bench.gate_directory()
    target = Process(bench.python("capture.py", "--gate", gate), bench.shim_env())
    done, error = 0, ""
    try:
        if not wait_for_file(gate / "ready", target, 90):
            error = "the workload did not start"
        else:
            done = Target.wait_for(target.pid, 10).cycles(CAPTURE_CYCLES, deadline=time.monotonic() + bench.left() - 20)
    except (NoShim, TimeoutError, OSError) as problem:
        error = str(problem)
    (gate / "stop").touch()
    finished = target.finish(40)
    lines = finished.lines()
    result = lines[-1] if lines else {}
    good = done == CAPTURE_CYCLES and not error and finished.ok() and result.get("wrong") == 0
    text = f"{done} cycles over {result.get('captures')} captures, {result.get('wrong')} of {result.get('replays')} " \
           f"replays wrong" + (f"; {error}" if error else "") + ("" if finished.ok() else f"; {finished.why()}")
    bench.report.require("cycles during torch.cuda.graph capture", good, text, f"{CAPTURE_CYCLES}, replays right")


def repeated(bench, name, command, timeout, workers):
    """RUNS runs, several at a time; how many ended well. With less time left than they may need, what the
    budget cuts off would look like a hang: not run, then."""
    if bench.left() < timeout:
        bench.report.add(name, f"{bench.left():.0f} s left", "all, no hang", "not run")
        return
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        runs = list(pool.map(lambda _: bench.run(command(), timeout), range(RUNS)))
    bad = [r.why() for r in runs if not r.ok()]
    text = f"{RUNS - len(bad)} of {RUNS} ended well, longest {max(r.seconds for r in runs):.1f} s"
    bench.report.require(name, not bad, text + (f"; {bad[0]}" if bad else ""), "all, no hang")


def run(bench):
    found = libcuptis(bench)
    bench.report.fact("libcupti found", {str(v): p for v, p in found})
    if not bench.report.require("cycles: CUPTIs of the machine", bool(found),
                                ", ".join(label(v, p) for v, p in found) or "none", "at least one"):
        return
    # At the same time: each target is a process of its own, and one GPU serves them all.
    with concurrent.futures.ThreadPoolExecutor(len(found) + 1) as pool:
        waiting = [pool.submit(cycle_one, bench, version, path) for version, path in found]
        waiting.append(pool.submit(capture_cycles, bench))
        for one in waiting:
            one.result()
    small = ["--rounds", 2, "--tiny", 5000, "--pairs", 20]
    repeated(bench, "w2 run, 20 times",
             lambda: bench.profiled([bench.w2, *small], bench.path(".pb.gz")), 60, 4)
    repeated(bench, "w2 attached for 300 ms, 20 times", lambda: attach_briefly(bench), 60, 4)
    repeated(bench, "torch run, 20 times",
             lambda: bench.profiled(bench.python("train.py", "--steps", 5), bench.path(".pb.gz")), 120, 6)


def attach_briefly(bench):
    """A shell line: w2 with the shim, attached to for a moment while it launches."""
    profile = bench.path(".pb.gz")
    return ["sh", "-c",
            'CUDA_INJECTION64_PATH="$1" "$2" --seconds 4 >/dev/null & target=$!; sleep 1.5; '
            '"$3" --pid $target --duration 300ms -o "$4"; attached=$?; wait $target && exit $attached',
            "sh", bench.shim, bench.w2, bench.daemon, profile]
