# SPDX-License-Identifier: Apache-2.0
"""gpu-profiled --all: every process of a node, whenever it starts and whichever copy of the shim it has.

Run by ctest: node.py CASE --build DIR. Needs root. Each case runs in process and mount namespaces of its own, with
copies of the shim of its own: it sees no other test's processes, and arms none of them.
"""

import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pprof_raw
from bench import (PATIENCE, SKIPPED, STATE_IDLE, STATE_TRACING, Bench, check, check_accounting, check_identity, emitted,
                   equal, read_truth, run_named_case, status, wait_for, wait_for_memfd, wait_for_state)
from windows import Windows, check_windows

INSIDE = "GPUPROF_NODE_INSIDE"


class Node:
    """The build's products with a shim of its own, and gpu-profiled with its output."""

    def __init__(self, build):
        self.bench = Bench(build)
        self.shim = self.copy_of_shim("shim.so")
        self.daemon = None
        self.truths = {}

    def copy_of_shim(self, name):
        path = self.bench.dir / name
        path.parent.mkdir(exist_ok=True)
        shutil.copy2(self.bench.shim, path)
        return path

    def close(self):
        self.bench.close()

    def errors(self):
        return (self.bench.dir / "stderr").read_text()

    def start_daemon(self, *options, wait=True, output=("-o", "x.pb.gz", "--summary-json", "x.json")):
        """--all, unless `options` say what else; until it has looked at all that was there."""
        what = [] if "--cgroup" in options else ["--all"]
        self.daemon = self.bench.spawn([str(self.bench.daemon), *what, *map(str, [*options, *output])], self.bench.env(),
                                       stderr=(self.bench.dir / "stderr").open("w"))
        if wait:
            wait_for(lambda: "profiling" in self.errors() or "waiting for" in self.errors() or
                     self.daemon.poll() is not None, "the daemon has looked at all")
            equal(self.daemon.poll(), None, f"the daemon runs ({self.errors()})")

    def start(self, *command, name=None, shim=None, wait=True, **settings):
        """A program with the shim; the workload's options, or "short" and its arguments."""
        name = name or f"p{len(self.truths)}"
        truth = self.bench.truth_file(name)
        command = [str(word) for word in command]
        line = self.bench.workload(*command[1:], name="workload_short") if command[:1] == ["short"] else (
            self.bench.workload(*command))
        env = self.bench.env(CUDA_INJECTION64_PATH=shim or self.shim, FAKE_CUDA_TRUTH=truth, **settings)
        process = self.bench.spawn(line, env, stdout=subprocess.DEVNULL)
        self.truths[process.pid] = truth
        if wait:
            wait_for_memfd(process.pid)
        return process

    def stop(self, *processes):
        """Ends programs that run for ever; what the drivers wrote down, in the same order."""
        for process in processes:
            process.send_signal(signal.SIGTERM)
        return [self.truth(process) for process in processes]

    def truth(self, process):
        equal(process.wait(PATIENCE), 0, "the program's exit status")
        return read_truth(self.truths[process.pid])

    def finish(self, expect=0):
        """Ctrl-C; the summary, and its targets by process number."""
        self.daemon.send_signal(signal.SIGINT)
        equal(self.daemon.wait(PATIENCE), expect, f"the daemon's exit status ({self.errors()})")
        if expect != 0:
            return None, {}
        summary = json.loads((self.bench.dir / "x.json").read_text())
        check_identity(summary["total"], known=False)
        return summary, {target["pid"]: target for target in summary["targets"]}

    def profile(self):
        return pprof_raw.load(self.bench.dir / "x.pb.gz")


def received(target):
    return target["executions"]["received"]


ENDLESS = ("--threads", 1, "--launches", 0, "--seconds", 250, "--rate", 500)


