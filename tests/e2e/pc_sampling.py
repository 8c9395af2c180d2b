# SPDX-License-Identifier: Apache-2.0
"""PC sampling against known ground truth: the shipped gpu-profiled, the real shim, real eBPF and a fake
GPU that plays sessions on real cubins (tests/fake_cuda/sessions). pc_checks.py says what must come out.

Run by ctest: pc_sampling.py CASE --build DIR. Needs root; without it the case is skipped (exit 77).
"""

import collections
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pc_checks
import pprof_raw
from bench import Bench, check, check_documented, equal, keys_of, read_truth, run_named_case, wait_for_memfd
from pc_checks import Oracle, attribs, delivered, present

# Documented in the README, as values of the label.
PC_ATTRIBS = {"exact", "kernel", "kernel-ambiguous", "kernel-multidevice", "graph-refused", "unattributed"}
SESSIONS = pathlib.Path(__file__).resolve().parent.parent / "fake_cuda/sessions"

def play(bench, session, **values):
    return bench.player(SESSIONS / f"{session}.session", **values)


def start_session(bench, session, settings=None, **values):
    """The session with the shim in it, nobody attached. It ends on SIGTERM."""
    env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(), **(settings or {}))
    process = bench.spawn(play(bench, session, **values), env, stdout=subprocess.DEVNULL)
    wait_for_memfd(process.pid)
    return process


def end_session(bench, process):
    process.send_signal(signal.SIGTERM)
    equal(process.wait(30), 0, "the session's exit status")
    return read_truth(bench.truth_file())


def case_continuous(build):
    """From the start: all values of gpu_src_status, and of gpu_pc_attrib in this tier."""
    bench = Bench(build)
    try:
        path, summary, truth, _ = bench.run(play(bench, "pc_sampling", loops=800), "--pc-sampling", "continuous")
        profile = pprof_raw.load(path)
        check(truth["pc"]["pc_delivered"] > 100_000, f"{truth['pc']['pc_delivered']} samples: nothing is tested")
        statuses = pc_checks.check_samples(profile, truth, Oracle())
        equal(statuses, {"resolved", "no-lineinfo", "no-module", "unmapped"}, "values of gpu_src_status")
        pc_checks.check_attribution(profile, truth)
        pc_checks.check_time(profile, truth)
        pc_checks.check_sources(profile)
        pc_checks.check_stack(profile, "chain", ["main", "path_a", "path_b", "path_d"])
        pc_checks.check_summary(summary, truth, "continuous", profile)
        print(f"{truth['pc']['pc_delivered']} PC samples, each at its line")
    finally:
        bench.close()


def case_documented_keys(build):
    """docs/summary-json.md names every key of the summary."""
    bench = Bench(build)
    try:
        _, summary, _, _ = bench.run(play(bench, "pc_sampling", loops=50), "--pc-sampling", "continuous")
        check_documented(summary, PC_ATTRIBS)
        check(len(keys_of(summary)) > 100, "too few keys: nothing is tested")
    finally:
        bench.close()


def case_late_attach(build):
    """A process that ran long before: modules loaded and kernels launched before anybody looked."""
    bench = Bench(build)
    try:
        target = start_session(bench, "pc_sampling")
        time.sleep(1)  # it runs unprofiled for a while: that is the case, not a synchronisation
        path, summary, _ = bench.attach_for(target.pid, 10_000, "--pc-sampling", "continuous")
        truth = end_session(bench, target)
        profile = pprof_raw.load(path)
        check(truth["pc"]["pc_delivered"] > 50_000, f"{truth['pc']['pc_delivered']} samples: nothing is tested")
        statuses = pc_checks.check_samples(profile, truth, Oracle())
        equal(statuses, {"resolved", "no-lineinfo", "no-module", "unmapped"}, "values of gpu_src_status")
        pc_checks.check_attribution(profile, truth)
        pc_checks.check_summary(summary, truth, "continuous", profile)
    finally:
        bench.close()


def case_views(build):
    """What a reader sees in pprof's views of device code."""
    bench = Bench(build)
    try:
        path, _, truth, _ = bench.run(play(bench, "pc_sampling", loops=400), "--pc-sampling", "continuous")
        pc_checks.check_views(path, truth, Oracle())
    finally:
        bench.close()


