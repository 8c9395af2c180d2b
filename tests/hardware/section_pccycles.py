# SPDX-License-Identifier: Apache-2.0
"""pccycles: PC sampling switched on and off under full launch load, in each tier; during graph capture.

Seconds on an H200 (estimated): a cycle is 0.35 to 0.6 (enabling takes 67 to 117 ms, disabling 50, the shim looks
at its control page 5 to 10 times a second), each fourth serialized one waits for a window too: 100 continuous,
130 serialized, 55 under capture, 40 for the other CUPTIs. On one GPU one after the other, 325; on two GPUs 200.
Each target has a limit of its own; one that hangs is killed, and the others go on."""
import concurrent.futures
import json
import time

import pc_checks
import section_cycles
import section_w2 as w2
from harness import Process, wait_for_file
from section_pc import affords
from shim_control import TIER_CONTINUOUS, TIER_OFF, TIER_SERIALIZED, TIER_TRACE, NoShim, Target

CYCLES = 200
CAPTURE_CYCLES = 100
OTHER_CYCLES = 20
# No graph: serialized sampling refuses once one ran. A serialized window of tiny kernels alone has no samples.
LOAD = ["--seconds", 1000, "--graphs", 0, "--pairs", 20, "--mix", 64]
# A serialized window opens half a second after sampling was enabled: to wait for it each time would double the time.
PACE = {TIER_CONTINUOUS: {}, TIER_SERIALIZED: {"window_every": 4, "drain_every": 40}}
NAMES = {TIER_CONTINUOUS: "continuous", TIER_SERIALIZED: "serialized"}
# CUPTI below this excludes PC sampling beside kernel activity, and the shim says so.
OLDEST_CUPTI = 27


def drive(bench, target, steps, limit):
    """Runs the (cycles, tier, base) of `steps` on a target. (cycles done, last status, error)."""
    done, status, error = 0, {}, ""
    deadline = time.monotonic() + min(limit, max(bench.left() - 10, 1))
    control = None
    try:
        control = Target.wait_for(target.pid, 30)
        control.wait_state(("idle", "tracing"), 30)
        for count, tier, base in steps:
            done += control.pc_cycles(count, tier, base=base, deadline=deadline, **PACE[tier])
        control.request(TIER_OFF)
        status = control.wait_state(("idle",), 15)
    except (NoShim, TimeoutError, OSError) as problem:
        error = str(problem)
        done += control.cycles_done if control else 0
    if control:
        control.close()
    return done, status, error


def show(done, status, error):
    text = f"{done} cycles" + (f"; {error}" if error else "")
    if status:
        pc = status["pc"]
        text += f"; {pc['enables']} enables, {pc['disables']} disables, {pc['windows']} windows, {pc['drains']} drains, " \
                f"{pc['healed']} healed, CUPTI {status['cupti']}"
    return text


