# SPDX-License-Identifier: Apache-2.0
"""gpu-profiled is killed (-9) at random points of its start, its attach, its run and its end. Afterwards nothing of it
is left, in the targets or in the kernel, and the targets are as though it had never been there.

Run by ctest: kill_points.py CASE --build DIR [--kills N] [--seed N]. The seed is printed; with the same one the points
are drawn again, as far as timing goes."""

import collections
import ctypes
import errno
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import time

from bench import (PATIENCE, STATE_IDLE, STATE_TRACING, Bench, check, check_identity, emitted, equal, memfds,
                   read_truth, run_named_case, status, status_page, wait_for, wait_for_memfd)

TARGETS = 10  # attached to at one time, so that their leases run out together
LEASE = 3.0  # kLeaseMs of daemon/cli/session.cc
# From the kill to idle: the shim's round, and a machine that ten daemons keep busy.
LATEST = LEASE + 7
SYS_BPF = 321
GET_FD_BY_ID = {"prog": 13, "map": 14, "link": 30}  # enum bpf_cmd
libc = ctypes.CDLL(None, use_errno=True)


def exists_in_kernel(kind, number):
    """Whether there is an eBPF program, map or link of this id."""
    attributes = ctypes.create_string_buffer(struct.pack("<3I", number, 0, 0), 128)
    fd = libc.syscall(SYS_BPF, GET_FD_BY_ID[kind], attributes, 128)
    if fd >= 0:
        os.close(fd)
        return True
    check(ctypes.get_errno() == errno.ENOENT, f"bpf: {kind} {number}: {os.strerror(ctypes.get_errno())}")
    return False


def kernel_objects(pid):
    """{(kind, id)} of the eBPF objects that a process has open."""
    found = set()
    for info in pathlib.Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            text = info.read_text()
        except OSError:
            continue
        found |= {(kind, int(number)) for kind, number in re.findall(r"^(prog|map|link)_id:\s+(\d+)$", text, re.MULTILINE)}
    return found


def tree(pid):
    """A process and its descendants."""
    children = collections.defaultdict(list)
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = stat.read_text().rsplit(")", 1)
        except OSError:
            continue
        children[int(rest.split()[1])].append(int(number.split()[0]))
    found = [pid]
    for known in found:
        found += children[known]
    return found


def off_since(pid):
    """When the shim stopped to record, as time.monotonic() has it: off_since_ns of its page. 0: it never began."""
    return int.from_bytes(status_page(pid)[104:112], "little") / 1e9


class Sites:
    """The shim's probe sites and semaphores in a process: untouched, they are as in the file."""

    def __init__(self, shim):
        notes = subprocess.run(["readelf", "-nW", str(shim)], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"Location: 0x(\w+), Base: 0x\w+, Semaphore: 0x(\w+)", notes)
        check(len(found) >= 9, f"probes of {shim}: {notes}")
        self.locations = sorted({int(location, 16) for location, _ in found})
        self.semaphores = sorted({int(semaphore, 16) for _, semaphore in found})
        self.name = shim.name
        segments = subprocess.run(["readelf", "-lW", str(shim)], capture_output=True, text=True, check=True).stdout
        self.code = next(tuple(int(word, 16) for word in line.split()[1:3]) for line in segments.splitlines()
                         if "LOAD" in line and "R E" in line)  # offset, address
        self.bytes = shim.read_bytes()

    def _base(self, pid):
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith("/" + self.name) and line.split()[2] == "00000000":
                return int(line.split("-")[0], 16)
        raise AssertionError(f"the shim is not mapped in {pid}")

    def touched(self, pid):
        """What of them differs: [(name, offset)]."""
        base = self._base(pid)
        with open(f"/proc/{pid}/mem", "rb") as memory:
            def read(address, size):
                memory.seek(base + address)
                return memory.read(size)
            at = lambda location: location - self.code[1] + self.code[0]
            sites = [("site", hex(location)) for location in self.locations
                     if read(location, 6) != self.bytes[at(location):at(location) + 6]]
            return sites + [("semaphore", hex(address)) for address in self.semaphores if read(address, 2) != b"\0\0"]


