# SPDX-License-Identifier: Apache-2.0
"""`gpu-profiled doctor`: each broken or odd set-up, made for real, has its exact finding and exit status.

Processes run on the fake driver, where a set-up needs it in namespaces, mounts and as a user of their own. A finding is
compared whole, in the text and in --json. Run by ctest: doctor.py CASE --build DIR. Needs root."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from bench import Bench, check, equal, keys_of, memfds, run_named_case, status, wait_for, STATE_IDLE, STATE_TRACING

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
VARIABLE = "CUDA_INJECTION64_PATH"
STATE_DECLINED, STATE_BUSY = 1, 7
RESTART = ", then restart it"
RUN = "gpu-profiled run -- COMMAND"
NOT_INJECTED = f"was started without the shim: restart it with {RUN}, or with {VARIABLE} set to the shim"
NO_CUDA = "does not use CUDA (libcuda is not mapped)"


class Stage:
    """A bench, and processes in the set-ups of the cases."""

    def __init__(self, build):
        self.bench = Bench(build)
        self.dir = self.bench.dir
        self.dir.chmod(0o755)
        self.shim = self.dir / "shim" / "libgpu-profiled-cupti.so"
        self.shim.parent.mkdir()
        shutil.copy2(self.bench.shim, self.shim)
        self.libraries = build / "tests/unit/doctor"
        self.set_ups = 0

    def inside(self, *mounts):
        """A mount namespace of its own with these mounts made in it by sh."""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-ec",
                "".join(f"{mount}\n" for mount in mounts) + 'exec "$@"', "sh"]

    def workload(self):
        return self.bench.workload("--threads", 1, "--launches", 0, "--seconds", 250, "--rate", 500)

    def spawn(self, command, **settings):
        """A process that ends with its children, when the stage closes at the latest."""
        return self.bench.spawn(command, self.bench.env(**settings), start_new_session=True, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def start(self, shim=None, prefix=(), command=None, mapped="libcuda.so", **settings):
        """A process whose CUDA_INJECTION64_PATH is `shim`, once it has mapped the library of that name."""
        if shim is not None:
            settings[VARIABLE] = shim
        process = self.spawn([*prefix, *(command or self.workload())], **settings)
        # As code: a loader that is at work, or will fail, has mapped other parts. libc comes last.
        wait_for(lambda: all(re.search(rf"r-xp .*/{name}", maps_of(process.pid)) for name in (re.escape(mapped), "libc[.-]")),
                 f"{mapped} in process {process.pid}")
        return process.pid

    def start_injected(self, state=STATE_IDLE, **settings):
        pid = self.start(shim=settings.pop("shim", self.shim), **settings)
        wait_for(lambda: memfds(pid) and status(pid)[0] == state, f"state {state} of {pid}")
        return pid

    def doctor(self, *arguments, prefix=()):
        return subprocess.run([*prefix, str(self.bench.daemon), "doctor", *map(str, arguments)], env=self.bench.env(),
                              capture_output=True, text=True, timeout=120, check=False)

    def expect(self, pid, state, finding, code, warnings=(), of=None, prefix=(), cause=None):
        """The row of `of` (default `pid`) is this, to the letter, and doctor --pid `pid` ends with `code`."""
        self.set_ups += 1
        of = of or pid
        told = self.doctor("--pid", pid, "--json", prefix=prefix)
        result = json.loads(told.stdout)
        row = next((row for row in result["processes"] if row["pid"] == of), None)
        check(row is not None, f"no row of {of}: {told.stdout}{told.stderr}")
        equal((row["state"], row["finding"]), (state, finding), f"finding of {self.set_ups}")
        equal(told.returncode, code, f"exit status for: {finding}")
        equal(result["ready"], code == 0, "ready")
        equal(row["warnings"], list(warnings), "warnings")
        if cause:
            equal(row["cause"], cause, "cause")
        text = self.doctor("--pid", pid, prefix=prefix)
        equal(text.returncode, code, "exit status of the text")
        lines = text.stdout.splitlines()
        check(any(re.fullmatch(rf" *{of}  {state} +.*  {re.escape(finding)}", line) for line in lines),
              f"the text lacks '{finding}':\n{text.stdout}")
        for warning in warnings:
            check(any(line.strip() == f"warning: {warning}" for line in lines), f"the text lacks '{warning}'")
        return row

    def broken(self, path, text, cause, **how):
        """A process with the variable set to `path` is broken for that reason."""
        pid = self.start(shim=path, **how)
        self.expect(pid, "broken", f"broken injection: {VARIABLE}={path}: {text}", 3, cause=cause)
        return pid

    def put(self, name, content=None, mode=0o644):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            shutil.copy2(self.shim, path)
        else:
            path.write_bytes(content)
        path.chmod(mode)
        return path

    def close(self):
        print(f"{self.set_ups} set-ups")
        for process in self.bench.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.bench.close()


def maps_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def children_of(pid):
    text = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(line) for line in text.split()]


def ready(pid):
    return f"ready: gpu-profiled --pid {pid}"


def attach(stage, pid):
    """gpu-profiled --pid on it, tracing."""
    return stage.spawn([str(stage.bench.daemon), "--pid", str(pid), "-o", str(stage.dir / f"{pid}.pb.gz")]).pid


def case_states(stage):
    """What the shim's page tells, and processes without a shim that are as they should be."""
    pid = stage.start_injected()
    row = stage.expect(pid, "idle", ready(pid), 0)
    equal((row["shim"], row["cupti"]["version"], row["cuda_driver"]["cuda"]), (str(stage.shim), "13.0", "13.0"), "on")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: f"\nState:\tT" in pathlib.Path(f"/proc/{pid}/status").read_text(), "it is stopped")
    stage.expect(pid, "idle", ready(pid), 0, warnings=[
        f"is stopped, so tracing cannot begin: continue it (kill -CONT {pid}) and attach again"])
    os.kill(pid, signal.SIGCONT)

    pid = stage.start_injected(state=STATE_DECLINED, GPU_PROFILED_CUPTI_PATH="/no/such/libcupti.so.13")
    declined = stage.doctor("--pid", pid, "--json")
    text = json.loads(declined.stdout)["processes"][0]["finding"]
    check(text.startswith("the shim declined: ") and "/no/such/libcupti.so.13" in text, text)
    stage.expect(pid, "declined", text, 3)
    pid = stage.start(shim=stage.shim, mapped=stage.shim.name, GPU_PROFILED_DISABLE=1)
    wait_for(lambda: json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]["state"] == "declined",
             "it has declined")
    stage.expect(pid, "declined", json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]["finding"], 3)

    sleeper = stage.start(shim=stage.shim, command=["sleep", "300"], mapped="sleep")
    stage.expect(sleeper, "not-yet", "has not initialised CUDA yet: attach again after its first CUDA call", 3)
    sleeper = stage.start(command=["sleep", "300"], mapped="sleep")
    stage.expect(sleeper, "no-cuda", f"{NO_CUDA}: give the pid of the process that does, and start it with gpu-profiled "
                 f"run, or with {VARIABLE} set to the shim", 3)


