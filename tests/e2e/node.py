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

    def __init__(self, build, mode):
        self.bench = Bench(build, mode)
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


def start_pair(node, **more):
    return node.start(*ENDLESS, **more), node.start(*ENDLESS, **more)


def overlay(place, name):
    """A mount of its own of the files in `place`/image, as a container has of its image."""
    folders = {part: place / f"{name}-{part}" for part in ("upper", "work", "root")}
    for folder in folders.values():
        folder.mkdir()
    options = f"lowerdir={place}/image,upperdir={folders['upper']},workdir={folders['work']}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, folders["root"]], check=True)
    return folders["root"]


def case_files(node):
    """Two copies of the shim, one of them in two overlay mounts, one bind-mounted under another name, and a copy that
    comes while the profiler runs: each file has its probes once, and each record counts once."""
    place = node.bench.dir / "containers"
    place.mkdir()
    # Where a temporary folder lies there may be no room for overlay's upper ones (it may be an overlay itself).
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    (place / "image").mkdir()
    shutil.copy2(node.bench.shim, place / "image/shim.so")
    roots = [overlay(place, name) for name in ("a", "b")]
    check(len({(root / "shim.so").stat().st_dev for root in roots}) == 2, "the overlays have one device number")
    bound = node.bench.dir / "bound.so"
    bound.touch()
    subprocess.run(["mount", "--bind", node.shim, bound], check=True)
    running = [node.start(*ENDLESS, shim=path) for path in (node.shim, bound, roots[0] / "shim.so", roots[1] / "shim.so")]
    node.start_daemon()
    for process in running:
        wait_for_state(process.pid, STATE_TRACING)
    late = node.start(*ENDLESS, shim=node.copy_of_shim("new/other-name.so"))
    wait_for_state(late.pid, STATE_TRACING)
    shorts = [node.start("short", 30, shim=path, wait=False)
              for path in (bound, roots[0] / "shim.so", roots[1] / "shim.so", node.bench.dir / "new/other-name.so")]
    truths = [node.truth(process) for process in shorts]
    for process in [*running, late]:
        wait_for(lambda pid=process.pid: emitted(pid) > 100, f"executions of {process.pid}")
    summary, targets = node.finish()
    node.stop(*running, late)
    for process, truth in zip(shorts, truths):
        equal(received(targets[process.pid]), truth["executions"], f"executions of {process.pid}")
    total = summary["total"]["executions"]
    equal(total["received"], node.profile().total("gpu_executions"), "executions in the profile")
    for process in [*running, late]:
        check_identity(targets[process.pid])
        check(received(targets[process.pid]) > 50, f"of {process.pid}: {received(targets[process.pid])}")
    found = summary["node"]
    equal(found["shim_files"] - found["same_files"], 3, f"files with probes ({found})")
    equal(found["same_files"], 1, f"files seen under two identities ({found})")
    equal(found["armed_late"], 1, f"processes armed late ({found})")
    equal(summary["rings"]["bpf"]["ignored_process"], 0, "records of nobody")


def case_exclude(node):
    """What is excluded by name, path or number, there before or started later, is neither armed for longer than a lease
    nor in the profile."""
    other = node.bench.programs / "leave-me"
    shutil.copy2(node.bench.programs / "workload", other)
    (node.bench.programs / "elsewhere").mkdir()
    far = node.bench.programs / "elsewhere/workload"
    shutil.copy2(node.bench.programs / "workload", far)

    def start(program):
        truth = node.bench.truth_file(f"e{len(node.truths)}")
        env = node.bench.env(CUDA_INJECTION64_PATH=node.shim, FAKE_CUDA_TRUTH=truth)
        process = node.bench.spawn([str(program), *map(str, ENDLESS)], env, stdout=subprocess.DEVNULL)
        node.truths[process.pid] = truth
        wait_for_memfd(process.pid)
        return process

    kept, numbered = start_pair(node)
    before = [start(other), start(far)]
    node.start_daemon("--exclude", "comm:leave-*", "--exclude", "exe:*/elsewhere/*", "--exclude", f"pid:{numbered.pid}")
    wait_for_state(kept.pid, STATE_TRACING)
    after = [start(other), start(far)]
    for process in after:  # armed at its injection, by what arms all
        wait_for_state(process.pid, STATE_IDLE)
    for process in [numbered, *before]:
        equal(status(process.pid)[1], 0, f"times that {process.pid} was armed")
    wait_for(lambda: emitted(kept.pid) > 200, "executions")
    summary, targets = node.finish()
    node.stop(kept, numbered, *before, *after)
    equal(list(targets), [kept.pid], "processes in the profile")
    equal(summary["node"]["programs_excluded"], 2, "programs that were excluded as they started")
    equal(summary["node"]["left_out"], 5, "processes that were left out")
    check(summary["rings"]["bpf"]["excluded"] > 0, "records that eBPF dropped")
    equal(node.profile().total("gpu_executions"), received(targets[kept.pid]), "executions in the profile")


