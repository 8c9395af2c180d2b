# SPDX-License-Identifier: Apache-2.0
"""The daemon's memory with many targets under PC sampling, each with call paths, kernels and cubins of its own.

Run by ctest: many_targets.py memory --build DIR, with 8 targets; GPU_PROFILED_TEST_TARGETS=64 is the number that
256 MiB are promised for. Needs root; without it the case is skipped (exit 77).
"""

import itertools
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

from bench import PATIENCE, check, check_identity, equal, read_truth, run_named_case, run_on_bench, wait_for_memfd

CUBINS = pathlib.Path(__file__).resolve().parent.parent / "data/cubin"
# name: (file, function, where samples fall)
KERNELS = {
    "chain": ("inline_chain.sm_90", "chain", "0x70:short_scoreboard 0x190:math_pipe_throttle*12/5 0x1ea0:wait"),
    "softmax": ("triton_softmax.sm_90", "softmax", "0x100:long_scoreboard*5/5 0x200:barrier*3/2 0x600:selected"),
    "scale_up": ("equal_offsets.sm_80", "_Z8scale_upPff", "0x70:selected 0x80:long_scoreboard*8/7 0x90:lg_throttle"),
}
BOUND, BOUND_TARGETS = 256 << 20, 64
A_TARGET = 512 << 10  # at least; fewer targets have so much less
# More than the daemon's store of cubins holds, whatever the number of targets.
IMAGE_BYTES = 192 << 20
PLAIN_KERNELS = 40
PATHS = 60


def grown(cubin, more, rng):
    """The cubin with `more` bytes that nothing compresses, before its section headers: a driver takes an image to
    end with them."""
    offset, = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, entries = struct.unpack_from("<HH", cubin, 0x3A)
    out = bytearray(cubin) + rng.randbytes(more + -(len(cubin) + more) % 8)
    table = cubin[offset:offset + entry_bytes * entries]
    struct.pack_into("<Q", out, 0x28, len(out))
    return bytes(out) + table


def write_session(folder, index, targets):
    rng = random.Random(index)
    more = IMAGE_BYTES // targets // len(KERNELS)
    lines = ["set clock_khz 1000000"]
    for name, (file, function, pcs) in KERNELS.items():
        image = folder / f"{name}{index}.cubin"
        image.write_bytes(grown((CUBINS / f"{file}.cubin").read_bytes(), more, rng))
        lines += [f"module m_{name} file={image}", f"kernel {name} function={function} module=m_{name} duration=200us",
                  f"pcs {name} {pcs}"]
    plain = [f"plain_kernel_of_process_{index}_number_{k}" for k in range(PLAIN_KERNELS)]
    lines += [f"kernel {name} duration=100us" for name in plain]
    for thread in ("first on=main", "second"):
        lines += [f"thread {thread}", "  rate 100", "  loop 1000000"]
        names = itertools.cycle(plain + list(KERNELS))
        for _ in range(PATHS):
            path = "/".join(rng.choices("abcdefghijklmnop", k=rng.randint(4, 24)))
            lines += [f"    path {path}", *[f"    launch {next(names)}" for _ in range(3)]]
        lines += ["  end"]
    session = folder / f"{index}.session"
    session.write_text("\n".join(lines) + "\n")
    return session


def memory(pid, field):
    """Bytes of a field of /proc/PID/status; 0 when it has ended."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def mapped_twice(pid):
    """Bytes of the rings that resident memory counts a second time: their data lies twice in the address space."""
    twice, of_ring = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name:
            of_ring = line.endswith("anon_inode:bpf-map")
        elif of_ring and name == "Rss":
            twice += int(rest.split()[0]) * 1024 // 2
    return twice


def start_targets(bench, count):
    targets = []
    for index in range(count):
        session = write_session(bench.dir, index, count)
        env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(f"truth{index}"),
                        FAKE_CUDA_FIRST_GPU=index)  # one process a GPU is sampled
        targets.append(bench.spawn(bench.player(session), env, stdout=subprocess.DEVNULL))
    for target in targets:
        wait_for_memfd(target.pid)
    return targets


def end_targets(bench, targets):
    for target in targets:
        target.send_signal(signal.SIGTERM)
    for index, target in enumerate(targets):
        equal(target.wait(PATIENCE), 0, f"exit status of target {index}")
        read_truth(bench.truth_file(f"truth{index}"))


def check_summary(summary, targets):
    check_identity(summary["total"])
    by_pid = {entry["pid"]: entry for entry in summary["targets"]}
    for target in targets:
        sampling = by_pid[target.pid]["pc_sampling"]
        check(sampling["shim"]["samples"] > 0, f"target {target.pid} was not sampled: {sampling}")


def case_memory(bench):
    """Peak memory, the profile's writing included. GPU_PROFILED_TEST_TARGET_SECONDS makes it longer than 15 s."""
    count = int(os.environ.get("GPU_PROFILED_TEST_TARGETS", 8))
    seconds = int(os.environ.get("GPU_PROFILED_TEST_TARGET_SECONDS", 15))
    targets = start_targets(bench, count)
    profile, result, errors = bench.dir / "x.pb.gz", bench.dir / "x.json", bench.dir / "stderr"
    pids = itertools.chain.from_iterable(("--pid", str(target.pid)) for target in targets)
    daemon = bench.spawn([str(bench.daemon), *pids, "--pc-sampling", "continuous", "-o", str(profile), "--summary-json",
                          str(result)], bench.env(), stderr=errors.open("w"))
    peak = twice = before = 0
    end = time.monotonic() + seconds
    asked = False
    while daemon.poll() is None:
        peak = max(peak, memory(daemon.pid, "VmHWM"))
        if not asked and time.monotonic() >= end:
            twice = mapped_twice(daemon.pid)
            before = memory(daemon.pid, "VmRSS") - twice
            daemon.send_signal(signal.SIGINT)
            asked = True
        check(time.monotonic() < end + 2 * PATIENCE, "the daemon does not end")
        time.sleep(0.01)
    equal(daemon.returncode, 0, f"the daemon's exit status ({errors.read_text()})")
    end_targets(bench, targets)
    summary = json.loads(result.read_text())
    peak -= twice
    print(f"{count} targets: at most {peak / 2**20:.0f} MiB, {before / 2**20:.0f} MiB before the profile is written, the "
          f"rings' second mapping of {twice / 2**20:.0f} MiB not counted; "
          f"{summary['total']['executions']['received']} executions, cubins {summary['cubin_store']}, "
          f"profile {profile.stat().st_size >> 10} KiB")
    check_summary(summary, targets)
    bound = BOUND - max(BOUND_TARGETS - count, 0) * A_TARGET
    check(bench.sanitized() or peak <= bound, f"{peak / 2**20:.0f} of {bound / 2**20:.0f} MiB")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run_on_bench))