def case_profiled(stage):
    """While gpu-profiled is attached; a second CUPTI client; launches without records."""
    pid = stage.start_injected()
    daemon = attach(stage, pid)
    wait_for(lambda: status(pid)[0] == STATE_TRACING, "it is traced")
    wait_for(lambda: stage.doctor("--pid", pid, "--json").stdout.count('"state": "profiled"'), "its first record")
    row = json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]
    check(re.fullmatch(rf"profiled by gpu-profiled \(pid {daemon}\): [\d,]+ executions? recorded since it started",
                       row["finding"]), row["finding"])
    equal(row["controller"], {"name": "gpu-profiled", "pid": daemon}, "controller")
    equal(stage.doctor("--pid", pid).returncode, 0, "exit status")

    pid = stage.start_injected(FAKE_CUDA_OTHER_CLIENT=1)
    attach(stage, pid)
    wait_for(lambda: status(pid)[0] == STATE_BUSY, "it is busy")
    text = json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]["finding"]
    check(text.startswith("another CUPTI client (torch.profiler, nsys, ncu, …) holds the profiling interface: "), text)
    stage.expect(pid, "busy", text, 3)

    pid = stage.start_injected(FAKE_CUDA_LATE_MS=200000)
    daemon = attach(stage, pid)
    wait_for(lambda: json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]["launches"] > 0, "it launches")
    stage.expect(pid, "armed", f"profiled by gpu-profiled (pid {daemon}): waits for its first GPU work", 0, warnings=[
        "launches without a record for 2 s: CUPTI gives no activity; another tool may have taken it over: end that, or "
        "restart the process"])


