# SPDX-License-Identifier: Apache-2.0
"""What a GPU and CUPTI do wrong, through the whole pipeline: each loss is counted to the record, totals
stay exact, the application ends as it would have.

Run by ctest: endurance_faults.py CASE --build DIR."""

import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pprof_raw
from endurance import end_target, main
from bench import (PATIENCE, STATE_IDLE, STATE_TRACING, check, check_accounting, check_identity, emitted, equal, memfds,
                   read_truth, status, wait_for, wait_for_state)

WORK = ("--threads", 2, "--launches", 6000, "--rate", 3000, "--memcpy-every", 20)


def lost(summary):
    return {k: v for k, v in summary["total"]["executions"]["lost_in_shim"].items() if v}


def run_with_status(bench, command, wanted, **settings):
    """gpu-profiled run of a command that ends with `wanted`. Returns (seconds, summary, stderr)."""
    summary = bench.dir / "run.json"
    began = time.monotonic()
    done = subprocess.run(
        [str(bench.daemon), "run", "--shim", str(bench.shim), "-o", str(bench.dir / "run.pb.gz"), "--summary-json",
         str(summary), "--", *command],
        env=bench.env(FAKE_CUDA_TRUTH=bench.truth_file(), **settings), cwd=bench.dir, capture_output=True,
        text=True, timeout=120, check=False)
    equal(done.returncode, wanted, f"exit status ({done.stderr})")
    return time.monotonic() - began, json.loads(summary.read_text()), done.stderr


def case_hung_flush(bench):
    """A FlushAll that never returns: the application ends with its own status, 2 s late at most."""
    command = bench.workload(50, 7, name="workload_short")
    least = 1e9  # of five pairs: a single one tells of the machine's load as well
    for _ in range(5):
        usual, _, _ = run_with_status(bench, command, 7)
        hung, summary, _ = run_with_status(bench, command, 7, FAKE_CUDA_FLUSH_HANG=1)
        check(hung > 2, "the flush did not hang: the case tests nothing")
        check_identity(summary["total"])
        read_truth(bench.truth_file())
        least = min(least, hung - usual)
        if least < 2.5:
            break
    check(least < 2.5, f"exit took {least:.2f} s more than the usual {usual:.2f} s")
    print(f"exit {least:.2f} s later than the usual {usual:.2f} s")


def case_hung_flush_attached(bench):
    """The same where it hangs while the daemon detaches: the target works on and the daemon ends."""
    target = bench.start_target("--threads", 2, "--launches", 0, "--rate", 1000, FAKE_CUDA_INSTANT=1,
                                FAKE_CUDA_FLUSH_HANG=12)
    began = time.monotonic()
    _, summary, _ = bench.attach(target.pid, "--duration", "3s")
    check(time.monotonic() - began < 60, "the daemon waited for a flush that never returns")
    # It never told its totals: its last flush did not return while the daemon was there.
    check_identity(summary["total"], known=False)
    end_target(bench, target)  # which waits for it with a deadline


def case_cancelled_thread(bench):
    """A thread is cancelled while the shim's callback runs on it: the callback finishes, the thread ends
    in the driver, and every execution is there."""
    path, summary, truth, _ = bench.run(bench.workload(*WORK), FAKE_CUDA_INSTANT=1, FAKE_CUDA_CANCEL_AT=1000)
    check(truth["launches"] < 6000, "no thread was cancelled")
    received = summary["total"]["executions"]["received"]
    check(truth["recorded_executions"] - received in (0, 1), f"{received} of {truth['recorded_executions']} received")
    check_identity(summary["total"])
    equal(pprof_raw.load(path).total("gpu_executions"), received, "executions in the profile")


def case_wrap_armed(bench):
    """The 32-bit correlation id wraps while tracing."""
    rate = 1000 if bench.stacks_are_large() else 3000
    path, summary, truth, _ = bench.run(bench.workload(*WORK, *bench.threads(2), "--rate", rate), "--stack-rate", "all",
                                        FAKE_CUDA_INSTANT=1, FAKE_CUDA_CORRELATION=2**32 - 3000)
    check_accounting(summary, truth["executions"], exact_only=True)
    profile = pprof_raw.load(path)
    equal(profile.total(), truth["gpu_ns"], "gpu_time")
    equal(profile.total("gpu_executions"), truth["executions"], "executions")


def case_wrap_idle(bench):
    """It wraps between two attaches, and again beside the second: every launch finds its own."""
    rate = 2000 if bench.stacks_are_large() else 1000  # a thread
    target = bench.start_target(*bench.threads(2), "--launches", 0, "--rate", rate, FAKE_CUDA_INSTANT=1,
                                FAKE_CUDA_CORRELATION=2**32 - 6000)
    received = time_ns = 0
    for turn in range(4):
        path, summary, _ = bench.attach_for(target.pid, 1000, "--stack-rate", "all", name=f"turn{turn}")
        executions = summary["total"]["executions"]
        check_accounting(summary, executions["received"])
        # What the other thread had in flight as activity came on has no launch of ours.
        check(executions["received"] - executions["attributed"]["exact"] <= 4, f"turn {turn}: {executions}")
        profile = pprof_raw.load(path)
        received += profile.total("gpu_executions")
        time_ns += profile.total()
        time.sleep(0.7)
    truth = end_target(bench, target)
    check(truth["launches"] > 7000, "the id did not wrap: the case tests nothing")
    equal(received, truth["recorded_executions"], "executions of all turns")
    equal(time_ns, truth["recorded_gpu_ns"], "gpu_time of all turns")


