# SPDX-License-Identifier: Apache-2.0
"""ids: each execution under the function that launched it on every CUPTI, and in attaches to threads that launch.

From CUPTI 13.0 on a callback id that is switched off while a thread is in the call gives all that this thread launches
from then on one correlation id (docs/adr/0018): counts stay right, and every kernel lies under one function. stuck_ids
shows it without the shim.

Seconds on an H200: 60 in all."""
import concurrent.futures
import json

import pprof_reader
import section_apis
import section_cycles as cycles
import section_w2 as w2
import truth
from harness import Process, wait_for_file
from section_pc import run_parts

TARGETS = 8
ATTACHES = 5
MODES = ("runtime", "driver-no-activity", "driver", "arm")
UNKNOWN = 0.05  # launched before the attach, or in the last moment of it
ROUNDS = 2
BUSY = ("--seconds", 60, "--tiny", 3000, "--pairs", 20, "--graphs", 50, "--driver", 500)  # 40 ms a round
SMALL = ("--rounds", ROUNDS, "--tiny", 5000, "--pairs", 50)


def each_cupti(bench):
    command = [bench.w2, *SMALL]
    counts = w2.listen(bench, command)
    if counts is None:
        return

    def check(version, path):
        with_cupti = ["env", f"GPU_PROFILED_CUPTI_PATH={path}"]
        # 11.8 makes no driver launch callbacks here: no stacks for what goes through the driver API.
        launchers = {k: f for k, f in w2.LAUNCHERS.items() if version > 18 or k != "driver_tiny"}
        name = f"w2 on {cycles.label(version, path)}"
        run = w2.run_profiled(bench, f"{name}, run", [*with_cupti, *command], counts, stacks=version > 18)
        w2.check_launchers(bench, f"{name}, run", run, launchers)
        gate = bench.gate_directory()
        late = w2.attach_gated(bench, f"{name}, late attach", [*with_cupti, *command, "--gate", gate], gate,
                               w2.without_setup(counts), ("beat",), stacks=version > 18)
        w2.check_launchers(bench, f"{name}, late attach", late, launchers)
        apis = w2.run_profiled(bench, f"apis on {cycles.label(version, path)}, run",
                               [*with_cupti, bench.apis, "--count", 100], None, timeout=30, stacks=version > 18)
        if version > 18:
            w2.check_launchers(bench, f"apis on {cycles.label(version, path)}, run", apis, section_apis.LAUNCHERS)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for one in [pool.submit(check, *found) for found in cycles.libcuptis(bench, carried=True)]:
            one.result()


def declined(bench):
    """A CUPTI of the bundle that cannot be used here: the program runs, unprofiled and told so."""
    used = {path for _, path in cycles.libcuptis(bench, carried=True)}
    for path in sorted(str(p) for p in (bench.bundle / "cupti").glob("*/libcupti.so.*")):
        if path not in used:
            profile = bench.path(".pb.gz")
            done = bench.run(bench.profiled(["env", f"GPU_PROFILED_CUPTI_PATH={path}", bench.w2, *SMALL], profile), 60)
            bench.report.require(f"w2 with {path.removeprefix(str(bench.bundle) + '/')}, which a listener cannot use",
                                 not done.hung and done.rc >= 0, f"{done.why()}; {done.err.strip()[-300:]}", "no crash")


def attach_in_a_flood(bench):
    """ATTACHES one after the other to each of TARGETS that launch as fast as they can, all at the same time."""

    def attaches(_):
        gate = bench.gate_directory()
        target = Process([bench.w2, *BUSY, "--gate", gate], bench.shim_env())
        problems, exact, executions = [], 0, 0
        try:
            wait_for_file(gate / "ready", target, 30)
            (gate / "go").touch()
            for index in range(ATTACHES):
                profile, summary = bench.path(".pb.gz"), bench.path(".json")
                done = bench.run(bench.attached(target.pid, profile, summary, ("--duration", "400ms")), 30)
                if not done.ok():
                    problems.append(f"attach {index + 1}: {done.why()}")
                    continue
                wrong = truth.wrong_launchers(pprof_reader.read(profile), w2.LAUNCHERS, UNKNOWN)
                problems += [f"attach {index + 1}: {text}" for text in wrong]
                found = json.loads(summary.read_text())["total"]["executions"]
                executions += found["received"]
                exact += found["attributed"]["exact"]
        finally:
            target.popen.terminate()
            target.finish(10)
        return problems, executions, exact

    with concurrent.futures.ThreadPoolExecutor(TARGETS) as pool:
        results = list(pool.map(attaches, range(TARGETS)))
    problems = [text for found, _, _ in results for text in found]
    executions, exact = (sum(r[i] for r in results) for i in (1, 2))
    bench.report.require(f"{TARGETS * ATTACHES} attaches to threads that launch: launching functions",
                         not problems and executions > 0,
                         "; ".join(problems[:3]) or f"all right, {executions} executions, {exact} of them exact",
                         "every execution under the function that launched it")


def stuck_ids(bench):
    """Facts about CUPTI itself; only what the shim does ("driver", "arm") has to be harmless."""
    found = cycles.libcuptis(bench)

    def trial(job):
        version, path, mode = job
        done = bench.run([bench.stuck_ids, path, mode, 3], 20)
        lines = done.lines()
        return version, path, mode, lines[-1] if done.ok() and lines else {"error": done.why()}

    jobs = [(version, path, mode) for version, path in found if version > 18 for mode in MODES]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for version, path, mode, result in pool.map(trial, jobs):
            text = result.get("error") or f"{result['stuck']} of {result['threads']} threads stuck after " \
                                          f"{result['cycles']} cycles, {result['launches']} launches"
            name = f"ids switched inside calls, {mode}, {cycles.label(version, path)}"
            if mode in ("driver", "arm"):
                bench.report.require(name, result.get("stuck") == 0, text, "none stuck")
            else:
                bench.report.add(name, text, "", "measured")


def run(bench):
    run_parts(bench, (("w2 on each CUPTI", 25, lambda: each_cupti(bench)),
                      ("a CUPTI that cannot be used", 20, lambda: declined(bench)),
                      ("attaches to threads that launch", 25, lambda: attach_in_a_flood(bench)),
                      ("ids switched inside calls", 20, lambda: stuck_ids(bench))))