def case_files(stage):
    """The file that the variable names: what is wrong with it."""
    correct = "correct the variable" + RESTART
    stage.broken("/no/such/shim.so", f"there is no /no: install the shim there, or {correct}", "missing")
    gone = stage.dir / "gone.so"
    stage.broken(gone, f"there is no such file: install the shim there, or {correct}", "missing")
    link = stage.dir / "link.so"
    link.symlink_to("nowhere.so")
    stage.broken(link, f"{link} is a link to nowhere.so, which does not exist: install the shim there, or {correct}",
                 "missing")
    stage.broken(stage.shim / "below.so", f"{stage.shim} is no directory: {correct}", "missing")
    (stage.dir / "folder.so").mkdir()
    stage.broken(stage.dir / "folder.so", "that is a directory (docker run -v makes one where the source is missing): "
                 f"mount the shim's file there{RESTART}", "no-file")
    os.mkfifo(stage.dir / "fifo.so", 0o600)
    stage.broken(stage.dir / "fifo.so", f"that is no regular file: {correct}", "no-file", prefix=AS_NOBODY)
    stage.broken("shim/none.so", f"that is no absolute path: give one{RESTART}", "no-path")
    stage.broken("", f"it is empty: set it to the shim{RESTART}", "no-path")

    anew = f"copy the shim anew{RESTART}"
    stage.broken(stage.put("empty.so", b""), f"it is empty: {anew}", "no-elf")
    stage.broken(stage.put("text.so", b"#!/bin/sh\nexit 0\n"), f"it is no library: not an ELF file: {anew}", "no-elf")
    image = stage.shim.read_bytes()
    cut = stage.put("cut.so", image[:100])
    pid = stage.start(shim=cut)
    told = json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]
    check(told["finding"].endswith(anew) and told["cause"] == "no-elf", told)
    stage.expect(pid, "broken", told["finding"], 3)
    here, there = ("x86-64", "aarch64") if os.uname().machine == "x86_64" else ("aarch64", "x86-64")
    other = image[:18] + (183 if here == "x86-64" else 62).to_bytes(2, "little") + image[20:]
    stage.broken(stage.put("other.so", other), f"it is for {there}, and the process runs on {here}: name the shim for "
                 f"that{RESTART}", "other-machine")
    stage.broken(stage.put("small.so", image[:4] + b"\x01" + image[5:]), "it is for a 32-bit processor, and the process "
                 f"runs on {here}: name the shim for that{RESTART}", "other-machine")
    stage.broken(shutil.copy(stage.libraries / "libdoctor_no_entry.so", stage.dir), "it has no function "
                 "InitializeInjection, so it is no injection library: name the shim (libgpu-profiled-cupti.so)" + RESTART,
                 "no-export", mapped="libdoctor_no_entry.so")
    newer = shutil.copy(stage.libraries / "libdoctor_needs_newer.so", stage.dir)
    pid = stage.start(shim=newer)
    libc = re.search(r"(\S+/libc[.-]\S*so\S*)", maps_of(pid)).group(1)
    version = max(re.findall(r"GLIBC_2\.(\d+)", subprocess.run(["readelf", "-V", libc], capture_output=True, text=True,
                                                               check=True).stdout), key=int)
    stage.expect(pid, "broken", f"broken injection: {VARIABLE}={newer}: it needs GLIBC_2.99 of libc.so.6, and {libc} has "
                 f"no more than GLIBC_2.{version}: use the portable shim (glibc 2.17 and newer; scripts/build-portable)"
                 + RESTART, 3, cause="old-libc")


