# SPDX-License-Identifier: Apache-2.0
"""--window against known ground truth: the shipped gpu-profiled, the real shim, real eBPF and a fake GPU. Every
execution is in the profile of one window; the profiles of all windows, added up by pprof, are the program's.

Run by ctest: windows.py CASE --build DIR. Needs root; without it the case is skipped (exit 77).
"""

import ctypes
import datetime
import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pc_checks
import pprof_raw
from bench import (Bench, PATIENCE, check, check_accounting, check_documented, check_identity, equal, keys_of, read_truth,
                   run_named_case, wait_for, wait_for_memfd)
from main_job import check_kernels, check_stacks

SESSIONS = pathlib.Path(__file__).resolve().parent.parent / "fake_cuda/sessions"
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18


class Windows:
    """The files of a run under --window, in the order of their windows."""

    def __init__(self, bench, name="out"):
        self.dir = bench.dir / name
        self.dir.mkdir()
        self.merged = bench.dir / f"{name}.pb.gz"
        self.summary = self.dir / "%s.json"

    def options(self, window):
        return ["--window", window, "-o", f"{self.dir}/gpu-%Y%m%dT%H%M%S%%.pb.gz", "--summary-json",
                str(self.summary)]

    def read(self):
        summaries = [json.loads(path.read_text()) for path in self.dir.glob("*.json")]
        self.summaries = sorted(summaries, key=lambda summary: summary["window"]["index"])
        self.last = self.summaries[-1]
        self.files = [pathlib.Path(s["profile"]) for s in self.summaries if s["profile"]]
        return self

    def merge(self):
        pprof_raw.pprof("-proto", f"-output={self.merged}", *map(str, self.files[:-1]), path=str(self.files[-1]))
        return pprof_raw.load(self.merged)


def duration_of(path):
    """(time_nanos, duration_nanos) of a profile: fields 9 and 10."""
    data, at, found = gzip.decompress(pathlib.Path(path).read_bytes()), 0, {}

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            at += value
        else:
            found[tag >> 3] = value
    return found[9], found[10]