def case_clock_step(bench):
    """The wall clock, which CUPTI's times are of, is set by a minute forth and back mid-run: durations and
    counts stay exact, and a record whose start and end lie on two sides of a step is counted."""
    preload = bench.build / "tests/e2e/workload/libworkload_step_clock.so"
    path, summary, truth, _ = bench.run(
        ["/usr/bin/env", f"LD_PRELOAD={bench.preload(preload)}", "STEP_CLOCK=700:60000000000,1200:-30000000000",
         *bench.workload("--threads", 2, "--launches", 6000, "--rate", 1500)], FAKE_CUDA_INSTANT=1)
    executions = summary["total"]["executions"]
    check(set(lost(summary)) <= {"invalid_time"}, f"lost in the shim: {lost(summary)}")
    equal(executions["received"] + executions["lost_in_shim"]["invalid_time"], truth["executions"], "executions")
    check(executions["lost_in_shim"]["invalid_time"] <= 4, f"{lost(summary)}")
    check_identity(summary["total"])
    equal(summary["targets"][0]["shim"]["clock_step"], 2, "steps seen")
    if executions["received"] == truth["executions"]:
        equal(pprof_raw.load(path).total(), truth["gpu_ns"], "gpu_time")
    print(f"{executions['received']} of {truth['executions']} received over 2 steps of the clock")


