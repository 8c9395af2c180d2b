# SPDX-License-Identifier: Apache-2.0
"""w2: executions against CUPTI's own count, stacks that reach main, the right launching function."""
import json
import time

import pprof_reader
import truth
from harness import Process, wait_for_file
from shim_control import NoShim, Target

ROUNDS = 5
LAUNCHERS = {"tiny": "launch_tiny", "compute": "launch_pair", "scale_copy": "launch_pair",
             "graph_node": "launch_graph", "driver_tiny": "launch_driver"}
STACK_TARGET = 0.99


def listen(bench, command, timeout=60):
    """The bare listener's counts for this fixed work, or None with the reason in the report."""
    out = bench.path(".listener.json")
    done = bench.run(command, timeout, bench.listener_env(out=out, names=True))
    if not done.ok() or not out.exists():
        bench.report.require(f"listener under {command[0]}", False, done.why(), "runs")
        return None
    return truth.listener_counts(out)


def check_profile(bench, name, path, counts, skip=(), stacks=True):
    """Counts and stacks of one profile; the profile, or None."""
    try:
        profile = pprof_reader.read(path)
    except (OSError, ValueError, IndexError, EOFError) as error:
        bench.report.require(f"{name}: profile", False, f"unreadable: {error}", "readable")
        return None
    if counts is not None:
        equal, text = truth.compare_counts(profile, counts, skip)
        bench.report.require(f"{name}: executions", equal, text, "equal to the listener's")
    if stacks:
        share = truth.share_at_root(profile)
        bench.report.require(f"{name}: gpu_time on stacks that reach main or a thread's start",
                             share >= STACK_TARGET, f"{share * 100:.3f} %", ">= 99 %")
    return profile


def check_summary(bench, name, path):
    """The accounting identities that gpu-profiled itself states must hold."""
    try:
        summary = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        bench.report.require(f"{name}: summary", False, f"unreadable: {error}", "readable")
        return None
    stated = list(identities(summary))
    broken = [where or "total" for where, holds in stated if not holds]
    bench.report.require(f"{name}: identities", bool(stated) and not broken,
                         f"broken: {', '.join(broken)}" if broken else f"{len(stated)} hold", "hold to the record")
    lost = sum(lost_records(summary.get("total", {})))
    executions = summary.get("total", {}).get("executions", {})
    # A target that is let go while it launches: the forced flush hands out a kernel that has not ended.
    running = executions.get("lost_in_shim", {}).get("incomplete", 0)
    targets = len(summary.get("targets", []))
    bench.report.require(f"{name}: executions lost", lost == running <= targets,
                         f"{lost}" + (", under way at the detach" if running else ""),
                         "0 but for one a target, under way at the detach")
    bench.report.require(f"{name}: executions joined twice", executions.get("duplicates") == 0,
                         str(executions.get("duplicates")), "0")
    strange = {key: summary.get("join", {}).get(key) for key in ("executions_beside_another", "executions_of_another")}
    bench.report.require(f"{name}: ids of one launch each", set(strange.values()) == {0},
                         ", ".join(f"{key} {value}" for key, value in strange.items()), "0 and 0")
    bench.report.add(f"{name}: attribution", ", ".join(f"{k} {v}" for k, v in executions.get("attributed", {}).items())
                     + ", unattributed " + str(sum(executions.get("unattributed", {}).values())), "", "measured")
    return summary


def identities(value, where=""):
    """(place, holds) of every identity that the summary states."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key == "identity_holds":
            # null: a target that ended without its shim's last word; the total must be known.
            yield where, inner is True or (inner is None and where.startswith("targets"))
        else:
            yield from identities(inner, f"{where}.{key}" if where else str(key))


def lost_records(value, inside=False):
    """Every count below a key lost_in_shim or lost_in_ring."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        counts = inside or key in ("lost_in_shim", "lost_in_ring")
        if isinstance(inner, int) and not isinstance(inner, bool):
            if counts:
                yield inner
        else:
            yield from lost_records(inner, counts)


def attach_gated(*arguments, **named):
    """The profile of attach_both()."""
    return attach_both(*arguments, **named)[0]


def is_tracing(status):
    return status["state"] in ("tracing", "tracing+pc")


def attach_both(bench, name, command, gate, counts, skip, options=(), ready_timeout=90, ready=is_tracing,
                work_timeout=120, stacks=True):
    """Late attach around fixed work: the workload beats, is armed, works, beats, is released.

    The work begins when `ready` says so of the shim's status. (profile, summary), None where there is none."""
    target = Process(command, bench.shim_env())
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    daemon = None
    try:
        if not wait_for_file(gate / "ready", target, ready_timeout):
            done = target.finish(1)
            bench.report.require(f"{name}: workload", False, done.why(), "starts")
            return None, None
        daemon = Process(bench.attached(target.pid, profile, summary, options), bench.env())
        try:
            Target.wait_for(target.pid, 10).wait_until(ready, 20)
        except (NoShim, TimeoutError) as error:
            bench.report.require(f"{name}: armed", False, f"{error}; daemon: {daemon.finish(1).why()}", "tracing")
            return None, None
        time.sleep(0.3)  # a few beats are traced before the work
        (gate / "go").touch()
        worked = wait_for_file(gate / "done", target, min(work_timeout, max(bench.left(), 1)))
        time.sleep(0.5)
        daemon.interrupt()
        done = daemon.finish(60)
        bench.report.require(f"{name}: gpu-profiled --pid", worked and done.ok(), done.why() if not done.ok() else "exit 0",
                             "exit 0")
    finally:
        (gate / "stop").touch()
        finished = target.finish(30)
    bench.report.require(f"{name}: target ends well", finished.ok(), finished.why() if not finished.ok() else "exit 0",
                         "exit 0")
    result = check_profile(bench, name, profile, counts, skip, stacks)
    return result, check_summary(bench, name, summary)


def run_profiled(*arguments, **named):
    """The profile of run_both()."""
    return run_both(*arguments, **named)[0]


def run_both(bench, name, command, counts, skip=(), options=(), timeout=120, stacks=True):
    """(profile, summary) of `gpu-profiled run`, None where there is none."""
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    done = bench.run(bench.profiled(command, profile, summary, options), timeout)
    if not bench.report.require(f"{name}: gpu-profiled run", done.ok(), "exit 0" if done.ok() else done.why(), "exit 0"):
        return None, None
    result = check_profile(bench, name, profile, counts, skip, stacks)
    bench.keep(profile, name.replace(" ", "_").replace("/", "_") + ".pb.gz")
    return result, check_summary(bench, name, summary)


def check_launchers(bench, name, profile, expected):
    if profile is not None:
        problems = truth.wrong_launchers(profile, expected)
        bench.report.require(f"{name}: launching functions", not problems, "; ".join(problems) or "all right",
                             "every execution under the function that launched it")


def run(bench):
    command = [bench.w2, "--rounds", ROUNDS]
    counts = listen(bench, command)
    if counts is None:
        return
    bench.report.fact("w2 listener", {k: v for k, v in counts.items() if k != "names"})
    check_launchers(bench, "w2 run", run_profiled(bench, "w2 run", command, counts), LAUNCHERS)
    gate = bench.gate_directory()
    late = attach_gated(bench, "w2 late attach", [*command, "--gate", gate], gate, without_setup(counts), ("beat",))
    check_launchers(bench, "w2 late attach", late, LAUNCHERS)


def without_setup(counts):
    """What the listener counted less what the workload does before its gate: one memset of w2."""
    return {**counts, "memsets": counts["memsets"] - 1}