def under_load(bench, name, tier, gpu, count, cupti=None, limit=150):
    """Half of the cycles from idle, half from tracing. `limit`: seconds."""
    if not affords(bench, name, 30):
        return
    values = {"CUDA_VISIBLE_DEVICES": gpu}
    if cupti:
        values["GPU_PROFILED_CUPTI_PATH"] = cupti
    target = Process([bench.w2, *LOAD], bench.shim_env(**values))
    started = time.monotonic()
    done, status, error = drive(bench, target, [(count // 2, tier, TIER_OFF),
                                                (count - count // 2, tier, TIER_TRACE)], limit)
    took = time.monotonic() - started
    alive = target.alive()
    if alive and not error:
        samples_afterwards(bench, name, target, NAMES[tier])
    target.popen.terminate()
    finished = target.finish(10)
    text = show(done, status, error) + f"; {took:.0f} s" + ("" if alive else f"; target: {finished.why()}")
    if done < count and alive and not error:
        bench.report.add(name, text + "; the time was over", f"{count}, no hang, no crash", "not run")
        return
    launched = bool(finished.out.strip())
    bench.report.require(name, done == count and alive and launched and not error and not finished.hung, text,
                         f"{count}, no hang, no crash")


def samples_afterwards(bench, name, target, tier):
    """After all those cycles an attach still yields samples."""
    summary = bench.path(".json")
    done = bench.run(bench.attached(target.pid, bench.path(".pb.gz"), summary, ("--pc-sampling", tier, "--duration", "2s")), 40)
    found = json.loads(summary.read_text()) if done.ok() else None
    samples = pc_checks.shim_count(found, "samples")
    bench.report.require(f"{name}: an attach afterwards", samples > 0,
                         f"{samples} samples, {pc_checks.show_state(found)}" if done.ok() else done.why(), "samples")


def under_capture(bench, gpu, limit=120):
    """Continuous cycles while graphs are captured and replayed. Serialized sampling has to refuse there."""
    name = "pc cycles during torch.cuda.graph capture"
    if not affords(bench, name, 45):
        return
    gate = bench.gate_directory()
    target = Process(bench.python("capture.py", "--gate", gate), bench.shim_env(CUDA_VISIBLE_DEVICES=gpu))
    done, status, error = 0, {}, "the workload did not start"
    refused = None
    if wait_for_file(gate / "ready", target, 90):
        done, status, error = drive(bench, target, [(CAPTURE_CYCLES, TIER_CONTINUOUS, TIER_OFF)], limit)
        if not error:
            refused = refusal(target.pid)
    (gate / "stop").touch()
    finished = target.finish(40)
    result = (finished.lines() or [{}])[-1]
    text = show(done, status, error) + f" over {result.get('captures')} captures; of {result.get('replays')} replays " \
        f"{result.get('wrong')} wrong, {result.get('unequal')} not bit-equal" + ("" if finished.ok() else f"; {finished.why()}")
    right = finished.ok() and result.get("wrong") == 0 and result.get("unequal") == 0
    if done < CAPTURE_CYCLES and right and not error:
        bench.report.add(name, text + "; the time was over", f"{CAPTURE_CYCLES}, replays bit-equal", "not run")
    else:
        bench.report.require(name, done == CAPTURE_CYCLES and right and not error, text, f"{CAPTURE_CYCLES}, replays bit-equal")
    if refused is not None:
        bench.report.require("serialized during graph replays", refused.startswith("refused (graph"), refused,
                             "refused for graphs")


def refusal(pid):
    """Asks for serialized sampling where graphs run; what the shim says."""
    control = Target(pid)
    try:
        control.lock()
        control.request(TIER_SERIALIZED, 30_000)
        status = control.wait_until(lambda s: s["pc_state"] == "refused", 15, "refused")
        control.request(TIER_OFF)
        control.wait_state(("idle",), 15)
        return f"refused ({status['pc_reason']}: {status['pc_text']})"
    except (NoShim, TimeoutError, OSError) as problem:
        return str(problem)
    finally:
        control.close()


def on_old_cupti(bench, version, path):
    """Below 12.9 PC sampling is refused with the reason, and tracing goes on."""
    name = f"PC sampling asked for on {section_cycles.label(version, path)}"
    target = Process([bench.w2, *LOAD], bench.shim_env(GPU_PROFILED_CUPTI_PATH=path))
    text, good = "", False
    try:
        control = Target.wait_for(target.pid, 30)
        control.lock()
        control.request(TIER_CONTINUOUS)
        status = control.wait_until(lambda s: w2.is_tracing(s) and s["pc_state"] == "refused", 20, "tracing, PC refused")
        text = f"{status['state']}, {status['pc_state']} ({status['pc_reason']}: {status['pc_text']})"
        good = status["pc_reason"] == "cupti-too-old" and target.alive()
    except (NoShim, TimeoutError, OSError) as problem:
        text = str(problem)
    target.popen.terminate()
    target.finish(10)
    bench.report.require(name, good, text, "tracing, refused: cupti-too-old")


def run(bench):
    numbers = bench.gpus()
    bench.report.fact("GPUs", len(numbers))
    jobs = [lambda gpu: under_load(bench, "200 continuous on/off cycles under full load", TIER_CONTINUOUS, gpu, CYCLES),
            lambda gpu: under_load(bench, "200 serialized on/off cycles under full load", TIER_SERIALIZED, gpu, CYCLES,
                                   limit=220),
            lambda gpu: under_capture(bench, gpu)]

    def on_gpu(index):
        for job in jobs[index::len(numbers)]:
            job(numbers[index])

    # One after the other on a GPU: whether two processes may sample one GPU at a time is CUPTI's affair.
    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        waiting = [pool.submit(on_gpu, index) for index in range(min(len(numbers), len(jobs)))]
        for one in waiting:
            one.result()
    if affords(bench, "PC sampling on the machine's other CUPTIs", 45):
        for version, path in section_cycles.libcuptis(bench):
            label = section_cycles.label(version, path)
            if version < OLDEST_CUPTI:
                on_old_cupti(bench, version, path)
            else:
                under_load(bench, f"{OTHER_CYCLES} continuous cycles on {label}", TIER_CONTINUOUS, numbers[0], OTHER_CYCLES,
                           cupti=path, limit=25)
