# SPDX-License-Identifier: Apache-2.0
"""gpu-profiled without root: file capabilities, the process of a third user, a shim file that many threads
run while daemons attach, detach and are killed.

Run by ctest: privileges.py CASE --build DIR. Needs root, to become those users."""

import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys

import pprof_raw
from bench import PATIENCE, STATE_IDLE, STATE_TRACING, check, check_accounting, emitted, equal, read_truth, wait_for
from bench import wait_for_memfd, wait_for_state
from endurance import main

PROFILER, OWNER = 64001, 64002  # users that own nothing else
# capabilities(7)
DAC_READ_SEARCH, SYS_PTRACE, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE = 2, 19, 34, 38, 39, 40
KEPT = (DAC_READ_SEARCH, SYS_PTRACE, SYSLOG, PERFMON, BPF, CHECKPOINT_RESTORE)


def set_capabilities(path, capabilities):
    """setcap ...+ep: struct vfs_cap_data of revision 2, effective."""
    mask = sum(1 << capability for capability in capabilities)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, low, 0, high, 0))


def as_user(uid):
    return {"user": uid, "group": uid, "extra_groups": []}


def start_as_owner(bench):
    """The workload as a user of its own, in files that everybody may read."""
    bench.dir.chmod(0o755)
    libraries = bench.dir / "libraries"
    libraries.mkdir()
    fake = bench.build / "tests/fake_cuda"
    for folder in (fake / "lib", fake / "cupti13"):
        for path in folder.iterdir():
            if path.is_file():
                shutil.copy2(path, libraries)
    shim = bench.dir / bench.shim.name
    shutil.copy2(bench.shim, shim)
    home = bench.dir / "owner"
    home.mkdir()
    os.chown(home, OWNER, OWNER)
    env = bench.env(CUDA_INJECTION64_PATH=shim, FAKE_CUDA_TRUTH=home / "truth.json", FAKE_CUDA_INSTANT=1)
    env["LD_LIBRARY_PATH"] = f"{bench.programs}:{libraries}"
    env["GPU_PROFILED_CUPTI_PATH"] = str(libraries / "libcupti.so.13")
    target = bench.spawn(bench.workload("--threads", 2, "--launches", 0, "--rate", 1000, "--memcpy-every", 20), env,
                         stdout=subprocess.DEVNULL, **as_user(OWNER))
    wait_for_memfd(target.pid)
    return target, home / "truth.json"


def status_field(pid, name):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split(":")[1].split() for line in file if line.startswith(name + ":"))


def case_file_capabilities(bench):
    """A user with nothing but the file's six capabilities profiles another user's process: exact, with whole
    stacks, the file his own; and each capability that is missing is named."""
    target, truth = start_as_owner(bench)
    daemon = bench.dir / "gpu-profiled"
    shutil.copy(bench.daemon, daemon)
    daemon.chmod(0o755)
    set_capabilities(daemon, KEPT)
    home = bench.dir / "profiler"
    home.mkdir()
    os.chown(home, PROFILER, PROFILER)
    home.chmod(0o700)
    profile, summary = home / "x.pb.gz", home / "x.json"
    command = [str(daemon), "--pid", str(target.pid), "-o", str(profile), "--summary-json", str(summary)]
    with (bench.dir / "stderr").open("w+") as errors:
        attached = bench.spawn(command, {"PATH": os.environ["PATH"]}, stderr=errors, **as_user(PROFILER))
        wait_for(lambda: attached.poll() is not None or emitted(target.pid) >= 2000, "2,000 executions")
        if attached.poll() is None:
            equal(status_field(attached.pid, "Uid"), [str(PROFILER)] * 4, "the profiler's user")
            equal(int(status_field(attached.pid, "CapEff")[0], 16), sum(1 << c for c in KEPT), "its capabilities")
        attached.send_signal(signal.SIGINT)
        code = attached.wait(PATIENCE)
        errors.seek(0)
        stderr = errors.read()
    equal(code, 0, f"exit status ({stderr})")
    target.send_signal(signal.SIGTERM)
    equal(target.wait(PATIENCE), 0, "the target's exit status")
    recorded = read_truth(truth)
    told = json.loads(summary.read_text())
    check_accounting(told, recorded["recorded_executions"])
    stacks = told["targets"][0]["stacks"]
    equal(stacks["whole"], stacks["taken"], "stacks unwound whole")
    read = pprof_raw.load(profile)
    equal(read.total(), recorded["recorded_gpu_ns"], "gpu_time")
    names = {name for row in recorded["rows"] for name in row["stack"]}
    for sample in read.samples:
        check(names & set(sample.functions), f"no function of the program's: {sample.functions}")
    info = profile.stat()
    equal((info.st_uid, stat.S_IMODE(info.st_mode)), (PROFILER, 0o600), "owner and mode of the profile")
    print(f"{recorded['recorded_executions']} executions of another user's process, {stacks['taken']} stacks, all whole")


def case_capability_missing(bench):
    """Without one of the four that nothing works without: one line names it."""
    target, _ = start_as_owner(bench)
    for capability, name in ((BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON"), (SYS_PTRACE, "CAP_SYS_PTRACE"),
                             (DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH")):
        daemon = bench.dir / f"without-{name}"
        shutil.copy(bench.daemon, daemon)
        daemon.chmod(0o755)
        set_capabilities(daemon, [c for c in KEPT if c != capability])
        done = subprocess.run([str(daemon), "--pid", str(target.pid), "--duration", "1s"], capture_output=True, text=True,
                              timeout=PATIENCE, cwd="/", check=False, **as_user(PROFILER))
        equal(done.returncode, 3, f"exit status without {name} ({done.stderr})")
        check(f"missing {name}:" in done.stderr and done.stderr.count("\n") == 1, f"without {name}: {done.stderr}")


def case_under_fire(bench, cycles=12):
    """64 threads run the optimised sites at every launch while a daemon attaches, and is killed, or detaches.
    The shim's file is a copy: its sites are nobody else's."""
    shutil.copy2(bench.shim, bench.dir / "libown-shim.so")
    bench.shim = bench.dir / "libown-shim.so"
    target = bench.start_target("--threads", 64, "--launches", 0, "--rate", 300, FAKE_CUDA_INSTANT=1,
                                FAKE_CUDA_REPORT=bench.dir / "violations")
    for cycle in range(cycles):
        profile = bench.dir / f"fire{cycle}.pb.gz"
        daemon = bench.spawn([str(bench.daemon), "--pid", str(target.pid), "--stack-rate", "all", "-o", str(profile)],
                             bench.env(), stderr=subprocess.DEVNULL)
        before = emitted(target.pid)
        wait_for_state(target.pid, STATE_TRACING)
        wait_for(lambda: emitted(target.pid) >= before + 3000, "3,000 executions")
        if cycle % 2 == 0:
            daemon.kill()
            daemon.wait(PATIENCE)
            check(not profile.exists(), "a killed daemon left a file")
        else:
            daemon.send_signal(signal.SIGINT)
            equal(daemon.wait(PATIENCE), 0, "the daemon's exit status")
        check(target.poll() is None, f"cycle {cycle}: the target died with {target.returncode}")
        wait_for_state(target.pid, STATE_IDLE)
    target.send_signal(signal.SIGTERM)
    equal(target.wait(PATIENCE), 0, "the target's exit status")
    truth = read_truth(bench.truth_file())
    equal(truth["cupti"]["subscribes"], cycles, "subscriptions")
    print(f"{cycles} daemons, half of them killed, over 64 threads and {truth['launches']} launches")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