def hierarchies():
    """Where cgroups are mounted: {version: a directory to make groups in}, of what this machine has."""
    found = {}
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ")[:3]
        place = before.split(" ")[4]
        if kind == "cgroup2":
            found.setdefault(2, pathlib.Path(place))
        elif kind == "cgroup" and "pids" in options.split(","):
            found.setdefault(1, pathlib.Path(place))
    return found


class Group:
    """A cgroup with one below it, taken away at the end."""

    def __init__(self, root):
        self.path = root / f"gpuprof-test-{os.getpid()}-{time.monotonic_ns()}"
        self.inner = self.path / "inner"

    def __enter__(self):
        self.inner.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        for path in (self.inner, self.path):
            wait_for(lambda path=path: not path.joinpath("cgroup.procs").read_text().split(), "the cgroup is empty", 10)
            path.rmdir()


def join(path, pid):
    path.joinpath("cgroup.procs").write_text(str(pid))


def started_in(node, path, *command):
    """A program that is in the cgroup from before its start on."""
    truth = node.bench.truth_file(f"c{len(node.truths)}")
    env = node.bench.env(CUDA_INJECTION64_PATH=node.shim, FAKE_CUDA_TRUTH=truth)
    script = f'echo $$ > "{path}/cgroup.procs" && exec "$@"'
    process = node.bench.spawn(["sh", "-c", script, "sh", *command], env, stdout=subprocess.DEVNULL)
    node.truths[process.pid] = truth
    wait_for_memfd(process.pid)
    return process


def check_cgroup(node, root):
    with Group(root) as group:
        endless = node.bench.workload(*ENDLESS)
        inside, below = started_in(node, group.path, *endless), started_in(node, group.inner, *endless)
        mover, stranger = start_pair(node)
        try:
            node.start_daemon("--cgroup", group.path)
            for process in (inside, below):
                wait_for_state(process.pid, STATE_TRACING)
            after = started_in(node, group.inner, *endless)
            wait_for_state(after.pid, STATE_TRACING)
            equal([status(process.pid)[1] for process in (mover, stranger)], [0, 0], "times that others were armed")
            join(group.inner, mover.pid)
            wait_for_state(mover.pid, STATE_TRACING)
            wait_for(lambda: emitted(mover.pid) > 100, "executions of the one that moved in")
            join(root, inside.pid)
            wait_for_state(inside.pid, STATE_IDLE)
            wait_for(lambda: emitted(after.pid) > 100, "executions of the one that started later")
            summary, targets = node.finish()
        finally:
            for process in (inside, below, mover):
                join(root, process.pid)
            node.stop(inside, below, mover, stranger, *([after] if "after" in locals() else []))
        equal(sorted(targets), sorted(p.pid for p in (inside, below, mover, after)), "processes in the profile")
        for process in (inside, below, mover, after):
            check_identity(targets[process.pid])
            check(received(targets[process.pid]) > 50, f"of {process.pid}: {received(targets[process.pid])}")
        total = sum(received(target) for target in targets.values())
        equal(node.profile().total("gpu_executions"), total, "executions in the profile")
        equal(status(stranger.pid)[1] if stranger.poll() is None else 0, 0, "times that the stranger was armed")


def case_cgroup_v2(node):
    """--cgroup in the unified hierarchy: processes in it and below, before, started later, moved in and moved out."""
    root = hierarchies().get(2)
    check(root, "no mount of cgroup2")
    check_cgroup(node, root)


def case_cgroup_v1(node):
    """The same in an older hierarchy, whose processes are watched by number; made here where there is none."""
    root = hierarchies().get(1)
    if not root:
        root = node.bench.dir / "v1"
        root.mkdir()
        subprocess.run(["mount", "-t", "cgroup", "-o", "none,name=gpuprof-test", "cgroup", root], check=True)
    check_cgroup(node, root)


def case_exclude_cgroup(node):
    """--all without a cgroup: what is in it, starts in it or moves into it is not profiled any more; what leaves it is."""
    root = hierarchies().get(2)
    check(root, "no mount of cgroup2")
    with Group(root) as group:
        endless = node.bench.workload(*ENDLESS)
        inside, leaver = (started_in(node, group.inner, *endless) for _ in range(2))
        kept, mover = start_pair(node)
        after = None
        try:
            node.start_daemon("--exclude", f"cgroup:{group.path}")
            for process in (kept, mover):
                wait_for_state(process.pid, STATE_TRACING)
            after = started_in(node, group.path, *endless)
            wait_for_state(after.pid, STATE_IDLE)
            equal([status(process.pid)[1] for process in (inside, leaver)], [0, 0], "times that the excluded were armed")
            join(root, leaver.pid)
            wait_for_state(leaver.pid, STATE_TRACING)
            wait_for(lambda: emitted(mover.pid) > 100, "executions of the one that moves in")
            join(group.inner, mover.pid)
            wait_for_state(mover.pid, STATE_IDLE)
            wait_for(lambda: emitted(leaver.pid) > 100, "executions of the one that left")
            summary, targets = node.finish()
        finally:
            for process in (inside, mover, *([after] if after else [])):
                join(root, process.pid)
            node.stop(inside, leaver, kept, mover, *([after] if after else []))
        equal(sorted(targets), sorted(p.pid for p in (leaver, kept, mover)), "processes in the profile")
        for process in (leaver, kept, mover):
            check_identity(targets[process.pid])
            check(received(targets[process.pid]) > 50, f"of {process.pid}: {received(targets[process.pid])}")
        check(summary["rings"]["bpf"]["excluded"] > 0, "records that eBPF dropped")


