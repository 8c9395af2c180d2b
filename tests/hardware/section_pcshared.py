# SPDX-License-Identifier: Apache-2.0
"""pcshared: one process at a time can PC-sample a GPU; what becomes of a second one, and of many switches.

Seconds on an H200 (estimated): foreign 25, two targets 30, switches 100.

Measured before it was mended: without start/stop control a second process ended with an MMU fault (CUDA error 719)
or lost its trace, and a single one ended so once in 450 disables."""
import concurrent.futures
import json
import time

import pc_checks
import section_pccycles as pccycles
from harness import Process
from section_pc import CONTINUOUS, run_parts
from shim_control import NoShim, Target

LOAD = ["--seconds", 1000, "--graphs", 0, "--pairs", 20, "--mix", 64]
SECONDS = 6  # of an attach
SWITCHES = 400  # on each GPU, as far as the time goes


def executions(summary):
    return summary["total"]["executions"]["received"] if summary else 0


def attach(bench, pids, seconds, options=()):
    """(summary or None, what gpu-profiled ended with) of an attach to processes."""
    summary = bench.path(".json")
    command = [bench.daemon, *sum((["--pid", pid] for pid in pids), []), "-o", bench.path(".pb.gz"),
               "--summary-json", summary, "--duration", f"{seconds}s", *options]
    done = bench.run(command, seconds + 40)
    return (json.loads(summary.read_text()) if done.ok() else None), done


def ends_well(bench, name, processes):
    """Ends them; none may have ended by itself."""
    alive = [p.alive() for p in processes]
    for process in processes:
        process.popen.terminate()
    texts = [process.finish(20).why() for process in processes]
    bench.report.require(f"{name}: the programs go on", all(alive), "all alive" if all(alive) else "; ".join(texts), "all")


def ready(processes):
    for process in processes:
        Target.wait_for(process.pid, 30).wait_state(("idle", "tracing"), 30)


def foreign(bench):
    """Another profiler samples the GPU: PC sampling is refused with the reason, and CUPTI is dead from then on."""
    name = "a GPU that another profiler samples"
    gpu = bench.gpus()[0]
    holder = Process([bench.w2, *LOAD], bench.listener_env("pc", CUDA_VISIBLE_DEVICES=gpu))
    target = Process([bench.w2, *LOAD], bench.shim_env(CUDA_VISIBLE_DEVICES=gpu))
    try:
        ready([target])
        time.sleep(2)
        traced, done = attach(bench, [target.pid], SECONDS)
        if not bench.report.require(f"{name}: tracing alone", traced is not None and executions(traced) > 0,
                                    str(executions(traced)) if traced else done.why(), "executions"):
            return
        sampled, done = attach(bench, [target.pid], SECONDS, CONTINUOUS)
        states = [(pc["state"], pc["reason"]) for pc in pc_checks.pc_summaries(sampled)]
        bench.report.require(f"{name}: refused", states == [("refused", "counters-busy")],
                             pc_checks.show_state(sampled) if sampled else done.why(), "counters-busy")
        states = [t.get("state") for t in (sampled or {}).get("targets", [])]
        bench.report.require(f"{name}: CUPTI is left alone", states == ["inert"],
                             f"{states}; {executions(sampled)} executions, {executions(traced)} without PC sampling", "inert")
        _, done = attach(bench, [target.pid], 2)
        bench.report.require(f"{name}: an attach afterwards says why", "restart the process" in done.err, done.why(),
                             "restart the process")
    except (NoShim, TimeoutError) as error:
        bench.report.require(f"{name}: the check", False, str(error), "no error")
    finally:
        ends_well(bench, name, [holder, target])


def two_targets(bench):
    """Two targets on one GPU: one is sampled, both are traced, and the second is sampled when the first has ended."""
    name = "two targets on one GPU"
    gpu = bench.gpus()[0]
    targets = [Process([bench.w2, *LOAD], bench.shim_env(CUDA_VISIBLE_DEVICES=gpu)) for _ in range(2)]
    try:
        ready(targets)
        summary, done = attach(bench, [t.pid for t in targets], SECONDS, CONTINUOUS)
        if not bench.report.require(f"{name}: gpu-profiled", summary is not None, "exit 0" if summary else done.why(), "exit 0"):
            return
        each = [(t["pc_sampling"]["shim"].get("samples", 0), t["pc_sampling"]["state"], t["pc_sampling"]["reason"])
                for t in summary["targets"]]
        bench.report.require(f"{name}: one is sampled", sum(samples > 0 for samples, _, _ in each) == 1, str(each), "one")
        arms = [t.get("arms") for t in summary["targets"]]
        bench.report.require(f"{name}: none lost its trace", arms == [1, 1], f"arms {arms}, {executions(summary)} executions",
                             "armed once each")
    except (NoShim, TimeoutError) as error:
        bench.report.require(f"{name}: the check", False, str(error), "no error")
    finally:
        ends_well(bench, name, targets)


def switches(bench):
    """A capturing and replaying program on every GPU at a time, sampling switched on and off."""
    wanted = pccycles.CAPTURE_CYCLES
    pccycles.CAPTURE_CYCLES = SWITCHES
    try:
        limit = min(200, bench.left() - 60)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for job in [pool.submit(pccycles.under_capture, bench, gpu, limit) for gpu in bench.gpus()]:
                job.result()
    finally:
        pccycles.CAPTURE_CYCLES = wanted


def run(bench):
    run_parts(bench, (("foreign profiler", 30, lambda: foreign(bench)),
                      ("two targets", 30, lambda: two_targets(bench)),
                      ("switches under capture", 100, lambda: switches(bench))))
