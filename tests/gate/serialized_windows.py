# SPDX-License-Identifier: Apache-2.0
"""End-to-end half of 8: what gpu_serialized says in windows, between them, and where nothing is known."""
import collections
import json
import subprocess

import pc_checks
import pc_sampling
import pprof_raw
from bench import check, check_identity, equal
from frames import SESSIONS


def labels(profile, kernel=None):
    """Executions by gpu_serialized."""
    got = collections.Counter()
    for sample in profile.samples:
        if kernel is None or any(f.system_name == kernel for f in sample.frames):
            got[sample.labels.get("gpu_serialized", "none")] += sample.values["gpu_executions"]
    return got


def in_windows(truth, summary, kernel, duration_ns):
    """Executions of the kernel that were sampled, by the samples that each yields."""
    period = summary["targets"][0]["pc_sampling"]["period_log2_cycles"]
    sampled = sum(row["sampled"] for row in truth["pc"]["rows"] if row["kernel"] == kernel)
    return sampled / (duration_ns * 1_000_000 * 132 / 1e6 / 2**period)


def check_serialized(bench):
    """Windows that open and close: true in them, false between two of one context, and nothing else once one was seen."""
    # Next to nothing is queued when a window opens: what runs in it was launched in it, and sampled.
    path, summary, truth, _ = bench.run(pc_sampling.play(bench, "pc_serialized", loops=8000), "--pc-sampling", "serialized",
                                        "--stack-rate", "all", FAKE_CUDA_QUEUE_NS=400_000)
    profile = pprof_raw.load(path)
    windows = truth["pc"]["pc_starts"]
    check(windows >= 3, f"{windows} windows: nothing is tested")
    for sample in pc_checks.pc_samples(profile):
        equal(sample.labels["gpu_serialized"], "true", "gpu_serialized of a sampled launch")
    got = labels(profile, "chain")
    expected = in_windows(truth, summary, "chain", 200_000)
    # What was queued or launched as a window opened or closed may fall on either side of its record.
    check(abs(got["true"] - expected) <= 6 * windows, f"{got} of chain, {expected:.1f} of them were sampled")
    check(got["false"] > got["true"] > 0, f"no gap between windows is proven: {got}")
    equal(sum(got.values()), sum(row["recorded_executions"] for row in truth["rows"] if row["kernel"] == "chain"), "executions of chain")
    pc_checks.check_summary(summary, truth, "serialized", profile)
    return got


def check_no_information(bench):
    """Sampling was asked for and no window came: unknown, not false."""
    path, summary, truth, _ = bench.run(pc_sampling.play(bench, "pc_serialized", loops=200, graphs=100), "--pc-sampling", "serialized")
    profile = pprof_raw.load(path)
    equal(truth["pc"]["pc_starts"], 0, "windows")
    check(set(labels(profile)) <= {"unknown", "none"}, f"without a window: {labels(profile)}")
    check_identity(summary["total"])


def exit_in_a_window(bench):
    """(executions of the last window by gpu_serialized, windows that were open at the end) of a process that ends without a word."""
    profile_path, result = bench.dir / "exit.pb.gz", bench.dir / "exit.json"
    done = subprocess.run([str(bench.daemon), "run", "--shim", str(bench.shim), "-o", str(profile_path), "--summary-json", str(result),
                           "--pc-sampling", "serialized", "--stack-rate", "all", "--",
                           *bench.player(SESSIONS / "hard_exit.session")],
                          env=bench.env(), cwd=bench.dir, capture_output=True, text=True, timeout=120, check=False)
    equal(done.returncode, 7, f"the command's status ({done.stderr})")
    summary = json.loads(result.read_text())
    windows = summary["total"]["pc_sampling"]["windows"]
    equal(windows["closes_lost"], 0, f"windows after a hard exit: {windows}")
    check_identity(summary["total"], known=False)
    profile = pprof_raw.load(profile_path)
    return labels(profile, "late"), windows["open"]


def check_hard_exit(bench):
    """Its last window stays open, and nothing is called false from there on. Executions of it seldom come: CUPTI gives buffers back
    every 100 ms, and the unit half has them. On a busy machine the window is over before the process is: then it is tried again."""
    for _ in range(4):
        got, still_open = exit_in_a_window(bench)
        if still_open:
            equal(still_open, 1, "windows that never closed")
            check(not got["false"] and not got["none"], f"executions of the window that never closed: {got}")
            return got
    raise AssertionError(f"no window was open when the process ended: {got}")


def gate08(bench):
    got = check_serialized(bench)
    check_no_information(bench)
    exited = check_hard_exit(bench)
    print(f"chain {dict(got)}; in the window that a hard exit left open {dict(exited)}")