def case_cgroup_wrong(node):
    """A cgroup that is none is told in one line, before anything starts."""
    for path, said in (("/sys/fs/cgroup/gpuprof-nonexistent", "no such cgroup"), ("/tmp", "/tmp is no cgroup")):
        for what in (("--cgroup", path), ("--all", "--exclude", f"cgroup:{path}")):
            done = subprocess.run([str(node.bench.daemon), *what, "-o", "x.pb.gz"], env=node.bench.env(), cwd=node.bench.dir,
                                  capture_output=True, text=True, timeout=PATIENCE, check=False)
            check(done.returncode in (2, 3), f"exit status {done.returncode}")
            equal(len(done.stderr.splitlines()), 1, f"lines ({done.stderr})")
            check(said in done.stderr and "give a directory of the cgroup file system" in done.stderr, done.stderr)


def case_one_table(node):
    """64 processes of one program cost its symbols and call frame information once: memory grows by what a process
    takes, not by what its files take."""
    def memory(count):
        processes = [node.start(*ENDLESS[:4], "--seconds", 250, "--rate", 50) for _ in range(count)]
        node.start_daemon()
        for process in processes:
            wait_for_state(process.pid, STATE_TRACING)
        for process in processes:
            wait_for(lambda pid=process.pid: emitted(pid) > 20, "executions")
        held = rss(node.daemon.pid)
        summary, targets = node.finish()
        for process in processes:
            process.kill()
            check(targets[process.pid]["stacks"]["whole"] > 0, f"no whole stack of {process.pid}")
        return held, summary["symbols"]

    few, few_symbols = memory(2)
    many, many_symbols = memory(64)
    print(f"2 processes {few / 2**20:.0f} MiB, 64 processes {many / 2**20:.0f} MiB; symbols {few_symbols}, {many_symbols}")
    equal(many_symbols, few_symbols, "what was used for the symbols of 64 processes and of 2")
    check(node.bench.sanitized() or (many - few) / 62 <= 512 << 10, f"{(many - few) / 62 / 1024:.0f} KiB a process")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def case_cost(node):
    """200 processes that run the shim and launch nothing: what an attach takes, and what watching them costs."""
    count, seconds = int(os.environ.get("GPU_PROFILED_TEST_TARGETS", 200)), 10
    idle = [node.start("--launches", 0, "--delay-ms", 600000, wait=False) for _ in range(count)]
    for process in idle:
        wait_for_memfd(process.pid)
    began = time.monotonic()
    node.start_daemon()
    took = time.monotonic() - began
    check(f"profiling {count} processes with 1 shim file," in node.errors(), node.errors())
    time.sleep(3)  # what is new is looked at closely
    before = cpu_seconds(node.daemon.pid)
    time.sleep(seconds)
    share = (cpu_seconds(node.daemon.pid) - before) / seconds
    memory = rss(node.daemon.pid)
    print(f"{count} idle processes: attached in {took:.2f} s, {share:.2%} of a core, {memory / 2**20:.0f} MiB")
    for process in idle:
        process.kill()
    node.finish(expect=3)  # that nothing was launched is told
    check("no GPU work was launched while attached" in node.errors(), node.errors())
    if node.bench.sanitized():
        return
    # The promise is 1 s and 1 % of a core, of a machine that has nothing else to do.
    check(took <= 10, f"{took:.2f} s for the attach")
    check(share <= 0.03, f"{share:.2%} of a core")
    check(memory <= 256 << 20, f"{memory / 2**20:.0f} MiB")


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


def run_case(function, options):
    """In namespaces of its own, which the second call is in."""
    if INSIDE not in os.environ:
        done = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv],
                              env=dict(os.environ, **{INSIDE: "1"}), check=False)
        check(done.returncode == 0, f"exit status {done.returncode} inside of the namespaces")
        return
    node = Node(pathlib.Path(options.build).resolve(), options.mode)
    try:
        function(node)
    finally:
        if node.daemon and node.daemon.poll() is None:
            print(node.errors())
        node.close()


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run_case, mode={"default": "", "help": "forced fallbacks"}))
