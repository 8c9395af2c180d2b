# SPDX-License-Identifier: Apache-2.0
"""Many cycles: attach and detach, arm and disarm, start and exit, fork. Nothing may be lost, leak, hang
or change what the target does.

Run by ctest with a few cycles: endurance.py CASE --build DIR. --cycles N (or GPU_PROFILED_CYCLES)
runs the full counts: 1000 of attach_cycles, control_cycles, run_exits and attach_exits, 100 of forks.
"""

import collections
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pprof_raw
from bench import (PATIENCE, STATE_TRACING, Bench, check, check_accounting, check_identity, equal, read_truth,
                   run_named_case, status, wait_for, wait_for_memfd)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hardware"))
import pprof_reader  # noqa: E402
import shim_control  # noqa: E402

LOAD = ("--threads", 4, "--launches", 0, "--rate", 1000, "--graph-every", 50, "--memcpy-every", 20,
        "--memset-every", 30)
# What a sanitizer's allocator and shadow keep is not the target's.
SANITIZED = False


def footprint(pid):
    """(resident bytes, descriptors, threads) of a process."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    check("VmRSS" in fields, f"process {pid} has ended")
    return int(fields["VmRSS"].split()[0]) * 1024, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"])


def zombies_of(parent):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] == "Z" and int(fields[1]) == parent:
            found.append(stat.parent.name)
    return found


def processes_in(directory):
    """Whatever still runs in a folder that only the case used."""
    found = []
    for link in pathlib.Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(link) == str(directory):
                found.append(link.parent.name)
        except OSError:
            pass
    return found


def check_flat(before, after, what):
    """Descriptors and threads exactly as before; memory but for what a first use may still fault in."""
    equal(after[1:], before[1:], f"{what}: descriptors and threads")
    grown = after[0] - before[0]
    check(SANITIZED or grown <= 2 << 20, f"{what} grew by {grown / 2**20:.1f} MiB")


def end_target(bench, target):
    target.send_signal(signal.SIGTERM)
    equal(target.wait(PATIENCE), 0, "the target's exit status")
    return read_truth(bench.truth_file())


def case_attach_cycles(bench, cycles=12):
    """The shipped daemon attaches and detaches, again and again, to one process under load."""
    target = bench.start_target(*LOAD, FAKE_CUDA_INSTANT=1, FAKE_CUDA_REPORT=bench.dir / "violations")
    received = time_ns = 0
    before = None
    for turn in range(cycles):
        path, summary, _ = bench.attach_for(target.pid, 500)
        executions = summary["total"]["executions"]["received"]
        check(executions > 0, f"cycle {turn}: nothing received")
        check_accounting(summary, executions)
        profile = pprof_reader.read(path)
        equal(profile.total("gpu_executions"), executions, f"cycle {turn}: executions in the profile")
        received += executions
        time_ns += profile.total("gpu_time")
        if turn % 50 == 0:
            equal(pprof_raw.load(path).total(), profile.total("gpu_time"), "gpu_time as pprof reads it")
        if turn == min(4, cycles // 2):
            before = footprint(target.pid)
        if turn % 100 == 99:
            print(f"{turn + 1} cycles, {received} executions", flush=True)
    check_flat(before, footprint(target.pid), "the target")
    equal(status(target.pid)[1:], (cycles, cycles), "arms and disarms")
    truth = end_target(bench, target)
    equal(received, truth["recorded_executions"], "executions of all cycles")
    equal(time_ns, truth["recorded_gpu_ns"], "gpu_time of all cycles")
    equal(truth["cupti"]["subscribes"], truth["cupti"]["unsubscribes"], "subscribed and unsubscribed")
    print(f"{cycles} cycles: {received} of {truth['executions']} executions, each that CUPTI recorded")


def case_control_cycles(bench, cycles=40):
    """Arm and disarm through the control page alone, the probes unattached."""
    target = bench.start_target(*LOAD, FAKE_CUDA_INSTANT=1, FAKE_CUDA_REPORT=bench.dir / "violations")
    control = shim_control.Target.wait_for(target.pid)
    control.cycles(3, timeout=PATIENCE)
    before = footprint(target.pid)
    equal(control.cycles(cycles - 3, timeout=PATIENCE), cycles - 3, "cycles done")
    check_flat(before, footprint(target.pid), "the target")
    equal(status(target.pid)[1:], (cycles, cycles), "arms and disarms")
    cupti = end_target(bench, target)["cupti"]
    equal((cupti["subscribes"], cupti["unsubscribes"]), (cycles, cycles), "subscribed and unsubscribed")
    equal(cupti["enables"], cupti["disables"], "kinds enabled and disabled")
    equal(cupti["delivered"], cupti["queued"], "records that CUPTI gave back")
    print(f"{cycles} cycles: {cupti['delivered']} records, {cupti['buffers_completed']} buffers, none kept")


ENDINGS = [("exit", 0, 0), ("_exit", 5, 5), ("exit", 3, 3), ("abort", 0, 134), ("exit", 255, 255), ("kill", 0, 137)]


def case_run_exits(bench, cycles=60):
    """Start and exit under `run`: the status is the command's, whatever way it ends."""
    descriptors = len(os.listdir("/proc/self/fd"))
    slowest = 0.0
    for turn in range(cycles):
        how, value, wanted = ENDINGS[turn % len(ENDINGS)]
        profile, summary = bench.dir / "short.pb.gz", bench.dir / "short.json"
        bench.truth_file().unlink(missing_ok=True)
        began = time.monotonic()
        done = subprocess.run(
            [str(bench.daemon), "run", "--shim", str(bench.shim), "-o", str(profile), "--summary-json", str(summary),
             "--", *bench.workload(5, value, how, name="workload_short")],
            env=bench.env(FAKE_CUDA_TRUTH=bench.truth_file()), cwd=bench.dir, capture_output=True, text=True,
            timeout=120, check=False)
        slowest = max(slowest, time.monotonic() - began)
        equal(done.returncode, wanted, f"turn {turn} ({how}): exit status ({done.stderr})")
        total = json.loads(summary.read_text())["total"]
        # exit() runs the shim's last flush, which tells its totals; after any other end they are known
        # only where the daemon had its status page before.
        check_identity(total, known=how == "exit")
        if how == "exit":
            equal(pprof_reader.read(profile).total("gpu_executions"), read_truth(bench.truth_file())["executions"],
                  f"turn {turn}: executions")
        # A program that is gone before the daemon opened its status page leaves nothing to write.
        profile.unlink(missing_ok=how != "exit")
    equal(zombies_of(os.getpid()), [], "zombies")
    equal(processes_in(bench.dir), [], "processes left")
    equal(len(os.listdir("/proc/self/fd")), descriptors, "descriptors")
    print(f"{cycles} starts and exits under run, the slowest {slowest:.2f} s")


