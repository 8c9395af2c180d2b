# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end cases share: the build tree's products on a fake GPU, the shim's status page,
checks of a summary's accounting."""

import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

SKIPPED = 77
# For what comes sooner or later: only a hang takes so long, not a busy machine.
PATIENCE = 60


def run_named_case(cases, description, run, **more):
    """What the command line names: run(function, options). `more` has options beside --build, as argparse
    takes them. The exit status; without root the case is skipped, or failed where root is promised."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("case", choices=sorted(cases))
    parser.add_argument("--build", required=True, help="build tree")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("SKIPPED: needs root for eBPF")
        return 1 if os.environ.get("REQUIRE_ROOT") else SKIPPED
    try:
        run(cases[options.case], options)
    except AssertionError as error:
        print(f"FAILED {options.case} {getattr(options, 'mode', '')}: {error}")
        return 1
    return 0


def run_on_bench(function, options):
    """run_named_case's `run`, of cases that take a fresh bench and nothing else."""
    bench = Bench(pathlib.Path(options.build).resolve())
    try:
        function(bench)
    finally:
        bench.close()


class Bench:
    """The build tree's products, with the workload copied into a folder that can be taken away."""

    def __init__(self, build, mode=""):
        self.build = pathlib.Path(build)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="gpuprof-e2e-"))
        self.programs = self.dir / "programs"
        self.programs.mkdir()
        # GPU_PROFILED_TEST_*: other builds of the products, as scripts/build-portable makes them.
        self.daemon = pathlib.Path(os.environ.get("GPU_PROFILED_TEST_DAEMON", self.build / "daemon/gpu-profiled"))
        self.shim = pathlib.Path(os.environ.get("GPU_PROFILED_TEST_SHIM", self.build / "shim/libgpu-profiled-cupti.so"))
        self.mode = mode
        self.processes = []
        for path in (self.build / "tests/e2e/workload").iterdir():
            if path.is_file() and (path.suffix == ".so" or os.access(path, os.X_OK)):
                shutil.copy2(path, self.programs)

    def end_processes(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def close(self):
        self.end_processes()
        shutil.rmtree(self.dir, ignore_errors=True)

    def sanitized(self):
        return "GPU_PROFILED_SANITIZE:STRING=\n" not in (self.build / "CMakeCache.txt").read_text()

    def stacks_are_large(self):
        """TSan's descriptor of a thread, larger than the most that is copied of a stack, lies at the top of each but
        the main thread's: 256 KiB a launch, of which the limit in bytes allows 128 a second."""
        return "GPU_PROFILED_SANITIZE:STRING=thread\n" in (self.build / "CMakeCache.txt").read_text()

    def threads(self, count):
        """Options of a workload whose stacks are to be taken often: `count` threads, the main one alone where the
        stacks of the others are large."""
        return ("--threads", 1, "--main") if self.stacks_are_large() else ("--threads", count)

    def preload(self, library):
        """LD_PRELOAD with `library`, behind the sanitizer's runtime where the programs have one."""
        linked = subprocess.run(["ldd", self.programs / "workload"], env=self.env(), capture_output=True, text=True,
                                check=True).stdout
        return ":".join([*re.findall(r"=> (\S*/lib[at]san\.so\S*)", linked), str(library)])

    def take_programs_away(self):
        shutil.rmtree(self.programs)

    def env(self, **settings):
        env = dict(os.environ)
        for name in [n for n in env if n.startswith(("GPU_PROFILED", "FAKE_CUDA", "CUDA_", "SUDO_", "DEBUGINFOD_"))]:
            del env[name]
        fake = self.build / "tests/fake_cuda"
        env["LD_LIBRARY_PATH"] = f"{self.programs}:{fake}/lib:{fake}/cupti13"
        env["GPU_PROFILED_CUPTI_PATH"] = f"{fake}/cupti13/libcupti.so.13"
        if self.mode:
            env["GPU_PROFILED_DEBUG_FALLBACK"] = self.mode
        env.update({k: str(v) for k, v in settings.items()})
        return env

    def truth_file(self, name="truth"):
        return self.dir / f"{name}.json"

    def spawn(self, command, env, **kwargs):
        process = subprocess.Popen(command, env=env, cwd=self.dir, **kwargs)
        self.processes.append(process)
        return process

    def workload(self, *args, name="workload"):
        return [str(self.programs / name), *[str(a) for a in args]]

    def player(self, session, **values):
        """The command that plays a session file with these values of its names."""
        return [str(self.build / "tests/fake_cuda/fake_cuda_play"), str(session),
                *[f"{name}={value}" for name, value in values.items()]]

    def run(self, command, *options, timeout=180, **settings):
        """gpu-profiled run OPTIONS -- COMMAND. Returns (profile path, summary, truth, stderr)."""
        profile, summary = self.dir / "run.pb.gz", self.dir / "run.json"
        settings.setdefault("FAKE_CUDA_TRUTH", self.truth_file())
        settings.setdefault("FAKE_CUDA_REPORT", self.dir / "violations")
        done = subprocess.run(
            [str(self.daemon), "run", "--shim", str(self.shim), "-o", str(profile), "--summary-json",
             str(summary), *options, "--", *command],
            env=self.env(**settings), cwd=self.dir, capture_output=True, text=True, timeout=timeout,
            check=False)
        check(done.returncode == 0, f"run: exit {done.returncode}: {done.stderr}")
        return profile, json.loads(summary.read_text()), read_truth(self.truth_file()), done.stderr

    def start_target(self, *args, **settings):
        """The workload with the shim in it, nobody attached: idle."""
        settings.setdefault("FAKE_CUDA_TRUTH", self.truth_file())
        env = self.env(CUDA_INJECTION64_PATH=self.shim, **settings)
        process = self.spawn(self.workload(*args), env, stdout=subprocess.DEVNULL)
        wait_for_memfd(process.pid)
        return process

    def attach(self, pid, *options, name="attach", timeout=120, expect=0):
        profile, summary = self.dir / f"{name}.pb.gz", self.dir / f"{name}.json"
        for path in (profile, summary):
            path.unlink(missing_ok=True)
        done = subprocess.run(
            [str(self.daemon), "--pid", str(pid), "-o", str(profile), "--summary-json", str(summary), *options],
            env=self.env(), cwd=self.dir, capture_output=True, text=True, timeout=timeout, check=False)
        check(done.returncode == expect, f"attach: exit {done.returncode}: {done.stderr}")
        if expect != 0:
            return profile, None, done.stderr
        return profile, json.loads(summary.read_text()), done.stderr

    def attach_for(self, pid, executions, *options, name="attach"):
        """Attaches until the shim has emitted `executions`, however long that takes; then Ctrl-C."""
        profile, summary = self.dir / f"{name}.pb.gz", self.dir / f"{name}.json"
        for path in (profile, summary):
            path.unlink(missing_ok=True)
        before = emitted(pid)
        with (self.dir / f"{name}.stderr").open("w+") as errors:
            daemon = self.spawn([str(self.daemon), "--pid", str(pid), "-o", str(profile), "--summary-json", str(summary),
                                 *options], self.env(), stderr=errors)
            wait_for(lambda: daemon.poll() is not None or emitted(pid) >= before + executions,
                     f"{executions} executions after {before}, now {emitted(pid)}")
            daemon.send_signal(signal.SIGINT)
            code = daemon.wait(PATIENCE)
            errors.seek(0)
            stderr = errors.read()
        check(code == 0, f"attach: exit {code}: {stderr}")
        return profile, json.loads(summary.read_text()), stderr


def wait_for(condition, what, timeout=PATIENCE):
    """Until `condition()` holds. `what` is told where it never does."""
    deadline = time.monotonic() + timeout
    while not condition():
        check(time.monotonic() < deadline, f"not within {timeout} s: {what}")
        time.sleep(0.01)


class OtherLoad:
    """How many cores others have kept busy since it was made, steal included. What ours took counts
    once they have been waited for."""

    def __init__(self):
        self.began, self.others = time.monotonic(), self._others()

    @staticmethod
    def _others():
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq, steal = (int(n) for n in file.readline().split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return busy - sum(usage.ru_utime + usage.ru_stime for usage in ours)

    def cores(self):
        return (self._others() - self.others) / (time.monotonic() - self.began)


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def equal(got, want, what):
    check(got == want, f"{what}: got {got}, want {want}")


def read_truth(path):
    truth = json.loads(pathlib.Path(path).read_text())
    equal(truth["violations"], 0, "rules of CUPTI broken")
    return truth


def memfds(pid):
    found = []
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{number}").startswith("/memfd:gpu-profiled"):
                    found.append(number)
            except FileNotFoundError:
                pass
    except FileNotFoundError:
        pass
    return found


def wait_for_memfd(pid):
    """Until the shim is initialised: its page shows a state."""
    wait_for(lambda: memfds(pid) and status(pid)[0] != 0, "the target has a status page")


def check_identity(entry, known=True):
    """The accounting identity of a summary's total or target holds. `known` False: the program may have
    ended without a last word of its shim, and then nothing that arrived may contradict itself."""
    holds = entry["identity_holds"]
    check(holds is True or (not known and holds is None), f"an accounting identity is broken: {json.dumps(entry)}")
    equal(holds is None, entry["executions"]["produced"] is None, "identity unknown and production unknown")


def keys_of(value):
    """Every key of a JSON value, at any depth."""
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


def check_documented(summary, besides=frozenset()):
    """docs/summary-json.md names every key of the summary."""
    page = (pathlib.Path(__file__).resolve().parent.parent.parent / "docs/summary-json.md").read_text()
    named = set(re.findall(r"[A-Za-z][\w+-]*", " ".join(re.findall(r"`([^`]*)`", page))))
    missing = keys_of(summary) - named - besides
    check(not missing, f"docs/summary-json.md lacks {sorted(missing)}")


def check_accounting(summary, executions, exact_only=False):
    total = summary["total"]
    check_identity(total)
    for group in ("lost_in_shim", "lost_in_ring"):
        lost = {k: v for k, v in total["executions"][group].items() if v}
        check(not lost, f"lost records: {group} {lost}")
    equal(total["executions"]["received"], executions, "executions received")
    for key in ("evicted", "pending", "duplicates"):
        equal(total["executions"][key], 0, f"executions {key}")
    if exact_only:
        equal(total["executions"]["attributed"]["exact"], executions, "executions with a stack of their own")


def status_page(pid):
    fd = os.open(f"/proc/{pid}/fd/{memfds(pid)[0]}", os.O_RDONLY)
    try:
        return os.pread(fd, 4096, 0)
    finally:
        os.close(fd)


def status(pid):
    """(state, arms, disarms) of the target's status page."""
    page = status_page(pid)
    number = lambda at: int.from_bytes(page[at:at + 4], "little")
    return number(20), number(64), number(68)


def emitted(pid):
    """Executions that the target's shim has emitted in all: probe_totals[GPUPROF_PROBE_EXEC]."""
    at = 136 + 8 * 3
    return int.from_bytes(status_page(pid)[at:at + 8], "little")


STATE_IDLE, STATE_TRACING = 2, 4


def wait_for_state(pid, state):
    wait_for(lambda: status(pid)[0] == state, f"state {state} of process {pid}")
