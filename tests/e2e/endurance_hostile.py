# SPDX-License-Identifier: Apache-2.0
"""Hostile processes against the shipped daemon: a forged memfd is never opened for writing, hostile
records are counted, memory stays bounded, an honest neighbour's profile stays exact.

Run by ctest: endurance_hostile.py CASE --build DIR."""

import ctypes
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import time

import pprof_raw
from bench import PATIENCE, STATE_TRACING, check, check_identity, equal, read_truth, wait_for, wait_for_memfd, wait_for_state
from endurance import footprint, main

# What the daemon says; a forged file that is no memfd at all is told by its first difference.
FORGERIES = {
    "bind": "a file with a name",
    "hardlink": "a file with a name",
    "bind-mapped": "a file with a name",
    "symlink": "no status page",  # an opened link is its target: not even the name looks right
    "no-seals": "not sealed against shrinking",
    "write-sealed": "sealed against writing",
    "shrunk": "its size is out of bounds",
    "wrong-magic": "wrong magic",
    "other-owner": "it belongs to another process",
    "half-written": "half-written",
}
IN_MODIFY, IN_CLOSE_WRITE, IN_CLOSE_NOWRITE, IN_OPEN = 2, 8, 16, 32
CONTROLLER_PID = 52  # in gpuprof_control_page
MOST_MEMORY = 400 << 20  # of the daemon while it is flooded; the honest maximum is 256 MiB


class Watch:
    """inotify on one file: was it ever open for writing, or written?"""

    def __init__(self, path):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        added = self.libc.inotify_add_watch(self.fd, str(path).encode(),
                                            IN_MODIFY | IN_CLOSE_WRITE | IN_CLOSE_NOWRITE | IN_OPEN)
        check(added >= 0, f"inotify_add_watch {path}: {os.strerror(ctypes.get_errno())}")

    def events(self):
        mask = 0
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return 0
        at = 0
        while at < len(data):
            _, one, _, length = struct.unpack_from("iIII", data, at)
            mask |= one
            at += 16 + length
        return mask

    def close(self):
        os.close(self.fd)