def case_users(stage):
    """Who runs the process, and who runs doctor."""
    hidden = stage.put("hidden.so", mode=0o640)
    stage.broken(hidden, f"its user (uid {NOBODY}) may not read it: chmod o+r {hidden}{RESTART}", "not-readable",
                 prefix=AS_NOBODY)
    closed = stage.put("closed/shim.so")
    closed.parent.chmod(0o700)
    stage.broken(closed, f"its user (uid {NOBODY}) may not enter the directory {closed.parent}: chmod o+x {closed.parent}, "
                 f"or put the shim elsewhere{RESTART}", "not-searchable", prefix=AS_NOBODY)
    theirs = stage.start_injected(prefix=AS_NOBODY)
    stage.expect(theirs, "idle", ready(theirs), 0)
    stage.expect(theirs, "idle", ready(theirs), 0, prefix=AS_NOBODY)  # one's own: no root needed
    ours = stage.start_injected()
    stage.expect(ours, "unseen", f"not permitted to look into process {ours}: run as root, or give gpu-profiled "
                 "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH", 3, prefix=AS_NOBODY)


def case_namespaces(stage):
    """Mounts and namespaces of the process's own."""
    folder = stage.shim.parent
    mount = f": mount the shim there (docker run -v, a volume){RESTART}"
    stage.broken(stage.shim, "there is no such file in its root file system (there is one outside of it)" + mount, "missing",
                 prefix=stage.inside(f"mount -t tmpfs tmpfs {folder}"))
    far = stage.put("volume/bin/shim.so")
    stage.broken(far, f"there is no {far.parent} in its root file system (there is one outside of it)" + mount, "missing",
                 prefix=stage.inside(f"mount -t tmpfs tmpfs {far.parent.parent}"))
    stage.broken(stage.shim, "it lies on a file system that is mounted noexec, so that it cannot be mapped: mount it "
                 f"without, or put the shim elsewhere{RESTART}", "noexec",
                 prefix=stage.inside(f"mount --bind {folder} {folder}", f"mount -o remount,bind,noexec {folder}"))
    copied = [f"mount -t tmpfs tmpfs {stage.dir}/far", f"cp {stage.shim} {stage.dir}/far/{stage.shim.name}"]
    (stage.dir / "far").mkdir()
    pid = stage.start_injected(shim=f"{stage.dir}/far/{stage.shim.name}", prefix=stage.inside(*copied))
    stage.expect(pid, "idle", ready(pid), 0)
    for kind in (["--user", "--map-root-user"], ["--net"], ["--pid", "--fork", "--kill-child"], ["--ipc", "--uts", "--cgroup"]):
        outer = stage.spawn(["unshare", *kind, *stage.workload()], **{VARIABLE: stage.shim})
        forks = "--fork" in kind
        wait_for(lambda: not forks or children_of(outer.pid), "the inner process")
        inner = children_of(outer.pid)[0] if forks else outer.pid
        wait_for(lambda: memfds(inner) and status(inner)[0] == STATE_IDLE, f"{kind}: idle")
        stage.expect(outer.pid, "idle", ready(inner), 0, of=inner)