def case_saved_cubins(build):
    """--save-cubins writes each sampled cubin as it was loaded, and `cubin resolve` finds the chain in it."""
    bench = Bench(build)
    try:
        saved = bench.dir / "cubins"
        bench.run(play(bench, "pc_sampling", loops=300), "--pc-sampling", "continuous", "--save-cubins", str(saved))
        want = {}
        for name in {cubin for cubin in pc_checks.CUBIN_OF.values() if cubin}:
            data = (pc_checks.CUBINS / f"{name}.cubin").read_bytes()
            want[f"{hashlib.sha256(data).hexdigest()}.cubin"] = data
        equal({p.name for p in saved.iterdir()}, set(want), "files")
        for name, data in want.items():
            check((saved / name).read_bytes() == data, f"{name} is not what was loaded")
        chain = pc_checks.CUBINS / "inline_chain.sm_90.cubin"
        file = saved / f"{hashlib.sha256(chain.read_bytes()).hexdigest()}.cubin"
        done = subprocess.run([str(bench.daemon), "cubin", "resolve", str(file), "--function", "chain", "--pc", "0x190,0x2040",
                               "--json"], capture_output=True, text=True, timeout=60, check=False)
        equal(done.returncode, 0, f"cubin resolve: {done.stderr}")
        for found in json.loads(done.stdout):
            status, lines = Oracle()("chain", found["pc"])
            frames = tuple((os.path.basename(f["file"]), f["line"]) for f in found["frames"])
            equal((found["status"], frames[:len(lines)]), (status, lines), f"pc {found['pc']:#x}")
    finally:
        bench.close()


def case_short_lived_modules(build):
    """Modules that are unloaded 20 ms after they came: drained in time, read in time."""
    bench = Bench(build)
    try:
        path, summary, truth, _ = bench.run(play(bench, "pc_modules"), "--pc-sampling", "continuous")
        check(delivered(truth, kernel="chain") > 10_000, "too few samples: nothing is tested")
        equal(truth["pc"]["pc_sampled"], truth["pc"]["pc_delivered"], "samples delivered of those taken")
        profile = pprof_raw.load(path)
        statuses = pc_checks.check_samples(profile, truth, Oracle())
        equal(statuses, {"resolved"}, "values of gpu_src_status")
        pc_checks.check_summary(summary, truth, "continuous", profile)
    finally:
        bench.close()


def case_short_lived_names(build):
    """Records that come after their module has gone, and point where the next one's names are: each kernel under its
    name, by `run` and by an attach to the running program. No PC sampling."""
    bench = Bench(build)
    try:
        def check_names(profile, rows):
            kernels = collections.Counter()
            for sample in profile.samples:
                kernels[sample.frames[-1].system_name] += sample.values["gpu_executions"]
            equal(dict(kernels), rows, "executions by kernel")

        path, _, truth, _ = bench.run(play(bench, "pc_modules"))
        check_names(pprof_raw.load(path), {"chain": 6000, "_Z8scale_upPff": 6000})
        equal(truth["recorded_executions"], 12000, "executions recorded")
        target = start_session(bench, "pc_modules", loops=1_000_000)
        path, summary, _ = bench.attach_for(target.pid, 1500)
        end_session(bench, target)
        profile = pprof_raw.load(path)
        check(summary["total"]["executions"]["received"] > 2000, "too few executions: nothing is tested")
        names = {sample.frames[-1].system_name for sample in profile.samples}
        equal(names, {"chain", "_Z8scale_upPff"}, "kernels of the attach")
        equal(summary["join"]["executions_of_another"], 0, "executions named otherwise than their launches")
    finally:
        bench.close()


def case_full_buffer(build):
    """A full hardware buffer is healed once; one that stays full ends PC sampling, with the reason."""
    bench = Bench(build)
    try:
        session = play(bench, "pc_sampling", loops=1000)
        path, summary, truth, _ = bench.run(session, "--pc-sampling", "continuous", FAKE_CUDA_PC_OOM_AT=3)
        profile = pprof_raw.load(path)
        pc_checks.check_samples(profile, truth, Oracle())
        pc_checks.check_summary(summary, truth, "continuous", profile)
        sampling = summary["targets"][0]["pc_sampling"]
        equal((sampling["state"], sampling["shim"]["healed"]), ("on", 1), "state, and how often it was healed")
        check(summary["targets"][0]["shim"]["hw_buffer_full"] > 0, "the lost samples are not counted")

        path, summary, truth, errors = bench.run(play(bench, "pc_serialized", loops=4000), "--pc-sampling",
                                                 "continuous", FAKE_CUDA_PC_OOM=1)
        sampling = summary["targets"][0]["pc_sampling"]
        equal((sampling["state"], sampling["reason"]), ("refused", "out-of-memory"), "state and reason")
        check("no PC sampling" in errors, f"stderr does not say so: {errors}")
        profile = pprof_raw.load(path)
        equal(profile.total("gpu_pc_samples"), 0, "PC samples")
        pc_checks.check_time(profile, truth)
    finally:
        bench.close()