class Victim:
    """One target, and the gpu-profiled that is killed beside it."""

    def __init__(self, bench, number):
        self.bench, self.number = bench, number
        self.truth = bench.truth_file(f"truth{number}")
        env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=self.truth, FAKE_CUDA_INSTANT=1)
        self.target = bench.spawn(bench.workload("--threads", 2, "--launches", 0, "--rate", 300), env,
                                  stdout=subprocess.DEVNULL)
        self.out = bench.dir / f"out{number}"
        self.out.mkdir()

    def ready(self):
        wait_for_memfd(self.target.pid)
        self.descriptors = len(os.listdir(f"/proc/{self.target.pid}/fd"))

    def start(self):
        self.daemon = self.bench.spawn(
            [str(self.bench.daemon), "--pid", str(self.target.pid), "-o", str(self.out / "x.pb.gz")], self.bench.env(),
            stderr=subprocess.DEVNULL)

    def stop_at(self, stage, rng):
        """Stops the daemon at a random point of `stage`; what it was doing, in a word."""
        pid = self.target.pid
        if stage == "start":
            time.sleep(rng.uniform(0, 0.1))
        elif stage == "attach":
            wait_for(lambda: kernel_objects(self.daemon.pid) or self.daemon.poll() is not None, "it loads its programs")
            time.sleep(rng.uniform(0, 0.6))
        else:
            wait_for(lambda: status(pid)[0] == STATE_TRACING or self.daemon.poll() is not None, "the target is traced")
            time.sleep(rng.uniform(0, 0.8))
        if stage == "finish":
            self.daemon.send_signal(signal.SIGINT)
            time.sleep(rng.uniform(0, 0.25))
        if self.daemon.poll() is not None:
            equal(self.daemon.returncode, 0, "exit status of a daemon that had ended already")
            self.objects, self.left_behind = set(), []
            return "ended"
        self.daemon.send_signal(signal.SIGSTOP)
        wait_for(lambda: self.daemon.poll() is not None or
                 pathlib.Path(f"/proc/{self.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "TZ", "it stops")
        self.objects = kernel_objects(self.daemon.pid)
        self.left_behind = tree(self.daemon.pid)[1:]
        if stage == "finish":
            return "finish"
        if status(pid)[0] == STATE_TRACING:
            return "run"
        return "attach" if self.objects else "start"

    def kill(self):
        self.killed_at = time.monotonic()
        if self.daemon.poll() is None:
            self.daemon.kill()
        self.daemon.wait(PATIENCE)

    def check_clean(self, sites):
        """Seconds from the kill until the target recorded nothing any more."""
        pid = self.target.pid
        wait_for(lambda: status(pid)[0] == STATE_IDLE, f"target {self.number} is idle: {status(pid)}")
        took = off_since(pid) - self.killed_at
        wait_for(lambda: not sites.touched(pid), f"no probe is left in target {self.number}: {sites.touched(pid)}")
        left = [item for item in self.objects if exists_in_kernel(*item)]
        wait_for(lambda: not [item for item in self.objects if exists_in_kernel(*item)], f"eBPF objects left: {left}")
        wait_for(lambda: not any(pathlib.Path(f"/proc/{child}").exists() for child in self.left_behind),
                 f"helpers left: {self.left_behind}")
        equal(len(os.listdir(f"/proc/{pid}/fd")), self.descriptors, "the target's descriptors")
        names = [path.name for path in self.out.iterdir() if path.name != "x.pb.gz"]
        equal(names, [], "files left beside the profile")
        (self.out / "x.pb.gz").unlink(missing_ok=True)
        return took

    def check_works(self):
        """The target goes on, the next attach has every record, and its end is as ever."""
        before = emitted(self.target.pid)
        _, summary, _ = self.bench.attach_for(self.target.pid, 100, name=f"last{self.number}")
        check_identity(summary["total"])
        equal(summary["total"]["executions"]["received"], emitted(self.target.pid) - before, "executions after the kills")
        self.target.send_signal(signal.SIGTERM)
        equal(self.target.wait(PATIENCE), 0, "the target's exit status")
        truth = read_truth(self.truth)
        equal(truth["cupti"]["subscribes"], truth["cupti"]["unsubscribes"], "subscribed and unsubscribed")
        equal(truth["cupti"]["enables"], truth["cupti"]["disables"], "kinds enabled and disabled")


def mounts():
    return pathlib.Path("/proc/self/mountinfo").read_text()


def case_attach(bench, kills, rng):
    """`--pid`: the target goes on."""
    sites = Sites(bench.shim)
    victims = [Victim(bench, number) for number in range(min(TARGETS, kills))]
    for victim in victims:
        victim.ready()
        equal(sites.touched(victim.target.pid), [], "probes before the first attach")
    before = mounts()
    stages = ["start", "attach", "run", "finish"] * (kills // 4 + 1)
    stages = stages[:kills]
    rng.shuffle(stages)
    hit, slowest = collections.Counter(), 0.0
    while stages:
        turn = [(victim, stages.pop()) for victim in victims[:len(stages)]]
        for victim, stage in turn:
            victim.start()
            hit[victim.stop_at(stage, rng)] += 1
            victim.kill()
        for victim, _ in turn:
            slowest = max(slowest, victim.check_clean(sites))
    equal(mounts(), before, "mounts")
    for victim in victims:
        victim.check_works()
    check(slowest < LATEST, f"a target was armed for {slowest:.1f} s after its daemon had been killed")
    check(all(hit[stage] for stage in ("start", "attach", "run", "finish")), f"stages that were hit: {dict(hit)}")
    print(f"{kills} kills ({dict(hit)}), idle again after {slowest:.1f} s at most")


def end_of(pid, path):
    """Whether a process of somebody else has ended; its truth is then written."""
    return not pathlib.Path(f"/proc/{pid}").exists() or path.exists()


def case_run(bench, kills, rng):
    """`run`: the command goes on unprofiled and ends as it would have, or was never started."""
    sites = Sites(bench.shim)
    started, slowest = 0, 0.0
    for number in range(kills):
        truth = bench.truth_file(f"run{number}")
        daemon = bench.spawn(
            [str(bench.daemon), "run", "--shim", str(bench.shim), "-o", str(bench.dir / f"run{number}.pb.gz"), "--",
             *bench.workload("--threads", 2, "--launches", 0, "--rate", 300, "--seconds", 8)],
            bench.env(FAKE_CUDA_TRUTH=truth, FAKE_CUDA_INSTANT=1), stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 1.5))
        daemon.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        objects, family = kernel_objects(daemon.pid), tree(daemon.pid)[1:]
        daemon.kill()
        killed_at = time.monotonic()
        daemon.wait(PATIENCE)

        def left():
            return [pid for pid in family if pathlib.Path(f"/proc/{pid}/exe").exists()]
        # What stays is the command; what was not to become it, or served the daemon, is gone.
        wait_for(lambda: all(os.readlink(f"/proc/{pid}/exe").endswith("/workload") for pid in left()),
                 f"only the command is left of {family}")
        for pid in left():
            started += 1
            wait_for(lambda: memfds(pid) and status(pid)[0] == STATE_IDLE, f"command {pid} is idle")
            slowest = max(slowest, off_since(pid) - killed_at)
            wait_for(lambda: not sites.touched(pid), f"no probe is left in the command: {sites.touched(pid)}")
            wait_for(lambda: end_of(pid, truth), "the command ends")
            check(truth.exists(), "the command ended early")
            got = read_truth(truth)
            check(got["executions"] > 0, "the command did nothing")
            equal(got["cupti"]["subscribes"], got["cupti"]["unsubscribes"], "subscribed and unsubscribed")
        wait_for(lambda: not [item for item in objects if exists_in_kernel(*item)], "eBPF objects are gone")
    check(slowest < LATEST, f"a command was armed for {slowest:.1f} s after its daemon had been killed")
    check(started > 0, "no command was ever started")
    print(f"{kills} kills under run, {started} commands went on, idle after {slowest:.1f} s at most")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}
KILLS = {"attach": 50, "run": 6}


def run_case(function, options):
    seed = options.seed or int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    bench = Bench(pathlib.Path(options.build).resolve())
    try:
        function(bench, options.kills or KILLS[options.case], random.Random(seed))
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run_case, kills={"type": int, "default": 0}, seed={"type": int, "default": 0}))