def case_environment(stage):
    """The variable: not there, lost on the way, another tool's."""
    pid = stage.start()
    stage.expect(pid, "not-injected", NOT_INJECTED, 3)
    for name, has, hint in (
            ("sudo", True, "sudo (process {}) was started with it and does not pass it on: sudo --preserve-env=" + VARIABLE),
            ("launcher", True, "launcher (process {}), above it, was started with it: see what lies between them"),
            ("slurmstepd", False, "under slurmstepd (process {}) it is set by srun --export=ALL," + VARIABLE + "=PATH"),
            ("raylet", False, 'under raylet (process {}) it is set by runtime_env={{"env_vars": {{"' + VARIABLE + '": PATH}}}}')):
        starter = shutil.copy("/bin/sh", stage.dir / name)
        outer = stage.spawn([str(starter), "-c", f'unset {VARIABLE}; "$@"; true', "sh", *stage.workload()],
                            **({VARIABLE: stage.shim} if has else {}))
        wait_for(lambda: any("libcuda.so" in maps_of(child) for child in children_of(outer.pid)), "its child uses CUDA")
        child = children_of(outer.pid)[0]
        stage.expect(outer.pid, "not-injected", f"{NOT_INJECTED} ({hint.format(outer.pid)})", 3, of=child)
    foreign = shutil.copy(stage.libraries / "libdoctor_injection.so", stage.dir)
    pid = stage.start(shim=foreign, mapped="libdoctor_injection.so")
    stage.expect(pid, "foreign", f"was started with another tool's injection ({VARIABLE}={foreign}): restart it with the "
                 "variable set to the shim", 3)


def case_changes(stage):
    """Files that came, went or were replaced while the process ran; two of a kind."""
    late = stage.dir / "late.so"
    pid = stage.start(shim=late)
    time.sleep(0.05)  # the clock of files is coarse
    stage.put(late.name)
    told = json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]["finding"]
    check(re.fullmatch(rf"broken injection: {VARIABLE}={late}: it can be loaded now, but was put there or changed after the "
                       r"process started \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\): restart it", told), told)
    stage.expect(pid, "broken", told, 3, cause="changed-since")

    pid = stage.start_injected()
    stage.put("new.so").rename(stage.shim)
    replaced = (f"its shim {stage.shim} was replaced or removed on disk since it was loaded: it runs on the old one until "
                "it is restarted")
    stage.expect(pid, "idle", ready(pid), 0, warnings=[replaced])
    pid = stage.start_injected()
    stage.expect(pid, "idle", ready(pid), 0)
    shutil.copy2(stage.shim, stage.dir / "again.so")
    stage.shim.unlink()
    stage.expect(pid, "idle", ready(pid), 0, warnings=[replaced])
    (stage.dir / "again.so").rename(stage.shim)

    second = stage.put(f"second/{stage.shim.name}")
    pid = stage.start_injected(LD_PRELOAD=stage.bench.preload(second))
    told = json.loads(stage.doctor("--pid", pid, "--json").stdout)["processes"][0]["warnings"]
    check(len(told) == 1 and told[0].startswith("it has mapped two shims, ") and str(second) in told[0], told)
    stage.expect(pid, "idle", ready(pid), 0, warnings=told)

    pid = stage.start_injected(GPU_PROFILED_TYPO=1)
    stage.expect(pid, "idle", ready(pid), 0,
                 warnings=["its shim knows no variable GPU_PROFILED_TYPO: correct the name"])
    cupti12 = stage.bench.build / "tests/fake_cuda/cupti12/libcupti.so.12"
    pid = stage.start_injected(GPU_PROFILED_CUPTI_PATH=cupti12, FAKE_CUDA_API=21)
    better = "use {} or newer (GPU_PROFILED_CUPTI_PATH)"
    stage.expect(pid, "idle", ready(pid), 0, warnings=[
        "CUPTI 12.3 may deadlock when tracing is switched off, so the process stays armed once it was armed: "
        + better.format("12.8"), "CUPTI 12.3 cannot sample instructions (--pc-sampling): " + better.format("12.9")])