def start_hostile(bench, forgery, attack="none", *more):
    victim = bench.dir / "victim"
    victim.write_bytes(b"root's own\n" * 60000)  # as large as a memfd
    directory = bench.dir / f"disguise-{forgery}"
    directory.mkdir(exist_ok=True)
    # A mount name space of its own: its bind mount ends with it.
    process = bench.spawn(
        ["unshare", "--mount", sys.executable, str(pathlib.Path(__file__).with_name("hostile.py")), str(bench.shim),
         forgery, attack, "--victim", str(victim), "--directory", str(directory), *more],
        bench.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer = process.stdout.readline().split()
    check(answer[:1] == ["ready"], f"hostile {forgery}: {answer}")
    return process, victim, f"/proc/{process.pid}/fd/{answer[1]}"


def end_hostile(process):
    process.stdin.close()
    process.wait(PATIENCE)


def controller(memfd):
    """The process that the control page (memfd_layout.h) names."""
    with open(memfd, "rb") as file:
        file.seek(4096 + CONTROLLER_PID)
        return int.from_bytes(file.read(4), "little")


def case_forged(bench):
    """Each forgery is told in one line, and nothing but a good memfd is opened for writing."""
    for forgery, why in FORGERIES.items():
        process, victim, memfd = start_hostile(bench, forgery)
        if forgery not in ("symlink", "bind-mapped"):
            check(os.readlink(memfd).startswith("/memfd:gpu-profiled"), f"{forgery}: {os.readlink(memfd)}")
        before, watch = victim.stat(), Watch(victim if forgery == "bind-mapped" else memfd)
        _, _, stderr = bench.attach(process.pid, "--duration", "1s", expect=3)
        check(why in stderr and stderr.count("\n") == 1, f"{forgery}: {stderr}")
        seen = watch.events()
        check(not seen & (IN_MODIFY | IN_CLOSE_WRITE), f"{forgery}: opened for writing (events {seen:#x})")
        after = victim.stat()
        equal((after.st_mtime_ns, after.st_ctime_ns), (before.st_mtime_ns, before.st_ctime_ns), f"{forgery}: the victim")
        watch.close()
        end_hostile(process)
    # The watch would have seen it: a good memfd is opened for writing, and written.
    process, _, memfd = start_hostile(bench, "good")
    watch = Watch(memfd)
    bench.attach(process.pid, "--duration", "300ms", expect=3)
    check(watch.events() & IN_MODIFY, "the control page of a good memfd was not written")
    watch.close()
    end_hostile(process)
    print(f"{len(FORGERIES)} forgeries refused")


def attack_beside_honest(bench, attack):
    """A launcher has an honest child and a hostile one. Returns (summary, stderr, the daemon's peak)."""
    truth = bench.truth_file()
    honest = bench.spawn(bench.workload("--threads", 2, "--launches", 0, "--rate", 1000),
                         bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=truth, FAKE_CUDA_INSTANT=1),
                         stdout=subprocess.DEVNULL)
    wait_for_memfd(honest.pid)
    hostile, _, memfd = start_hostile(bench, "good", attack)
    profile, summary = bench.dir / "attach.pb.gz", bench.dir / "attach.json"
    errors = (bench.dir / "stderr").open("w+")
    daemon = bench.spawn([str(bench.daemon), "--pid", str(honest.pid), "--pid", str(hostile.pid), "-o", str(profile),
                          "--summary-json", str(summary)], bench.env(), stderr=errors)
    wait_for_state(honest.pid, STATE_TRACING)
    wait_for(lambda: controller(memfd) == daemon.pid, "the daemon controls the hostile one too")
    peak = footprint(daemon.pid)[0]
    hostile.stdin.write("go\n")
    hostile.stdin.flush()
    os.set_blocking(hostile.stdout.fileno(), False)
    deadline = time.monotonic() + 120

    def memory():
        time.sleep(0.05)  # a process that is about to end still has a size until it has
        check(daemon.poll() is None,
              f"the daemon ended with {daemon.returncode}: {(bench.dir / 'stderr').read_text()[:4000]}")
        return footprint(daemon.pid)[0]

    while not hostile.stdout.readline():
        check(time.monotonic() < deadline, "the attack hangs")
        peak = max(peak, memory())
    time.sleep(1)  # what the attack left in the rings is read
    peak = max(peak, memory())
    daemon.send_signal(signal.SIGINT)
    equal(daemon.wait(PATIENCE), 0, "the daemon's exit status")
    end_hostile(hostile)
    honest.send_signal(signal.SIGTERM)
    equal(honest.wait(PATIENCE), 0, "the honest neighbour's exit status")
    errors.seek(0)
    result = json.loads(summary.read_text())
    mine = next(t for t in result["targets"] if t["pid"] == honest.pid)
    recorded = read_truth(truth)
    equal(mine["executions"]["received"] + sum(mine["executions"]["lost_in_ring"].values()),
          recorded["recorded_executions"], "the honest neighbour's executions, received and lost in the ring")
    by_pid = pprof_raw.load(profile).by(lambda s: s.labels.get("pid", "").split()[0], "gpu_executions")
    equal(by_pid[str(honest.pid)], mine["executions"]["received"], "the honest neighbour's executions in the profile")
    if not sum(mine["executions"]["lost_in_ring"].values()):
        equal(mine["gpu_time_ns"]["received"], recorded["recorded_gpu_ns"], "the honest neighbour's gpu_time")
    check_identity(mine)
    theirs = next(t for t in result["targets"] if t["pid"] == hostile.pid)
    return result, mine, theirs, peak


def case_bad_calls(bench):
    _, mine, theirs, peak = attack_beside_honest(bench, "calls")
    equal(sum(mine["executions"]["lost_in_ring"].values()), 0, "the honest neighbour's losses")
    refused = {k: v for k, v in theirs["executions"]["lost_in_ring"].items() if v}
    check(refused, f"nothing tells of the hostile records: {theirs}")
    print(f"refused: {refused}; daemon at most {peak >> 20} MiB")


def case_bad_records(bench):
    result, mine, theirs, peak = attack_beside_honest(bench, "records")
    equal(sum(mine["executions"]["lost_in_ring"].values()), 0, "the honest neighbour's losses")
    check(theirs["executions"]["lost_in_ring"]["malformed"] >= 600, f"malformed: {theirs['executions']}")
    for text in (json.dumps(result), pprof_raw.pprof("-raw", path=bench.dir / "attach.pb.gz")):
        check("\x1b" not in text and "\\u001b" not in text, "a control character of a hostile name came through")
    print(f"lost: {theirs['executions']['lost_in_ring']}; daemon at most {peak >> 20} MiB")


def case_flood(bench):
    result, mine, theirs, peak = attack_beside_honest(bench, "flood")
    # ASan keeps 256 MiB of freed memory, and its shadow and red zones come on top.
    check(peak <= MOST_MEMORY * (3 if bench.sanitized() else 1), f"the daemon grew to {peak >> 20} MiB")
    check(theirs["executions"]["received"] > 10000, f"no flood came through: {theirs['executions']}")
    print(f"received {theirs['executions']['received']}, names refused {theirs['names_refused']}, "
          f"lost {theirs['executions']['lost_in_ring']}, folded {result['join']['executions_folded']}; "
          f"honest neighbour lost {sum(mine['executions']['lost_in_ring'].values())}; daemon at most {peak >> 20} MiB")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
