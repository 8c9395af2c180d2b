# SPDX-License-Identifier: Apache-2.0
"""End-to-end half of 10: a flood of modules, forged memfds and module tables, images that collide, graphs under serialized
sampling, two devices with one cubin."""
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import endurance_hostile
import pc_checks
import pc_sampling
import pprof_raw
import records
from bench import (PATIENCE, check, check_identity, emitted, equal, read_truth, status_page, wait_for,
                   wait_for_memfd)
from frames import CONTINUOUS, split
from many_targets import grown, mapped_twice, memory
from pc_checks import CUBINS, Oracle
from privileges import OWNER, as_user

FLOOD = 10_000
QUEUED = 110  # kernels that the fake GPU lets a stream be ahead, and as many fills
MOST_MEMORY = 256 << 20


def damaged_cubin(bench):
    """A cubin of which nothing but the head of the file is right."""
    image = bytearray((CUBINS / "inline_chain.sm_90.cubin").read_bytes())
    image[64:] = random.Random(10).randbytes(len(image) - 64)
    path = bench.dir / "wrong.cubin"
    path.write_bytes(image)
    return path


FLOOD_SESSION = """set clock_khz 1000000
module lines file={lines}
module wrong file={wrong} loaded=later
module large size=24M loaded=later
kernel chain module=lines duration=200us
kernel broken module=wrong duration=50us
pcs chain 0x70:short_scoreboard*2/1 0x190:math_pipe_throttle*12/5 0x1ea0:branch_resolving*1/1
{modules}
thread first on=main
  loop 1000000
    path a/b
    launch chain
    memset 4k
  end

thread loader
{before}
  sleep {pause}ms
  path c
  load wrong
  launch broken count=20
  load large
  unload large
{after}
  sleep 600s
"""


def write_flood(bench, before):
    """A thread that launches and is sampled beside one that loads modules as fast as it can: `before` small ones, and after a
    pause a damaged cubin, a large module and FLOOD small ones. Some are unloaded at once."""
    def loads_of(numbers):
        return "\n".join(f"  load s{i}" + (f"\n  unload s{i}" if i % 100 == 0 else "") for i in numbers)

    session = bench.dir / "flood.session"
    session.write_text(FLOOD_SESSION.format(
        lines=CUBINS / "inline_chain.sm_90.cubin", wrong=damaged_cubin(bench), pause=4000,
        modules="\n".join(f"module s{i} size=2k loaded=later" for i in range(before + FLOOD)),
        before=loads_of(range(before)), after=loads_of(range(before, before + FLOOD))))
    return session


def watch_until(daemon, done, what):
    """Peak memory of gpu-profiled until `done()` holds. Its rings are mapped twice and counted once."""
    peak, deadline = 0, time.monotonic() + PATIENCE
    while daemon.poll() is None and not done():
        check(time.monotonic() < deadline, f"not within {PATIENCE} s: {what}")
        peak = max(peak, memory(daemon.pid, "VmRSS") - mapped_twice(daemon.pid))
        time.sleep(0.02)
    return peak


def loads(pid):
    """Modules that came, those beyond the table included."""
    full = records.DROPS["module_table_full"]
    page = status_page(pid)
    in_table = int.from_bytes(page[76:80], "little")
    return in_table + int.from_bytes(page[records.DROP_TOTALS_AT + 8 * full:][:8], "little")