def case_refused(build):
    """No privilege, or an old CUPTI: tracing goes on, and the reason is told with what to change."""
    bench = Bench(build)
    try:
        session = play(bench, "pc_sampling", loops=300)
        for settings, reason, says in (({"FAKE_CUDA_PC_FAIL": "1:35"}, "privilege", "CAP_SYS_ADMIN"),
                                       ({"FAKE_CUDA_API": 26, "FAKE_CUDA_DRIVER": 12080}, "cupti-too-old", "12.9")):
            path, summary, truth, errors = bench.run(session, "--pc-sampling", "continuous", **settings)
            sampling = summary["targets"][0]["pc_sampling"]
            equal((sampling["state"], sampling["reason"]), ("refused", reason), "state and reason")
            check(says in errors and "tracing goes on" in errors, f"stderr does not say {says}: {errors}")
            equal(truth["pc"]["pc_sampled"], 0, "samples")
            profile = pprof_raw.load(path)
            equal(profile.total("gpu_pc_samples"), 0, "PC samples")
            pc_checks.check_time(profile, truth)
            pc_checks.check_summary(summary, truth, "continuous", profile)
    finally:
        bench.close()


def case_refused_start(build):
    """A start that is refused ends what CUPTI traces: the gap, its cause and the refusal are told."""
    bench = Bench(build)
    try:
        target = start_session(bench, "pc_sampling", {"FAKE_CUDA_PC_FAIL": "3:26"}, loops=1000000)
        _, summary, errors = bench.attach(target.pid, "--duration", "2s", "--pc-sampling", "continuous")
        entry = summary["targets"][0]
        equal((entry["pc_sampling"]["state"], entry["pc_sampling"]["reason"]), ("refused", "counters-busy"), "PC sampling")
        equal((entry["gaps"]["count"], entry["gaps"]["cause"]), (1, "ended"), "the gap in the summary")
        check("tracing ended with it" in errors and "ended tracing for good" in errors, errors)
        check("overwritten" not in errors and "tracing goes on" not in errors, errors)
        end_session(bench, target)
    finally:
        bench.close()


def check_windows(summary, truth):
    sampling = summary["targets"][0]["pc_sampling"]["shim"]
    equal(sampling["windows"], truth["pc"]["pc_starts"], "windows opened")
    equal(truth["pc"]["pc_stops"], truth["pc"]["pc_starts"], "windows closed")


def case_serialized(build):
    """Every sample joins its own launch: by call path, kernel, line and stall."""
    bench = Bench(build)
    try:
        path, summary, truth, _ = bench.run(play(bench, "pc_serialized", loops=8000), "--pc-sampling", "serialized",
                                            "--stack-rate", "all")
        profile = pprof_raw.load(path)
        check(truth["pc"]["pc_starts"] >= 3, f"{truth['pc']['pc_starts']} windows: nothing is tested")
        pc_checks.check_samples(profile, truth, Oracle())
        equal({attrib for _, attrib in present(attribs(profile))}, {"exact"}, "values of gpu_pc_attrib")
        want = collections.Counter()
        for row in truth["pc"]["rows"]:
            want[tuple(row["stack"]), row["kernel"], row["stall"]] += row["delivered"]
        got = collections.Counter()
        for sample in pc_checks.pc_samples(profile):
            cpu, kernel, _ = pc_checks.split(sample)
            stack = tuple(f for f in cpu if f == "main" or f.startswith("path_"))
            got[stack, kernel, sample.labels["gpu_stall"]] += sample.values["gpu_pc_samples"]
            equal(sample.labels["gpu_serialized"], "true", "gpu_serialized of a sampled launch")
        equal(present(got), present(want), "PC samples by call path, kernel and stall")
        equal(profile.total(), truth["gpu_ns"], "gpu_time in all")
        check_windows(summary, truth)
        pc_checks.check_summary(summary, truth, "serialized", profile)
    finally:
        bench.close()