def check_windows(windows, least, owner=None):
    """The files' names, owners and times; that each window's counts add up, and all of them to the total."""
    summaries = windows.summaries
    check(len(windows.files) >= least, f"{len(windows.files)} profiles: nothing is tested")
    equal([s["window"]["index"] for s in summaries], list(range(1, len(summaries) + 1)), "the windows' numbers")
    profiles = sorted(windows.dir.glob("*.pb.gz"))
    equal(profiles, sorted(windows.files), "the profiles that the summaries name")
    equal([p for p in windows.dir.iterdir() if p.suffix not in (".gz", ".json")], [], "what else was left")
    tallied = {key: windows.last["windows"][key] for key in ("waiting", "unwritten", "summaries_unwritten")}
    equal(tallied, dict.fromkeys(tallied, 0), "windows that were not written")
    ends = []
    for summary in summaries:
        window = summary["window"]
        check(window["received_identity_holds"] is True, f"window {window['index']} does not add up: {window}")
        equal(window["executions"]["pending"], 0, "executions without a place")
        ends.append(window["start_unix_ns"] + window["duration_ns"])
        for target in summary["targets"]:
            check(target["window"]["received_identity_holds"] is True, f"a target's window does not add up: {target}")
        if not summary["profile"]:
            equal(window["executions"]["received"], 0, "executions of a window without a profile")
            continue
        path = pathlib.Path(summary["profile"])
        start = datetime.datetime.fromtimestamp(window["start_unix_ns"] // 10**9)
        check(re.fullmatch(rf"gpu-{start:%Y%m%dT%H%M%S}%(-\d+)?\.pb\.gz", path.name), f"{path.name} of {start}")
        info = path.stat()
        equal((info.st_mode & 0o7777, info.st_uid), (0o600, os.geteuid() if owner is None else owner), "mode and owner")
        equal(duration_of(path), (window["start_unix_ns"], window["duration_ns"]), "time and duration of the profile")
        profile = pprof_raw.load(path)
        equal(profile.total("gpu_executions"), window["executions"]["received"], f"executions in {path.name}")
        equal(profile.total(), window["gpu_time_ns"]["received"], f"gpu_time in {path.name}")
    for end, following in zip(ends, summaries[1:]):
        gap_ns = abs(following["window"]["start_unix_ns"] - end)
        check(gap_ns < 50_000_000, f"{gap_ns} ns between two windows")  # the wall clock may be slewed
    for key in ("received", "exact", "sampled", "unattributed"):
        equal(sum(s["window"]["gpu_time_ns"][key] for s in summaries), windows.last["total"]["gpu_time_ns"][key],
              f"gpu_time {key}: the windows' sum and the run's")
    equal(sum(s["window"]["executions"]["received"] for s in summaries),
          windows.last["total"]["executions"]["received"], "executions: the windows' sum and the run's")


def run_windows(bench, command, window, *options, **settings):
    """gpu-profiled run with a file a window. Returns (windows, truth, stderr)."""
    windows = Windows(bench)
    settings.setdefault("FAKE_CUDA_TRUTH", bench.truth_file())
    done = subprocess.run(
        [str(bench.daemon), "run", "--shim", str(bench.shim), *windows.options(window), *options, "--", *command],
        env=bench.env(**settings), cwd=bench.dir, capture_output=True, text=True, timeout=180, check=False)
    check(done.returncode == 0, f"run: exit {done.returncode}: {done.stderr}")
    return windows.read(), read_truth(bench.truth_file()), done.stderr


def case_trace(build):
    """Kernels, copies, fills and graphs of four threads, over at least five windows."""
    bench = Bench(build)
    try:
        windows, truth, stderr = run_windows(
            bench, bench.workload("--threads", 4, "--launches", 100000, "--rate", 8000, "--main", "--memcpy-every", 50,
                                  "--memset-every", 70, "--graph-every", 200, "--driver-every", 5), "500ms",
            FAKE_CUDA_INSTANT=1)
        check_windows(windows, 5)
        check_accounting(windows.last, truth["executions"])
        profile = windows.merge()
        equal(profile.total(), truth["gpu_ns"], "gpu_time of all windows")
        check_kernels(profile, truth)
        check_stacks(profile, truth)
        want_graph = sum(r["gpu_ns"] for r in truth["rows"] if r.get("graph"))
        check(want_graph > 0, "no graph ran: nothing is tested")
        equal(sum(s.values["gpu_time"] for s in profile.samples if "[cuda graph]" in s.functions), want_graph,
              "gpu_time under [cuda graph]")
        for path in windows.files:
            check(f"wrote {path} (" in stderr, f"{path} is not told: {stderr}")
        pause = windows.last["windows"]["longest_pause_ns"]
        print(f"{truth['executions']} executions in {len(windows.files)} windows; the rings waited {pause / 1e6:.1f} ms")
    finally:
        bench.close()


def case_every_launch(build):
    """With a stack of every launch no end of a window makes an estimate of one."""
    bench = Bench(build)
    try:
        windows, truth, _ = run_windows(bench, bench.workload("--threads", 1, "--main", "--launches", 6000, "--rate", 2000),
                                        "250ms", "--stack-rate", "all")
        check_windows(windows, 8)
        check_accounting(windows.last, truth["executions"], exact_only=True)
        profile = windows.merge()
        check_kernels(profile, truth)
        equal(check_stacks(profile, truth, share=1), 1, "share of gpu_time on right stacks")
    finally:
        bench.close()


def case_pc_sampling(build):
    """Continuous PC sampling: every sample is in one window, under one of the labels."""
    bench = Bench(build)
    try:
        windows, truth, _ = run_windows(
            bench, bench.player(SESSIONS / "pc_sampling.session", loops=1200), "500ms", "--pc-sampling", "continuous",
            "--save-cubins", str(bench.dir / "cubins"))
        check_windows(windows, 3)
        profile = windows.merge()
        delivered = truth["pc"]["pc_delivered"]
        check(delivered > 100_000, f"{delivered} samples: nothing is tested")
        equal(profile.total("gpu_pc_samples"), windows.last["total"]["pc_sampling"]["counts"]["samples"],
              "PC samples of all windows")
        statuses = pc_checks.check_samples(profile, truth, pc_checks.Oracle())
        equal(statuses, {"resolved", "no-lineinfo", "no-module", "unmapped"}, "values of gpu_src_status")
        pc_checks.check_time(profile, truth)
        total = windows.last["total"]["pc_sampling"]
        for group in ("attribution", "source", "counts", "records"):
            for key, value in total[group].items():
                if isinstance(value, int) and (group, key) != ("records", "produced"):
                    equal(sum(s["window"]["pc_sampling"][group][key] for s in windows.summaries), value,
                          f"{group} {key}: the windows' sum and the run's")
        check(total["identity_holds"] is True, f"the samples do not add up: {total}")
        check(list((bench.dir / "cubins").glob("*.cubin")), "no cubin was saved")
        check_documented(windows.last, {"exact", "kernel", "kernel-ambiguous", "kernel-multidevice", "graph-refused",
                                        "unattributed"})
        check(len(keys_of(windows.last)) > 100, "too few keys: nothing is tested")
        print(f"{delivered} PC samples in {len(windows.files)} windows: {total['attribution']}")
    finally:
        bench.close()


def start_attached(bench, pid, windows, window, *options):
    errors = (bench.dir / "attach.stderr").open("w+")
    daemon = bench.spawn([str(bench.daemon), "--pid", str(pid), *windows.options(window), *options], bench.env(),
                         stderr=errors)
    return daemon, errors


def end_attached(daemon, errors, expect=0):
    code = daemon.wait(PATIENCE)
    errors.seek(0)
    stderr = errors.read()
    equal(code, expect, f"exit status of the attach: {stderr}")
    return stderr


def case_sigterm(build):
    """SIGTERM ends a window in its middle: it is written too."""
    bench = Bench(build)
    try:
        target = bench.start_target("--threads", 2, "--launches", 0, "--rate", 1000)
        windows = Windows(bench)
        daemon, errors = start_attached(bench, target.pid, windows, "700ms")
        wait_for(lambda: len(list(windows.dir.glob("*.pb.gz"))) >= 3 or daemon.poll() is not None, "three windows")
        time.sleep(0.3)  # into a window
        daemon.send_signal(signal.SIGTERM)
        end_attached(daemon, errors)
        windows.read()
        check_windows(windows, 4)
        check_identity(windows.last["total"])
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
    finally:
        bench.close()


def case_empty(build):
    """A window without GPU work has a summary and no profile; a fixed --summary-json has the latest."""
    bench = Bench(build)
    try:
        windows = Windows(bench)
        target = bench.start_target("--threads", 1, "--launches", 0, "--rate", 500, "--delay-ms", 2500)
        windows.summary = bench.dir / "now.json"
        daemon, errors = start_attached(bench, target.pid, windows, "500ms")
        wait_for(lambda: len(list(windows.dir.glob("*.pb.gz"))) >= 2 or daemon.poll() is not None, "two windows with work")
        daemon.send_signal(signal.SIGINT)
        stderr = end_attached(daemon, errors)
        summary = json.loads((bench.dir / "now.json").read_text())
        tally = summary["windows"]
        check(tally["empty"] >= 2, f"no empty windows: {tally}")
        equal(tally["ended"] - tally["empty"], len(list(windows.dir.glob("*.pb.gz"))), "windows with work and profiles")
        equal(summary["window"]["index"], tally["ended"], "the latest window")
        check(f"{tally['empty']} empty" in stderr, f"empty windows are not told: {stderr}")
    finally:
        bench.close()


def case_duration(build):
    """--duration is a multiple of --window: no window more of the last records. The files are the caller of sudo's, in
    a directory that is closed to others, after the profiler gave up the right to enter it."""
    bench = Bench(build)
    try:
        target = bench.start_target("--threads", 2, "--launches", 0, "--rate", 1000)
        windows = Windows(bench)
        bench.dir.chmod(0o755)
        nobody = 65534
        os.chown(windows.dir, nobody, nobody)
        windows.dir.chmod(0o700)
        done = subprocess.run(
            [str(bench.daemon), "--pid", str(target.pid), *windows.options("600ms"), "--duration", "1800ms"],
            env=bench.env(SUDO_UID=nobody, SUDO_GID=nobody), cwd=bench.dir, capture_output=True, text=True, timeout=PATIENCE,
            check=False)
        equal(done.returncode, 0, f"exit status: {done.stderr}")
        windows.read()
        equal([(path.stat().st_uid, path.stat().st_gid, path.stat().st_mode & 0o7777) for path in windows.dir.iterdir()],
              [(nobody, nobody, 0o600)] * 6, "owner, group and mode of three profiles and three summaries")
        check_windows(windows, 3, owner=nobody)
        check_identity(windows.last["total"])
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
    finally:
        bench.close()


def own_disk(directory, size):
    """Mounts a file system of `size` bytes there, in a mount namespace of this process: it goes with it."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result, what):
        check(result == 0, f"{what}: {os.strerror(ctypes.get_errno())}")

    must(libc.unshare(CLONE_NEWNS), "unshare")
    must(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount /")
    must(libc.mount(b"none", os.fsencode(directory), b"tmpfs", 0, f"size={size}".encode()), "mount tmpfs")


def fill_disk(directory):
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def told(errors):
    return pathlib.Path(errors.name).read_text()


def case_disk_full(build):
    """While the disk is full windows are kept, and the run goes on; they are written when there is room again."""
    bench = Bench(build)
    try:
        target = bench.start_target("--threads", 2, "--launches", 0, "--rate", 1000)
        windows = Windows(bench)
        own_disk(windows.dir, 4 << 20)
        windows.summary = bench.dir / "now.json"
        filler = fill_disk(windows.dir)
        daemon, errors = start_attached(bench, target.pid, windows, "400ms")
        tally = lambda: json.loads(windows.summary.read_text())["windows"]
        waits = "no space left: free some, or write elsewhere with -o; it is kept, and tried again with the next window"
        wait_for(lambda: daemon.poll() is not None or (waits in told(errors)), "the full disk is told")
        time.sleep(1.5)  # some windows more
        equal(told(errors).count("no space left"), 1, "lines about the full disk")
        equal(list(windows.dir.glob("*.pb.gz")) + list(windows.dir.glob(".*")), [], "what lies on the full disk")
        filler.unlink()
        wait_for(lambda: daemon.poll() is not None or len(list(windows.dir.glob("*.pb.gz"))) >= 5, "windows written at last")
        daemon.send_signal(signal.SIGTERM)
        end_attached(daemon, errors)
        last = json.loads(windows.summary.read_text())
        profiles = list(windows.dir.glob("*.pb.gz"))
        equal(len(profiles), last["windows"]["ended"] - last["windows"]["empty"], "profiles, one a window")
        equal(last["windows"]["unwritten"], 0, "windows lost")
        loaded = [pprof_raw.load(path) for path in profiles]
        equal(sum(p.total("gpu_executions") for p in loaded), last["total"]["executions"]["received"], "executions in all files")
        equal(sum(p.total() for p in loaded), last["total"]["gpu_time_ns"]["received"], "gpu_time in all files")
        # And where there never is any room: told, counted, exit 1.
        filler = fill_disk(windows.dir)
        windows.summary = bench.dir / "lost.json"
        daemon, errors = start_attached(bench, target.pid, windows, "300ms", "--duration", "1.5s")
        stderr = end_attached(daemon, errors, expect=1)
        lost = [int(n) for n in re.findall(r"window (\d+) is lost, \S+ executions: .*no space left", stderr)]
        check(len(lost) >= 3, f"lost windows are not told: {stderr}")
        summary = re.search(r"windows +(\d+): (\d+) written.*?(\d+) not written \((\S+) executions\)", stderr)
        check(summary, f"lost windows are not in the summary: {stderr}")
        equal((int(summary[2]), int(summary[3])), (0, len(lost)), "windows written and not")
        received = json.loads(windows.summary.read_text())["total"]["executions"]["received"]
        equal(int(summary[4].replace(",", "")), received, "executions of the windows that were lost")
        equal(target.poll(), None, "the target goes on")
        target.send_signal(signal.SIGTERM)
        equal(target.wait(PATIENCE), 0, "the target's exit status")
    finally:
        bench.close()


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) << 10


def case_memory(build):
    """Sixty windows of a program that stays and of 240 that come and go: memory and descriptors stay as they are, the
    counts are exact."""
    bench = Bench(build)
    try:
        windows = Windows(bench)
        short = " ".join(bench.workload(20, name="workload_short"))
        steady = " ".join(bench.workload("--threads", 2, "--main", "--launches", 0, "--rate", 2000, "--seconds", 32))
        script = f"{steady} & n=0; while [ $n -lt 240 ]; do FAKE_CUDA_TRUTH= {short} || exit 9; sleep 0.07; n=$((n+1)); done; wait"
        daemon = bench.spawn(
            [str(bench.daemon), "run", "--shim", str(bench.shim), *windows.options("500ms"), "--pc-sampling", "continuous",
             "--", "sh", "-c", script], bench.env(FAKE_CUDA_TRUTH=bench.truth_file(), FAKE_CUDA_INSTANT=1),
            stderr=(bench.dir / "stderr").open("w+"))
        seen = {}
        while daemon.poll() is None:
            count = len(list(windows.dir.glob("*.json")))
            if count in (15, 30, 45, 58) and count not in seen:
                seen[count] = (resident_bytes(daemon.pid), len(os.listdir(f"/proc/{daemon.pid}/fd")))
            time.sleep(0.05)
        equal(daemon.wait(PATIENCE), 0, f"exit status: {(bench.dir / 'stderr').read_text()[-2000:]}")
        windows.read()
        check_windows(windows, 50)
        truth = read_truth(bench.truth_file())
        check_accounting(windows.last, truth["executions"] + 240 * 20)
        listed = [len(s["targets"]) for s in windows.summaries]
        check(max(listed) < 60, f"targets of one summary: {listed}")
        check(windows.last["ended_processes"] + len(windows.last["targets"]) >= 241,
              f"{windows.last['ended_processes']} processes ended")
        print("windows: (resident bytes, descriptors)", seen, "targets", max(listed))
        check(len(seen) >= 3, f"too few looks: {seen}")
        first, last = min(seen), max(seen)
        check(last - first >= 28, f"too few windows between the looks: {seen}")
        check(seen[last][1] <= seen[first][1] + 8, f"descriptors grow: {seen}")
        if not bench.sanitized():
            check(seen[last][0] <= seen[first][0] + (6 << 20), f"memory grows: {seen}")
    finally:
        bench.close()


CASES = {name.removeprefix("case_"): value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, lambda function, options: function(options.build)))
