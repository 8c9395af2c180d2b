# SPDX-License-Identifier: Apache-2.0
"""jobs: several processes at once, torch.profiler in a process that is attached to, a cuda_compat that cannot work.

What is launched between a workload's go and its done is fixed, and known without a listener.
Seconds on an H200: 90 in all."""
import collections
import json
import pathlib
import re
import signal
import time

import pprof_reader
import section_torch
import section_w2 as w2
import shim_control
import truth
from device_code import kernel_name
from harness import Process, wait_for_file
from section_pc import run_parts
from section_w2 import is_tracing

STEPS = 100
WORKERS = 4
ROW_KERNELS = 25  # of a spawned worker's row
RANK_LAUNCHES = 500
WORKER_KERNEL, TRAINER_KERNEL, RANK_KERNEL = "erfcx", "lgamma", "erfcx"
COMPATS = ("/usr/local/cuda/compat", "/usr/local/cuda-13.0/compat")


def launches_by_pid(profile, part):
    """pid -> executions of the kernels with `part` in their names."""
    counts = collections.Counter()
    for sample in profile.samples:
        if truth.kind_of(sample) == "kernel" and part in kernel_name(sample):
            counts[int(sample.labels.get("pid", 0))] += sample.values["gpu_executions"]
    return dict(counts)


def compare(bench, name, profile, part, want):
    if profile is not None:
        got = launches_by_pid(profile, part)
        bench.report.require(f"{name}: {part} by process", got == want, f"{got}", f"{want}")


def check_training(bench, name, start, profile, done):
    lines = [line for line in done.lines() if "rows" in line]
    if not bench.report.require(f"{name}: the job", done.ok() and len(lines) == 1, "exit 0" if done.ok() else done.why(), "exit 0"):
        return
    job = lines[0]
    compare(bench, name, profile, TRAINER_KERNEL, {job["pid"]: job["steps"]})
    rows = {int(pid): count for pid, count in job["rows"].items()}
    bench.report.require(f"{name}: workers", len(rows) == WORKERS, f"{len(rows)} gave rows", str(WORKERS))
    of_workers = {pid: count * ROW_KERNELS for pid, count in rows.items()}
    compare(bench, name, profile, WORKER_KERNEL, of_workers if start == "spawn" else {})


def read_profile(bench, name, path):
    try:
        return pprof_reader.read(path)
    except (OSError, ValueError, IndexError, EOFError) as error:
        bench.report.require(f"{name}: profile", False, f"unreadable: {error}", "readable")
        return None


def job_run(bench, name, command):
    """(profile, the job's Run) of a job under `run`."""
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    done = bench.run(bench.profiled(command, profile, summary), 120)
    w2.check_summary(bench, name, summary)
    bench.report.add(f"{name}: told", done.err.strip()[-1500:], "", "measured")
    return read_profile(bench, name, profile), done


def wait_until_traced(pid, count, timeout=60):
    """Until `count` processes at and below `pid` are traced; TimeoutError."""
    deadline = time.monotonic() + timeout
    while True:
        states = []
        for process in [pid, *shim_control.descendants(pid)]:
            try:
                target = shim_control.Target(process)
                states.append(target.status())
                target.close()
            except (shim_control.NoShim, OSError):
                pass
        if sum(is_tracing(status) for status in states) >= count:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{[status['state'] for status in states]}, {count} to be traced")
        time.sleep(0.05)


def job_attach(bench, name, command, gate, traced):
    """(profile, the job's Run) of a late attach to a job's first process, `traced` of whose processes use the GPU."""
    job = Process([*command, "--gate", gate], bench.shim_env())
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    if not wait_for_file(gate / "ready", job, 120):
        return None, job.finish(1)
    try:
        daemon = Process(bench.attached(job.pid, profile, summary), bench.env())
        try:
            wait_until_traced(job.pid, traced)
        except TimeoutError as error:
            bench.report.require(f"{name}: armed", False, str(error), "each")
        time.sleep(0.3)
        (gate / "go").touch()
        wait_for_file(gate / "done", job, min(90, max(bench.left(), 1)))
        time.sleep(0.5)
        daemon.interrupt()
        ended = daemon.finish(60)
        bench.report.require(f"{name}: gpu-profiled --pid", ended.ok(), ended.err.strip()[-1500:], "exit 0")
    finally:
        (gate / "stop").touch()
        done = job.finish(60)
    w2.check_summary(bench, name, summary)
    return read_profile(bench, name, profile), done


def data_loader(bench, start):
    command = bench.python("train_workers.py", "--start", start, "--workers", WORKERS, "--row-kernels", ROW_KERNELS, "--steps",
                           STEPS)
    check_training(bench, f"DataLoader, {start}, run", start, *job_run(bench, f"DataLoader, {start}, run", command))
    name = f"DataLoader, {start}, late attach"
    traced = 1 + (WORKERS if start == "spawn" else 0)
    check_training(bench, name, start, *job_attach(bench, name, command, bench.gate_directory(), traced))