def launcher(plan_file, result_file):
    """The parent of many short processes: waits for a line, runs the plan one by one, waits for the end
    of its input. Results: pid, status and seconds of each."""
    anchor_env = dict(os.environ)
    plan = json.loads(pathlib.Path(plan_file).read_text())
    anchor = subprocess.Popen(plan["anchor"], env=anchor_env, stdout=subprocess.DEVNULL)
    print(anchor.pid, flush=True)
    sys.stdin.readline()
    results = []
    for step in plan["steps"]:
        began = time.monotonic()
        child = subprocess.Popen(step["command"], env=dict(anchor_env, **step["env"]))
        try:
            code = child.wait(120)
        except subprocess.TimeoutExpired:
            child.kill()
            code = "hung"
        results.append((child.pid, 128 - code if isinstance(code, int) and code < 0 else code,
                        time.monotonic() - began))
    pathlib.Path(result_file).write_text(json.dumps(results))
    print("done", flush=True)
    sys.stdin.readline()
    anchor.send_signal(signal.SIGTERM)
    return anchor.wait(60)


def run_under_attach(bench, steps, timeout):
    """Runs `steps` as children of a launcher that is attached to. Returns (results, summary, figures)."""
    plan, result = bench.dir / "plan.json", bench.dir / "results.json"
    plan.write_text(json.dumps({"anchor": bench.workload("--threads", 1, "--launches", 0, "--rate", 100),
                                "steps": steps}))
    env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(),
                    FAKE_CUDA_REPORT=bench.dir / "violations")
    parent = bench.spawn([sys.executable, __file__, "launcher", str(plan), str(result)], env,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    anchor = int(parent.stdout.readline())
    wait_for_memfd(anchor)
    profile, summary = bench.dir / "attach.pb.gz", bench.dir / "attach.json"
    daemon = bench.spawn([str(bench.daemon), "--pid", str(parent.pid), "-o", str(profile), "--summary-json",
                          str(summary)], bench.env(), stderr=(bench.dir / "stderr").open("w"))
    deadline = time.monotonic() + timeout
    while status(anchor)[0] != STATE_TRACING:
        check(daemon.poll() is None, f"the daemon ended: {(bench.dir / 'stderr').read_text()}")
        check(time.monotonic() < deadline, "the anchor was never armed")
        time.sleep(0.02)
    first = footprint(daemon.pid)
    peak = list(first)
    parent.stdin.write("go\n")
    parent.stdin.flush()
    while not result.exists():
        check(daemon.poll() is None, f"the daemon ended: {(bench.dir / 'stderr').read_text()}")
        check(time.monotonic() < deadline, "hung")
        now = footprint(daemon.pid)
        peak = [max(a, b) for a, b in zip(peak, now)]
        time.sleep(0.1)
    parent.stdout.readline()
    # The daemon lets go of what exited, each within a tick or two.
    wait_for(lambda: footprint(daemon.pid)[1] <= first[1] + 8,
             f"descriptors are given back: {first[1]} at first, now {footprint(daemon.pid)[1]}")
    last = footprint(daemon.pid)
    for owner in (parent.pid, daemon.pid):
        equal(zombies_of(owner), [], "zombies")
    parent.stdin.write("end\n")
    parent.stdin.close()
    equal(parent.wait(PATIENCE), 0, "the anchor's exit status")
    equal(daemon.wait(PATIENCE), 0, f"the daemon's exit status ({(bench.dir / 'stderr').read_text()})")
    equal(processes_in(bench.dir), [], "processes left")
    read_truth(bench.truth_file())
    return json.loads(result.read_text()), json.loads(summary.read_text()), (first, peak, last)


def tell(figures):
    (first, peak, last) = figures
    return (f"daemon {first[0] >> 20} MiB and {first[1]} descriptors at first, at most {peak[0] >> 20} MiB and {peak[1]}, "
            f"{last[0] >> 20} MiB and {last[1]} in the end")


def check_children(bench, steps, results, summary):
    """Every armed child that could write its truth: what CUPTI recorded is what arrived, by process."""
    by_pid = collections.Counter()
    for target in summary["targets"]:
        by_pid[target["pid"]] += target["executions"]["received"]
    armed = 0
    for step, (pid, code, _) in zip(steps, results):
        equal(code, step["status"], f"status of {step['command']}")
        if not pathlib.Path(step["env"]["FAKE_CUDA_TRUTH"]).exists():
            continue
        truth = read_truth(step["env"]["FAKE_CUDA_TRUTH"])
        equal(by_pid[pid], truth["recorded_executions"], f"executions of {step['command']} ({pid})")
        if "GPU_PROFILED_ARM" in step["env"]:
            equal(truth["recorded_executions"], truth["executions"], f"armed from the start: {step['command']}")
            armed += 1
    check(armed > 0, "no child was armed from its start")
    # Some of them end by _exit or a signal before the daemon has seen them: no last word of their shim.
    check_identity(summary["total"], known=False)
    for target in summary["targets"]:
        check_identity(target, known=False)


def case_attach_exits(bench, cycles=60):
    """Short processes come and go below an attached launcher, half of them armed from the start."""
    steps = []
    for turn in range(cycles):
        how, value, wanted = ENDINGS[turn % len(ENDINGS)]
        env = {"FAKE_CUDA_TRUTH": str(bench.dir / f"child{turn}.json")}
        if turn % 12 < 6:
            env["GPU_PROFILED_ARM"] = "trace"
        steps.append({"command": bench.workload(20, value, how, name="workload_short"), "status": wanted, "env": env})
    results, summary, figures = run_under_attach(bench, steps, timeout=120 + 2 * cycles)
    check_children(bench, steps, results, summary)
    first, _, last = figures
    # The processes' root is held until the profile is written, one for all: their perf maps may be in it.
    check(last[1] <= first[1] + 8, f"descriptors are not given back: {tell(figures)}")
    print(f"{cycles} starts and exits under attach, the slowest {max(r[2] for r in results):.2f} s; {tell(figures)}")


def case_forks(bench, cycles=20):
    """A process forks after init, while another of its threads launches, in every way there is."""
    steps = []
    for mode in ("exit", "_exit", "use", "exec", "raw"):
        env = {"FAKE_CUDA_TRUTH": str(bench.dir / f"forker-{mode}.json"), "GPU_PROFILED_ARM": "trace"}
        command = bench.workload(cycles, mode, name="workload_forker")
        steps.append({"command": command, "status": 0, "env": env})
    results, summary, figures = run_under_attach(bench, steps, timeout=120 + 2 * cycles)
    check_children(bench, steps, results, summary)
    print(f"5 modes with {cycles} forks under attach; {tell(figures)}")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


def run_case(function, options):
    """One case on a fresh bench."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # abort is one of the endings
    cycles = options.cycles or int(os.environ.get("GPU_PROFILED_CYCLES", 0))
    bench = Bench(pathlib.Path(options.build).resolve())
    global SANITIZED
    SANITIZED = bench.sanitized()
    try:
        function(bench, *([cycles] if cycles else []))
    finally:
        bench.close()


def main(cases, description):
    return run_named_case(cases, description, run_case, cycles={"type": int, "default": 0})


if __name__ == "__main__":
    if sys.argv[1:2] == ["launcher"]:
        sys.exit(launcher(*sys.argv[2:]))
    sys.exit(main(CASES, __doc__))