def case_trees(stage):
    """A process and its children: what they make together. Named processes that are none."""
    outer = stage.spawn(["sh", "-c", '"$@"; true', "sh", *stage.workload()], **{VARIABLE: stage.shim})
    wait_for(lambda: any(memfds(child) for child in children_of(outer.pid)), "a child with a shim")
    child = children_of(outer.pid)[0]
    wait_for(lambda: status(child)[0] == STATE_IDLE, "idle")
    stage.expect(outer.pid, "idle", ready(child), 0, of=child)
    stage.expect(outer.pid, "not-yet", "has not initialised CUDA yet: attach again after its first CUDA call", 0)
    mixed = stage.spawn(["sh", "-c", f'"$@" & {VARIABLE}=/gone.so "$@"; true', "sh", *stage.workload()],
                        **{VARIABLE: stage.shim})
    wait_for(lambda: sum("libcuda.so" in maps_of(child) for child in children_of(mixed.pid)) == 2, "both children")
    good = next(child for child in children_of(mixed.pid) if b"/gone.so" not in environment_of(child))
    wait_for(lambda: memfds(good) and status(good)[0] == STATE_IDLE, "idle")
    stage.expect(mixed.pid, "idle", ready(good), 3, of=good)  # one of two is not enough
    bad = next(child for child in children_of(mixed.pid) if child != good)
    _, summary, told = stage.bench.attach(mixed.pid, "--duration", "300ms")  # nor is it passed over in a profile
    equal(len(summary["targets"]), 1, "targets")
    equal([line for line in told.splitlines() if "not profiled" in line],
          [f"gpu-profiled: not profiled: process {bad}: broken injection: {VARIABLE}=/gone.so: there is no such file: install "
           f"the shim there, or correct the variable{RESTART}"], "lines about the other child")
    if not stage.bench.sanitized():
        forked_child(stage)

    told = stage.doctor("--pid", 2**22 + 1)
    equal((told.returncode, told.stderr), (3, f"gpu-profiled: no such process: {2**22 + 1}\n"), "no process")
    thread = next(int(name) for name in os.listdir(f"/proc/{child}/task") if int(name) != child)
    told = stage.doctor("--pid", thread)
    equal((told.returncode, told.stderr), (3, f"gpu-profiled: {thread} is a thread of process {child}, and processes are "
                                              f"profiled whole: use --pid {child}\n"), "a thread")
    for wrong in (("4711",), ("--pid", "x"), ("--pid", 1, "--", "true"), ("--pid", 1, "--duration", "1s")):
        equal(stage.doctor(*wrong).returncode, 2, f"usage: {wrong}")


def case_host(stage):
    """This host, as root and not, and kernels that lack something: only that is pretended."""
    told = stage.doctor("--json")
    host = json.loads(told.stdout)["host"]
    equal((told.returncode, host["refusals"], host["btf"]), (0, [], True), told.stdout)
    check(host["attach"].startswith("uprobe_multi") or "perf uprobes" in host["attach"], host["attach"])
    check(stage.doctor().stdout.startswith("this host can be profiled\n"), "the text")
    equal(host["kernel"], os.uname().release, "kernel")
    check(all(host["capabilities"].values()), host["capabilities"])
    pid = stage.start_injected()
    _, summary, _ = stage.bench.attach(pid, "--duration", "300ms")
    equal(summary["attach"], host["attach"], "what a profile uses")
    for pretended, text in (
            ("pretend-old-kernel", "kernel too old: eBPF attach cookies need Linux 5.15 or newer"),
            ("pretend-lockdown", "the kernel is locked down (confidentiality), which forbids eBPF to read memory: boot with "
             "lockdown=integrity or none"),
            ("pretend-no-btf", "no kernel type information at /sys/kernel/btf/vmlinux"), ("pretend-memlock", "ulimit -l")):
        told = stage.doctor("--json", prefix=["env", f"GPU_PROFILED_DEBUG_FALLBACK={pretended}"])
        refusals = json.loads(told.stdout)["host"]["refusals"]
        check(told.returncode == 3 and len(refusals) == 1 and text in refusals[0], told.stdout)
    told = stage.doctor("--json", prefix=["env", "GPU_PROFILED_DEBUG_FALLBACK=no-uprobe-multi"])
    check(told.returncode == 0 and "CAP_SYS_ADMIN is needed, and kept" in told.stdout, told.stdout)
    told = stage.doctor(prefix=AS_NOBODY)
    equal(told.returncode, 3, "exit status of another user")
    check("refused: missing CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH: run gpu-profiled with sudo"
          in told.stdout, told.stdout)
    told = stage.doctor(prefix=["unshare", "--pid", "--fork", "--mount-proc"])
    check("warning: this is a pid namespace of its own" in told.stdout, told.stdout)