def check_ranks(bench, name, profile, done):
    lines = [line for line in done.lines() if "ranks" in line]
    if not bench.report.require(f"{name}: the job", done.ok() and len(lines) == 1, "exit 0" if done.ok() else done.why(), "exit 0"):
        return
    ranks = lines[0]["ranks"]
    compare(bench, name, profile, RANK_KERNEL, {rank["pid"]: rank["launches"] for rank in ranks})
    if profile is None:
        return
    want = {(rank["pid"], str(rank["rank"]), uuid_text(rank["uuid"])) for rank in ranks}
    got = {(int(s.labels.get("pid", 0)), str(s.labels.get("rank")), uuid_text(str(s.labels.get("gpu_uuid"))))
           for s in profile.samples if s.values["gpu_executions"]}
    bench.report.require(f"{name}: process, rank and GPU of each sample", got == want, str(sorted(got, key=str)),
                         str(sorted(want, key=str)))


def whole_node(bench):
    """`--all`, there before the job: each process armed as its CUDA starts, nothing lost from its first launch on."""
    name = "--all, a job that starts later"
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    daemon = Process([bench.daemon, "--all", "-o", profile, "--summary-json", summary], bench.env())
    earlier = Process([bench.w2, "--seconds", 1000, "--graphs", 0, "--pairs", 20], bench.shim_env())
    try:
        wait_until_traced(earlier.pid, 1)  # it has attached
        # In its own session: not a child of what is profiled.
        job = bench.run(bench.python("train_workers.py", "--start", "spawn", "--workers", WORKERS, "--row-kernels", ROW_KERNELS,
                                     "--steps", STEPS), 90, bench.shim_env())
        short = [bench.run([bench.w2, "--rounds", "1", "--tiny", "5", "--pairs", "1"], 30, bench.shim_env()) for _ in range(3)]
    finally:
        earlier.popen.terminate()
        earlier.finish(20)
        daemon.interrupt()
        ended = daemon.finish(60)
    bench.report.require(f"{name}: gpu-profiled --all", ended.ok(), ended.err.strip()[-1500:], "exit 0")
    whole = read_profile(bench, name, profile)
    check_training(bench, name, "spawn", whole, job)
    if whole is not None:
        counted = w2.listen(bench, [bench.w2, "--rounds", "1", "--tiny", "5", "--pairs", "1"])
        by_pid = {done.pid: sum(s.values["gpu_executions"] for s in whole.samples if int(s.labels.get("pid", 0)) == done.pid)
                  for done in short}
        want = counted["kernels"] + counted["memcpys"] + counted["memsets"] if counted else None
        bench.report.require(f"{name}: three short programs", set(by_pid.values()) == {want}, str(by_pid), f"{want} each")
    w2.check_summary(bench, name, summary)


def windows(bench):
    """`run --window`: the profiles of all windows together have each of w2's executions once."""
    name = "w2, --window 500ms"
    command = [bench.w2, "--rounds", w2.ROUNDS]
    counts = w2.listen(bench, command)
    folder = bench.gate_directory()
    options = ("--window", "500ms", "--summary-json", folder / "%s.json")
    done = bench.run(bench.profiled(command, folder / "%s.pb.gz", options=options), 60)
    if not bench.report.require(f"{name}: gpu-profiled run", done.ok(), done.err.strip()[-900:], "exit 0") or counts is None:
        return
    profiles = [pprof_reader.read(path) for path in sorted(folder.glob("*.pb.gz"))]
    kinds = collections.Counter()
    for profile in profiles:
        kinds.update(truth.executions_by_kind(profile))
    want = {"kernel": counts["kernels"], "memset": counts["memsets"]}
    bench.report.require(f"{name}: executions", kinds == want and len(profiles) > 1, f"{dict(kinds)} in {len(profiles)} windows", str(want))


def profiler_in_a_pause(bench):
    """`--yield`: torch.profiler works after SIGUSR1, in a process that was traced until then; the summary tells the gap."""
    name = "torch.profiler in --yield's pause"
    alone = section_torch.profiler(bench, f"{name}, alone", bench.env(), ["before"], lambda process: None)
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    daemons = []

    def yields(process):
        daemon = Process(bench.attached(process.pid, profile, summary, ("--yield",)), bench.env())
        daemons.append(daemon)
        target = shim_control.Target.wait_for(process.pid, 20)
        try:
            target.wait_until(is_tracing, 20)
            time.sleep(1)
            daemon.popen.send_signal(signal.SIGUSR1)
            target.wait_state(("idle",), 20)
        except TimeoutError as error:
            bench.report.require(f"{name}: the pause", False, str(error), "traced, then idle")

    seen = section_torch.profiler(bench, name, bench.shim_env(), ["after"], yields)
    bench.report.require(f"{name}: its events", seen.get("after", 0) == alone.get("before") != 0, str(seen.get("after")),
                         str(alone.get("before")))
    done = daemons[0].finish(60) if daemons else None
    bench.report.require(f"{name}: the attach", done is not None and done.ok(), done.err.strip()[-900:] if done else "not run",
                         "a profile")
    try:
        gaps = [target.get("gaps") for target in json.loads(summary.read_text())["targets"]]
    except (OSError, ValueError) as error:
        gaps = [str(error)]
    bench.report.require(f"{name}: the gap", "yielded" in str(gaps), str(gaps), "told")