def case_before_and_after(node):
    """A process that was there, one that starts later, and one of 50 ms: what the driver ran while they were watched is
    in the profile, of the later ones everything."""
    before = node.start(*ENDLESS)
    node.start_daemon()
    wait_for_state(before.pid, STATE_TRACING)
    after = node.start("--threads", 2, "--launches", 3000, "--rate", 4000)
    short = [node.start("short", 20, wait=False) for _ in range(8)]
    wholes = {process.pid: node.truth(process) for process in [after, *short]}
    wait_for(lambda: emitted(before.pid) > 300, "executions of the first")
    summary, targets = node.finish()
    node.stop(before)
    for pid, truth in wholes.items():
        equal(received(targets[pid]), truth["executions"], f"executions of process {pid}, which started later")
        equal(targets[pid]["gap_ns"], 0, f"time before process {pid} was armed")
        check_identity(targets[pid])
    check(received(targets[before.pid]) > 250, f"of the first: {received(targets[before.pid])}")
    equal(sorted(targets), sorted([before.pid, *wholes]), "processes in the profile")
    total = sum(received(target) for target in targets.values())
    equal(node.profile().total("gpu_executions"), total, "executions in the profile")
    equal(status(before.pid)[0] if before.poll() is None else STATE_IDLE, STATE_IDLE, "the first is let go")


def case_nothing_yet(node):
    """Nothing to profile is no error: the first process that comes shows which file the shim is, and those that start
    after it are profiled whole. Where nothing ever comes, that is said."""
    node.start_daemon()
    check("no process runs the shim yet: waiting" in node.errors(), node.errors())
    first = node.start(*ENDLESS)
    wait_for_state(first.pid, STATE_TRACING)
    second = node.start("short", 50, wait=False)
    truth = node.truth(second)
    wait_for(lambda: emitted(first.pid) > 100, "executions of the first")
    _, targets = node.finish()
    node.stop(first)
    equal(received(targets[second.pid]), truth["executions"], "executions of the second process")
    check(received(targets[first.pid]) > 50, f"of the first: {received(targets[first.pid])}")
    node.start_daemon()
    node.finish(expect=3)
    check("no process with the shim was seen; no file written" in node.errors(), node.errors())


def case_windows(node):
    """A file a window: of processes that come and go each is whole, whichever windows it ran in."""
    windows = Windows(node.bench)
    before = node.start(*ENDLESS)
    node.start_daemon("--window", "400ms", output=windows.options("400ms")[2:])
    wait_for_state(before.pid, STATE_TRACING)
    long = node.start("--threads", 2, "--launches", 4000, "--rate", 1000)
    short = []
    while long.poll() is None:
        short.append(node.start("short", 20, wait=False))
        node.truth(short[-1])
        time.sleep(0.05)
    node.daemon.send_signal(signal.SIGINT)
    equal(node.daemon.wait(PATIENCE), 0, f"the daemon's exit status ({node.errors()})")
    windows.read()
    check_windows(windows, 5)
    check_identity(windows.last["total"], known=False)
    wholes = {process.pid: node.truth(process)["executions"] for process in [long, *short]}
    got = collections.Counter()
    for summary in windows.summaries:
        for target in summary["targets"]:
            got[target["pid"]] += received(target["window"])
    equal({pid: got[pid] for pid in wholes}, wholes, "executions by process, over all windows")
    equal(set(got) - set(wholes), {before.pid}, "other processes")
    equal(windows.merge().total("gpu_executions"), sum(got.values()), "executions in all profiles")
    check(windows.last["ended_processes"] >= len(short) // 2, f"processes that ended: {windows.last['ended_processes']}")
    node.stop(before)


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


def run_case(function, options):
    """In namespaces of its own, which the second call is in."""
    if INSIDE not in os.environ:
        done = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv],
                              env=dict(os.environ, **{INSIDE: "1"}), check=False)
        check(done.returncode == 0, f"exit status {done.returncode} inside of the namespaces")
        return
    node = Node(pathlib.Path(options.build).resolve())
    try:
        function(node)
    finally:
        if node.daemon and node.daemon.poll() is None:
            print(node.errors())
        node.close()


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run_case))