def case_broken_times(bench):
    """Records without times and with an end before the start: left out and counted, each."""
    path, summary, truth, _ = bench.run(bench.workload(*WORK), FAKE_CUDA_INSTANT=1, FAKE_CUDA_ZERO_TIMES_EVERY=50,
                                        FAKE_CUDA_REVERSE_TIMES_EVERY=70)
    broken = truth["cupti"]["zero_times"] + truth["cupti"]["reversed"]
    check(truth["cupti"]["zero_times"] > 50 and truth["cupti"]["reversed"] > 50, "too few broken records")
    # No times in the very last flush: it may as well not have run to its end.
    counts = lost(summary)
    check(counts.get("incomplete", 0) <= truth["cupti"]["zero_times"] // 4, f"lost in the shim: {counts}")
    equal(counts["invalid_time"] + counts.pop("incomplete", 0), broken, "records with broken times")
    equal(list(counts), ["invalid_time"], "classes of loss")
    equal(summary["total"]["executions"]["received"], truth["executions"] - broken, "executions received")
    equal(summary["total"]["executions"]["produced"], truth["executions"], "executions produced")
    equal(pprof_raw.load(path).total("gpu_executions"), truth["executions"] - broken, "executions in the profile")


def case_dropped_records(bench):
    """Records that CUPTI itself drops and counts."""
    _, summary, truth, stderr = bench.run(bench.workload(*WORK), FAKE_CUDA_INSTANT=1, FAKE_CUDA_DROP_EVERY=40)
    dropped = truth["cupti"]["dropped"]
    check(dropped > 100, "too few dropped records")
    equal(lost(summary), {"cupti": dropped}, "lost in the shim")
    equal(summary["total"]["executions"]["received"], truth["executions"] - dropped, "executions received")
    equal(summary["total"]["executions"]["produced"], truth["executions"], "executions produced")
    check(re.search(rf"lost +{dropped:,} executions", stderr), f"the summary does not tell: {stderr}")


class Attached:
    """gpu-profiled --pid beside a target that launches, until end()."""

    def __init__(self, bench):
        self.bench = bench
        self.target = bench.start_target("--threads", 2, "--launches", 0, "--rate", 1000, FAKE_CUDA_INSTANT=1)
        self.errors = (bench.dir / "attach.stderr").open("w+")
        self.daemon = bench.spawn(
            [str(bench.daemon), "--pid", str(self.target.pid), "-o", str(bench.dir / "a.pb.gz"), "--summary-json",
             str(bench.dir / "a.json")], bench.env(), stderr=self.errors)
        self.wait_for_work()

    def wait_for_work(self, more=500):
        before = emitted(self.target.pid)
        wait_for(lambda: emitted(self.target.pid) >= before + more, "the target is traced")

    def control_page(self, flags):
        """The target's memfd, as the target itself could open it."""
        return os.open(f"/proc/{self.target.pid}/fd/{memfds(self.target.pid)[0]}", flags)

    def end(self):
        """(summary of the only target, text of the summary), both checked against what CUPTI recorded."""
        self.daemon.send_signal(signal.SIGINT)
        code = self.daemon.wait(PATIENCE)
        self.errors.seek(0)
        stderr = self.errors.read()
        equal(code, 0, f"exit status of the daemon ({stderr})")
        truth = end_target(self.bench, self.target)
        summary = json.loads((self.bench.dir / "a.json").read_text())
        equal(summary["total"]["executions"]["received"], truth["recorded_executions"], "executions outside the gap")
        check(truth["executions"] > truth["recorded_executions"], "nothing ran in the gap: the case tests nothing")
        profile = pprof_raw.load(self.bench.dir / "a.pb.gz")
        equal(profile.total(), truth["recorded_gpu_ns"], "gpu_time outside the gap")
        return summary["targets"][0], stderr


def case_daemon_stopped(bench):
    """The daemon is stopped for longer than its lease while the target launches, and goes on: the summary
    tells that, and for how long."""
    attached = Attached(bench)
    pid = attached.target.pid
    attached.daemon.send_signal(signal.SIGSTOP)
    wait_for_state(pid, STATE_IDLE)
    idle_at = time.monotonic()
    time.sleep(1)  # of launches that nobody records
    missing = time.monotonic() - idle_at
    attached.daemon.send_signal(signal.SIGCONT)
    wait_for_state(pid, STATE_TRACING)
    attached.wait_for_work()
    entry, stderr = attached.end()
    gaps = entry["gaps"]
    equal((gaps["count"], gaps["cause"], gaps["implausible"]), (1, "stalled", False), "the gap in the summary")
    check(missing <= gaps["total_ns"] / 1e9 <= PATIENCE, f"a gap of {gaps['total_ns']} ns, at least {missing} s")
    check(re.search(rf"gap +process {pid} was not traced for .* \(1 gap\): gpu-profiled was stopped", stderr), stderr)


def case_daemon_stopped_to_the_end(bench):
    """The same where it is ended before it has armed the target again."""
    attached = Attached(bench)
    attached.daemon.send_signal(signal.SIGSTOP)
    wait_for_state(attached.target.pid, STATE_IDLE)
    time.sleep(0.5)  # of launches that nobody records
    attached.daemon.send_signal(signal.SIGINT)
    attached.daemon.send_signal(signal.SIGCONT)
    entry, stderr = attached.end()
    equal((entry["gaps"]["count"], entry["gaps"]["cause"]), (1, "stalled"), "the gap in the summary")
    check("was not traced for" in stderr, stderr)


def case_status_overwritten(bench):
    """The target scribbles over the totals of its status page, and is killed: what cannot be true is left out
    and told, and nothing absurd is in either summary."""
    attached = Attached(bench)
    target = attached.target
    fd = attached.control_page(os.O_RDWR)
    target.send_signal(signal.SIGSTOP)  # or the shim would mend what it counts further
    wait_for(lambda: pathlib.Path(f"/proc/{target.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T",
             "the target is stopped")
    os.pwrite(fd, b"A" * 8, 64)  # arms, disarms
    os.pwrite(fd, b"A" * 4, 76)  # module_count
    os.pwrite(fd, b"A" * 48 * 8, 136)  # probe_totals, drop_totals
    os.close(fd)
    target.kill()
    equal(attached.daemon.wait(PATIENCE), 0, "exit status of the daemon")
    attached.errors.seek(0)
    stderr = attached.errors.read()
    text = (bench.dir / "a.json").read_text()
    check("4702111234474983745" not in text and "1094795585" not in text, f"what was scribbled is told: {text}")
    entry = json.loads(text)["targets"][0]
    equal(entry["executions"]["produced"], None, "executions produced")
    check({"exec records", "cupti drops", "modules"} <= set(entry["implausible"]), f"{entry['implausible']}")
    check(entry["gaps"]["implausible"], f"{entry['gaps']}")
    check(re.search(rf"left out +process {target.pid}: totals of its shim that cannot be true", stderr), stderr)
    check(re.search(r"lost +nothing", stderr), stderr)


def case_control_sealed(bench):
    """The target forbids writing to its memfd: the lease cannot be renewed any more."""
    attached = Attached(bench)
    fd = attached.control_page(os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x10)  # F_SEAL_FUTURE_WRITE
    os.close(fd)
    wait_for_state(attached.target.pid, STATE_IDLE)
    time.sleep(0.5)
    entry, stderr = attached.end()
    equal((entry["gaps"]["count"], entry["gaps"]["cause"]), (1, "unwritable"), "the gap in the summary")
    check(re.search(r"was not traced for the last .*could not be renewed.*restart the process", stderr), stderr)


def case_control_overwritten(bench):
    """The target scribbles over its control page: off until the next renewal."""
    attached = Attached(bench)
    fd = attached.control_page(os.O_RDWR)

    def is_off():
        os.pwrite(fd, b"\xff" * 4, 4096 + 8)  # abi_version
        return status(attached.target.pid)[2] > 0
    wait_for(is_off, "the shim takes an overwritten page for an end")
    os.close(fd)
    wait_for_state(attached.target.pid, STATE_TRACING)
    attached.wait_for_work()
    entry, stderr = attached.end()
    check(entry["gaps"]["count"] >= 1, f"gaps: {entry['gaps']}")
    equal(entry["gaps"]["cause"], "overwritten", "the gap in the summary")
    check("control page was overwritten" in stderr, stderr)


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