def flood(bench, before):
    """(summary, peak) of an attach during which FLOOD modules come, after `before` others."""
    env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file())
    target = bench.spawn(bench.player(write_flood(bench, before)), env, stdout=subprocess.DEVNULL)
    wait_for_memfd(target.pid)
    wait_for(lambda: loads(target.pid) >= before, f"{before} modules before the attach")
    path, result, errors = bench.dir / "x.pb.gz", bench.dir / "x.json", bench.dir / "stderr"
    daemon = bench.spawn([str(bench.daemon), "--pid", str(target.pid), *CONTINUOUS, "-o", str(path), "--summary-json", str(result)],
                         bench.env(), stderr=errors.open("w"))
    first_loads, first_emitted = loads(target.pid), emitted(target.pid)
    check(first_loads < before + FLOOD // 10, f"{first_loads} modules came before the attach")
    peak = watch_until(daemon, lambda: loads(target.pid) >= first_loads + FLOOD and emitted(target.pid) >= first_emitted + 3000,
                       "the flood")
    daemon.send_signal(signal.SIGINT)
    peak = max(peak, watch_until(daemon, lambda: False, "the profile"))
    equal(daemon.returncode, 0, f"the daemon's exit status ({errors.read_text()})")
    target.send_signal(signal.SIGTERM)
    equal(target.wait(PATIENCE), 0, "the target's exit status")
    truth, summary = read_truth(bench.truth_file()), json.loads(result.read_text())
    # Nothing but modules was throttled: each execution that CUPTI recorded is here, each launch record and each stack.
    # Those that were on the GPU when gpu-profiled left are counted as that.
    check_identity(summary["total"])
    executions = summary["total"]["executions"]
    losses = {reason: n for group in ("lost_in_shim", "lost_in_ring") for reason, n in executions[group].items() if n}
    in_flight = losses.pop("incomplete", 0)
    equal((losses, executions["evicted"], executions["pending"]), ({}, 0, 0), "executions lost, evicted and pending")
    check(in_flight <= 2 * QUEUED, f"{in_flight} executions were not complete")
    equal(executions["received"] + in_flight, truth["recorded_executions"], "executions, received and in flight")
    lost = {probe: losses for probe, losses in summary["targets"][0]["lost_records"].items() if probe.split("_v")[0] != "module"}
    equal(lost, {}, "lost records of other probes than module_v1")
    equal((summary["rings"]["stacks_lost"], summary["join"]["launches_evicted"]), (0, 0), "stacks lost, launches evicted")
    profile = pprof_raw.load(path)
    statuses = collections.defaultdict(set)
    for sample in pc_checks.pc_samples(profile):
        at = next(f.system_name for f in sample.frames if f.system_name in ("chain", "broken"))
        statuses[at].add(sample.labels["gpu_src_status"])
    equal(statuses["chain"], {"resolved"}, "gpu_src_status of the honest kernel")
    check(statuses["broken"] <= {"no-module"}, f"gpu_src_status of the damaged cubin's kernel: {statuses['broken']}")
    check(bench.sanitized() or peak <= MOST_MEMORY, f"the daemon grew to {peak >> 20} MiB")
    return summary, peak


def forged_table(bench):
    """A hostile process beside an honest one, both sampled: each forged entry is refused and counted, its one good image
    resolves, the honest one's lines are right."""
    honest = pc_sampling.start_session(bench, "pc_sampling")
    hostile, _, memfd = endurance_hostile.start_hostile(bench, "good", "modules", "--image", str(CUBINS / "inline_chain.sm_90.cubin"))
    path, result, errors = bench.dir / "x.pb.gz", bench.dir / "x.json", bench.dir / "stderr"
    daemon = bench.spawn([str(bench.daemon), "--pid", str(honest.pid), "--pid", str(hostile.pid), *CONTINUOUS, "-o", str(path),
                          "--summary-json", str(result)], bench.env(), stderr=errors.open("w"))
    wait_for(lambda: endurance_hostile.controller(memfd) == daemon.pid and emitted(honest.pid) >= 500, "both are controlled")
    hostile.stdin.write("go\n")
    hostile.stdin.flush()
    equal(hostile.stdout.readline(), "done\n", "the attack's answer")
    start = emitted(honest.pid)
    wait_for(lambda: daemon.poll() is not None or emitted(honest.pid) >= start + 4000, "the honest one's executions")
    daemon.send_signal(signal.SIGINT)
    equal(daemon.wait(PATIENCE), 0, f"the daemon's exit status ({errors.read_text()})")
    endurance_hostile.end_hostile(hostile)
    truth = pc_sampling.end_session(bench, honest)
    summary, profile = json.loads(result.read_text()), pprof_raw.load(path)
    theirs = next(t for t in summary["targets"] if t["pid"] == hostile.pid)
    cubins = theirs["pc_sampling"]["cubins"]
    equal((cubins["sampled"], cubins["read"], cubins["pending"]), (9, 1, 0), f"cubins of the hostile process: {cubins}")
    equal(sum(cubins["failed"].values()), 8, f"forged entries that were refused and counted: {cubins}")
    by_status = collections.Counter()
    for sample in profile.samples:
        if sample.labels["pid"].split()[0] != str(hostile.pid) or not sample.values["gpu_pc_samples"]:
            continue
        status = sample.labels["gpu_src_status"]
        by_status[status] += sample.values["gpu_pc_samples"]
        if status != "resolved":
            check(not any(f.line for f in sample.frames), f"a forged module has lines: {sample.frames}")
    equal(by_status, {"no-module": 80, "resolved": 10}, "the hostile process's samples by status")
    profile.samples = [s for s in profile.samples if s.labels["pid"].split()[0] == str(honest.pid)]
    equal(pc_checks.check_samples(profile, truth, Oracle()), {"resolved", "no-lineinfo", "no-module", "unmapped"}, "the honest one's statuses")
    return {reason: n for reason, n in cubins["failed"].items() if n}


def colliding_images(bench):
    """(A, B): two cubins of one XXH3-64 key, that differ in the file which their lines name."""
    first = grown((CUBINS / "inline_chain.sm_90.cubin").read_bytes(), 4096, random.Random(1))
    second = first.replace(b"inline_chain.cu", b"inline_chaim.cu")
    check(first != second, "the fixture names no source")
    padding = len((CUBINS / "inline_chain.sm_90.cubin").read_bytes())
    offset = int.from_bytes(first[0x28:0x30], "little") - 4096 - 8
    check(0 < offset < padding, f"padding at {offset}")
    paths = [bench.dir / name for name in ("first.cubin", "raw.cubin", "second.cubin")]
    paths[0].write_bytes(first)
    paths[1].write_bytes(second)
    done = subprocess.run([bench.build / "tests/gate/gate_collide", paths[0], paths[1], str(offset), paths[2]], capture_output=True, text=True,
                          check=False)
    equal(done.returncode, 0, f"collide: {done.stderr}")
    return paths[0], paths[2]


SESSION = """set clock_khz 1000000
module lines file={image}
kernel chain module=lines duration=200us
pcs chain 0x70:short_scoreboard*2/1 0x190:math_pipe_throttle*12/5
thread first on=main
  loop 1000000
    path {path}
    launch chain
  end
"""


def start_user(bench, index, image, path):
    """The player as a user of its own, on what it may read."""
    folder = bench.dir / f"user{index}"
    folder.mkdir()
    fake = bench.build / "tests/fake_cuda"
    for source in [*(fake / "lib").iterdir(), *(fake / "cupti13").iterdir(), fake / "fake_cuda_play", bench.shim, image]:
        if source.is_file():
            shutil.copy2(source, folder)
    session = folder / "session"
    session.write_text(SESSION.format(image=folder / image.name, path=path))
    home = folder / "home"
    home.mkdir()
    os.chown(home, OWNER + index, OWNER + index)
    env = bench.env(CUDA_INJECTION64_PATH=folder / bench.shim.name, FAKE_CUDA_TRUTH=home / "truth.json", FAKE_CUDA_FIRST_GPU=index)
    env["LD_LIBRARY_PATH"] = str(folder)
    env["GPU_PROFILED_CUPTI_PATH"] = str(folder / "libcupti.so.13")
    target = bench.spawn([str(folder / "fake_cuda_play"), str(session)], env, stdout=subprocess.DEVNULL, **as_user(OWNER + index))
    wait_for_memfd(target.pid)
    return target, home / "truth.json"


def collision(bench):
    """Two users' images of one key, in one profile: each process resolves by its own."""
    bench.dir.chmod(0o755)
    targets = [start_user(bench, index, image, path) for index, (image, path) in enumerate(zip(colliding_images(bench), ("a/b", "c")))]
    path, result, errors = bench.dir / "x.pb.gz", bench.dir / "x.json", bench.dir / "stderr"
    pids = [word for target, _ in targets for word in ("--pid", str(target.pid))]
    daemon = bench.spawn([str(bench.daemon), *pids, *CONTINUOUS, "-o", str(path), "--summary-json", str(result)], bench.env(),
                         stderr=errors.open("w"))
    wait_for(lambda: daemon.poll() is not None or all(emitted(t.pid) >= 4000 for t, _ in targets), "4,000 executions each")
    daemon.send_signal(signal.SIGINT)
    equal(daemon.wait(PATIENCE), 0, f"the daemon's exit status ({errors.read_text()})")
    keys, delivered = [], {}
    for target, truth_file in targets:
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
        truth = read_truth(truth_file)
        keys.append({row["cubin"] for row in truth["pc"]["rows"]})
        delivered[str(target.pid)] = truth["pc"]["pc_delivered"]
    equal(keys[0], keys[1], "keys that CUPTI has of the two images")
    files, samples = collections.defaultdict(set), collections.Counter()
    for sample in pc_checks.pc_samples(pprof_raw.load(path)):
        pid = sample.labels["pid"].split()[0]
        samples[pid] += sample.values["gpu_pc_samples"]
        equal(sample.labels["gpu_src_status"], "resolved", "gpu_src_status")
        files[pid] |= {os.path.basename(f.file) for f in split(sample)[2]}
    equal(dict(samples), delivered, "samples by process")
    equal(dict(files), {str(targets[0][0].pid): {"inline_chain.cu"}, str(targets[1][0].pid): {"inline_chaim.cu"}},
          "files of each process's lines")
    equal(json.loads(result.read_text())["cubin_store"]["images"], 2, "images that are kept")


def two_devices(bench):
    """One cubin on two devices, of which one tells nothing of its executions: told apart by device, or marked."""
    path, summary, truth, _ = bench.run(pc_sampling.play(bench, "pc_sampling", loops=800), *CONTINUOUS)
    profile = pprof_raw.load(path)
    pc_checks.check_attribution(profile, truth)
    marked = pc_checks.attribs(profile)["_Z8scale_upPff", "kernel-multidevice"]
    equal(marked, pc_checks.delivered(truth, kernel="_Z8scale_upPff", device=1), "samples marked kernel-multidevice")
    check(marked > 100 and pc_checks.delivered(truth, kernel="_Z8scale_upPff", device=0) > 100, "too few samples: nothing is tested")


def gate10(bench):
    summary, early = flood(bench, FLOOD)
    _, late = flood(bench, 0)
    print(f"{summary['targets'][0]['modules']} modules in the table, daemon at most {early >> 20} and {late >> 20} MiB", flush=True)
    endurance_hostile.case_forged(bench)
    print(f"forged table entries: {forged_table(bench)}", flush=True)
    collision(bench)
    print("two images of one key: each process has its own", flush=True)
    pc_sampling.case_graph_at_start(bench.build)
    pc_sampling.case_graph_mid_run(bench.build)
    two_devices(bench)