def case_documented_keys(stage):
    """docs/doctor.md names every key of --json, every state and every cause."""
    page = (pathlib.Path(__file__).resolve().parent.parent.parent / "docs/doctor.md").read_text()
    profiled, busy, broken = (stage.start_injected(), stage.start_injected(FAKE_CUDA_OTHER_CLIENT=1),
                              stage.start(shim="/no/such.so"))
    for pid, state in ((profiled, STATE_TRACING), (busy, STATE_BUSY)):
        attach(stage, pid)
        wait_for(lambda: status(pid)[0] == state, f"state {state}")
    told = json.loads(stage.doctor("--json", *[word for pid in (profiled, busy, broken) for word in ("--pid", pid)]).stdout)
    gpus = {"model", "uuid", "bus", "vgpu", "mig_instances"}  # these take GPUs; cupti_users a tool's library
    keys = keys_of(told) | keys_of(json.loads(stage.doctor("--json").stdout)) | gpus | {"cupti_users"}
    keys = {key for key in keys if not key.startswith("CAP_")}
    equal({"controller", "cause", "cupti", "limits"} - keys, set(), "keys of these processes")
    source = (pathlib.Path(__file__).resolve().parent.parent.parent / "daemon")
    words = set()
    for file in ("cli/process_check.cc", "doctor/library_check.cc", "doctor/cupti_users.cc"):
        text = (source / file).read_text()
        for table in re.findall(r"kNames\[\] = \{(.*?)\}", text, re.DOTALL):
            words |= set(re.findall(r'"([a-z-]+)"', table))
        words |= set(re.findall(r'push_back\(\s*\{"([a-z-]+)"', text))
    check(len(words) > 30, f"too few words: {words}")
    equal({name for name in keys | words if f"`{name}`" not in page}, set(), "not in docs/doctor.md")


def environment_of(pid):
    return pathlib.Path(f"/proc/{pid}/environ").read_bytes()


def forked_child(stage):
    """A data loader's worker: a fork of a process that uses CUDA is no failure."""
    program = ("import ctypes, os, time\nctypes.CDLL('libcuda.so.1').cuInit(0)\npid = os.fork()\ntime.sleep(300)")
    pid = stage.start_injected(command=[sys.executable, "-c", program])
    wait_for(lambda: children_of(pid), "its child")
    child = children_of(pid)[0]
    stage.expect(pid, "forked", f"forked by process {pid} after that loaded the shim: CUDA does not work in such a child, so "
                 "there is nothing to profile", 0, of=child)


def main():
    cases = {name.removeprefix("case_"): function for name, function in globals().items() if name.startswith("case_")}

    def run(function, options):
        stage = Stage(pathlib.Path(options.build).resolve())
        try:
            function(stage)
        finally:
            stage.close()

    return run_named_case(cases, __doc__.split("\n", maxsplit=1)[0], run)


if __name__ == "__main__":
    sys.exit(main())