def uuid_text(uuid):
    return uuid.lower().removeprefix("gpu-")


def two_ranks(bench):
    """On as many GPUs as there are, in the order that CUDA_VISIBLE_DEVICES gives them: 1,0."""
    visible = ["env", f"CUDA_VISIBLE_DEVICES={','.join(reversed(bench.gpus()))}"]
    command = [*visible, *bench.python("two_ranks.py", "--count", RANK_LAUNCHES)]
    bench.report.fact("two ranks: GPUs", bench.gpus())
    check_ranks(bench, "two ranks, run", *job_run(bench, "two ranks, run", command))
    name = "two ranks, late attach"
    check_ranks(bench, name, *job_attach(bench, name, command, bench.gate_directory(), 2))


def attach_briefly(bench, pid, results):
    profile = bench.path(".pb.gz")
    done = bench.run(bench.attached(pid, profile, options=("--duration", "2s")), 40)
    executions = pprof_reader.read(profile).total("gpu_executions") if done.ok() else 0
    results.append((done.rc, executions, "" if done.ok() else " / ".join(done.err.strip().splitlines())))


def profiler_between(bench):
    """torch.profiler first used between two attaches: it works; it keeps CUPTI from then on, and the second attach says so."""
    name = "torch.profiler between two attaches"
    alone = section_torch.profiler(bench, f"{name}, alone", bench.env(), ["before"], lambda process: None)
    want = alone.get("before")
    attaches = []
    seen = section_torch.profiler(bench, name, bench.shim_env(), ["after", "later"],
                                  lambda process: attach_briefly(bench, process.pid, attaches))
    bench.report.require(f"{name}: its events", seen.get("after") == want and seen.get("later") == want,
                         f"{seen.get('after')}, after the second attach {seen.get('later')}", f"{want} each")
    first, second = (attaches + [(None, 0, "not run")] * 2)[:2]
    bench.report.require(f"{name}: the first attach", first[0] == 0 and first[1] > 0, str(first), "a profile")
    bench.report.require(f"{name}: the second attach", second[0] == 3 and "another CUPTI client" in second[2], str(second),
                         "exit 3, another CUPTI client")


def compat_that_cannot_work(bench):
    """A forward-compatibility libcuda older than the kernel module: what the process, doctor and `run` say."""
    name = "a cuda_compat that cannot work"
    compat = next((path for path in map(pathlib.Path, COMPATS) if (path / "libcuda.so.1").exists()), None)
    if compat is None:
        bench.report.add(name, "no cuda_compat on this machine", "", "not run")
        return
    text = ("import ctypes,time; cuda = ctypes.CDLL('libcuda.so.1'); print('cuInit', cuda.cuInit(0), flush=True); "
            "time.sleep(20)")
    process = Process(["/usr/bin/env", "python3", "-c", text], bench.shim_env(LD_LIBRARY_PATH=compat))
    time.sleep(3)
    done = bench.run([bench.daemon, "doctor", "--pid", process.pid], 20)
    process.popen.terminate()
    bench.report.add(f"{name}: the process", process.finish(5).out.strip(), "", "measured")
    print(done.out, flush=True)
    (bench.out / "doctor-compat.txt").write_text(done.out + f"exit status {done.rc}\n")
    bench.report.require(f"{name}: doctor", done.rc == 3 and bool(re.search("compat", done.out)), done.out.strip()[-600:],
                         "exit 3, and cuda_compat named")
    command = ["env", f"LD_LIBRARY_PATH={compat}", bench.w2, "--rounds", "1"]
    ran = bench.run(bench.profiled(command, bench.path(".pb.gz")), 40)
    bench.report.require(f"{name}: run", "compat" in ran.err, ran.err.strip()[-600:], "cuda_compat named")


def run(bench):
    run_parts(bench, (("DataLoader, forked", 60, lambda: data_loader(bench, "fork")),
                      ("DataLoader, spawned", 60, lambda: data_loader(bench, "spawn")),
                      ("two ranks", 40, lambda: two_ranks(bench)),
                      ("whole node, --all", 60, lambda: whole_node(bench)),
                      ("windows", 20, lambda: windows(bench)),
                      ("torch.profiler between", 40, lambda: profiler_between(bench)),
                      ("torch.profiler, --yield", 40, lambda: profiler_in_a_pause(bench)),
                      ("cuda_compat", 30, lambda: compat_that_cannot_work(bench))))