def check_refusal(summary, truth, reason, counter):
    sampling = summary["targets"][0]["pc_sampling"]
    equal((sampling["state"], sampling["reason"]), ("refused", reason), "state and reason")
    check(sampling["shim"][counter] > 0, f"{counter} is not counted: {sampling}")
    check_windows(summary, truth)


def case_graph_at_start(build):
    """Serialized is asked for where graphs run: it never begins."""
    bench = Bench(build)
    try:
        target = start_session(bench, "pc_serialized", graphs=1000000)
        path, summary, _ = bench.attach_for(target.pid, 10_000, "--pc-sampling", "serialized")
        truth = end_session(bench, target)
        check_refusal(summary, truth, "graph", "graph_refused")
        equal(truth["pc"]["pc_starts"], 0, "windows")
        profile = pprof_raw.load(path)
        equal(profile.total("gpu_pc_samples"), 0, "PC samples")
        pc_checks.check_summary(summary, truth, "serialized", profile)
    finally:
        bench.close()


def run_with_graph(bench, **settings):
    """A graph is launched in an open window, once. (profile, truth)."""
    path, summary, truth, errors = bench.run(play(bench, "pc_serialized", loops=8000, windows=1, nth=3),
                                             "--pc-sampling", "serialized", "--stack-rate", "all", **settings)
    profile = pprof_raw.load(path)
    check_refusal(summary, truth, "graph", "graph_refused")
    check("no PC sampling" in errors, f"stderr does not say so: {errors}")
    check(truth["pc"]["pc_delivered"] > 1000, "too few samples: nothing is tested")
    pc_checks.check_samples(profile, truth, Oracle())
    pc_checks.check_summary(summary, truth, "serialized", profile)
    return profile, truth


def by_attribution(profile):
    got = collections.Counter()
    for (_, attrib), samples in attribs(profile).items():
        got[attrib] += samples
    return got


def case_graph_mid_run(build):
    """A graph is launched in a window: the window is closed before it and none opens any more. Where its launch was
    not seen, its samples say that N kernels share their correlation; the others stay exact."""
    bench = Bench(build)
    try:
        profile, truth = run_with_graph(bench)
        equal(by_attribution(profile), {"exact": truth["pc"]["pc_delivered"]}, "samples by attribution")

        cu_graph_launch = "1:514:1,1:515:1"  # driver domain; EnableCallback answers 1
        profile, truth = run_with_graph(bench, FAKE_CUDA_CALLBACK_FAIL=cu_graph_launch)
        graph = sum(r["delivered"] for r in truth["pc"]["rows"] if "path_i" in r["stack"])
        check(graph > 0, "no sample of the graph: nothing is tested")
        equal(by_attribution(profile), {"graph-refused": graph, "exact": truth["pc"]["pc_delivered"] - graph},
              "samples by attribution")
    finally:
        bench.close()


def case_collective(build):
    """A kernel that waits for its peers ends serialized sampling before it could be run alone."""
    bench = Bench(build)
    try:
        _, summary, truth, _ = bench.run(play(bench, "pc_serialized", loops=8000, collectives=1), "--pc-sampling",
                                         "serialized")
        check_refusal(summary, truth, "collective", "collective_refused")
    finally:
        bench.close()


def case_cycles(build, turns=6):
    """Attached again and again, the tiers in turns, while streams are captured and modules come and go: what was
    delivered in all is in the profiles, by tier."""
    bench = Bench(build)
    try:
        target = start_session(bench, "pc_cycles")
        got = collections.Counter()
        for turn in range(turns):
            # Windows begin a second after the arm.
            tier, executions = ("serialized", 60_000) if turn % 2 else ("continuous", 15_000)
            path, summary, _ = bench.attach_for(target.pid, executions, "--pc-sampling", tier, name=f"turn{turn}")
            profile = pprof_raw.load(path)
            samples = profile.total("gpu_pc_samples")
            equal(summary["targets"][0]["pc_sampling"]["shim"]["samples"], samples, f"turn {turn}, {tier}: samples")
            got[tier] += samples
        truth = end_session(bench, target)
        want = collections.Counter()
        for row in truth["pc"]["rows"]:
            want[row["mode"]] += row["delivered"]
        equal(present(got), present(want), "PC samples of all turns by tier")
        check(all(got[tier] > 1000 for tier in ("serialized", "continuous")), f"too few samples: {got}")
        print(f"{turns} turns: {dict(got)} samples, none lost while attached")
    finally:
        bench.close()


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, lambda function, options: function(options.build)))
