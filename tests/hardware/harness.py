# SPDX-License-Identifier: Apache-2.0
"""How the hardware check runs programs and keeps results. Every program has a time limit; one that
reaches it is killed with its whole process group and counts as a hang, never as a slow success."""
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time


@dataclasses.dataclass
class Run:
    """One finished program. rc < 0: killed by that signal; hung: by us, at its limit."""
    rc: int
    hung: bool
    out: str
    err: str
    seconds: float
    pid: int = 0

    def ok(self):
        return self.rc == 0 and not self.hung

    def why(self):
        if self.hung:
            return f"hung, killed after {self.seconds:.0f} s"
        tail = (self.err.strip() or self.out.strip()).splitlines()[-1:]
        return f"exit {self.rc}" + (f": {tail[0][:160]}" if tail else "")

    def lines(self):
        """The JSON objects that the program printed."""
        found = []
        for line in self.out.splitlines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found


class Process:
    """A program in the background, with its output in files."""

    def __init__(self, command, env=None, cwd=None):
        self.started = time.monotonic()
        self._out = tempfile.TemporaryFile()
        self._err = tempfile.TemporaryFile()
        self.popen = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=self._out,
                                      stderr=self._err, env=env, cwd=cwd, start_new_session=True)

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def interrupt(self):
        self.popen.send_signal(signal.SIGINT)

    def finish(self, timeout):
        hung = False
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            hung = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        return Run(self.popen.returncode, hung, texts[0], texts[1], time.monotonic() - self.started,
                   self.popen.pid)


class Report:
    """Results in order, printed as they come, written as JSON after each."""

    def __init__(self, path):
        self.path = path
        self.rows = []
        self.facts = {}
        self._lock = threading.Lock()

    def add(self, check, measured, target, status):
        """status: met · not met · not shown (the interval reaches past the target) · measured · not run"""
        with self._lock:
            self.rows.append({"check": check, "measured": measured, "target": target, "status": status})
            print(f"[{status}] {check}: {measured}" + (f" (target: {target})" if target else ""), flush=True)
            self._write()

    def require(self, check, good, measured, target):
        self.add(check, measured, target, "met" if good else "not met")
        return good

    def fact(self, name, value):
        with self._lock:
            self.facts[name] = value
            self._write()

    def _write(self):
        self.path.write_text(json.dumps({"facts": self.facts, "results": self.rows}, indent=1) + "\n")

    def table(self):
        widths = [max(len(str(row[key])) for row in self.rows + [dict(zip(row_keys(), row_keys()))]) for key in row_keys()]
        lines = ["| " + " | ".join(key.ljust(w) for key, w in zip(row_keys(), widths)) + " |",
                 "| " + " | ".join("-" * w for w in widths) + " |"]
        for row in self.rows:
            lines.append("| " + " | ".join(str(row[k]).ljust(w) for k, w in zip(row_keys(), widths)) + " |")
        return "\n".join(lines)

    def failures(self):
        return [row for row in self.rows if row["status"] == "not met"]


def row_keys():
    return ["check", "measured", "target", "status"]


class Bench:
    """What every section needs: the products, the workloads, a scratch folder, the time left."""

    def __init__(self, bundle, out, budget_seconds):
        self.bundle = pathlib.Path(bundle).resolve()
        self.out = pathlib.Path(out).resolve()
        self.here = pathlib.Path(__file__).resolve().parent
        self.root = self.here.parents[1]
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="hardware-check-"))
        self.daemon = self.bundle / "gpu-profiled"
        self.shim = self.bundle / "libgpu-profiled-cupti.so"
        self.listener = self.work / "listener.so"
        self.stuck_ids = self.work / "stuck_ids"
        self.w2 = self.work / "w2"
        self.apis = self.work / "apis"
        self.hot_loops = self.work / "hot_loops"
        self.transient = self.work / "transient"
        self.deadline = time.monotonic() + budget_seconds
        self.report = Report(self.out / "results.json")
        self.part = ""  # of a section: only the parts whose names have this in them
        self._number = 0
        self._lock = threading.Lock()

    def left(self):
        return self.deadline - time.monotonic()

    def path(self, suffix):
        """A new file name in the scratch folder."""
        with self._lock:
            self._number += 1
            return self.work / f"{self._number:04d}{suffix}"

    def gate_directory(self):
        directory = self.path(".gate")
        directory.mkdir()
        return directory

    def keep(self, path, name):
        """Adds a file to the output folder's archive: a few files come back more easily than many."""
        if path.exists():
            with tarfile.open(self.out / "profiles.tar", "a") as tar:
                tar.add(path, arcname=name)

    def env(self, **values):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("GPU_PROFILED_", "LISTENER_")) and k != "CUDA_INJECTION64_PATH"}
        env["PYTHONPATH"] = f"{self.here}:{env.get('PYTHONPATH', '')}".rstrip(":")
        env.update({k: str(v) for k, v in values.items()})
        return env

    def shim_env(self, **values):
        return self.env(CUDA_INJECTION64_PATH=self.shim, **values)

    def listener_env(self, mode="trace", out=None, names=False, **more):
        values = {"CUDA_INJECTION64_PATH": self.listener, "LISTENER_MODE": mode, **more}
        if out is not None:
            values["LISTENER_OUT"] = out
        if names:
            values["LISTENER_NAMES"] = "1"
        return self.env(**values)

    def run(self, command, timeout, env=None):
        return Process(command, env or self.env()).finish(min(timeout, max(self.left(), 1)))

    def profiled(self, command, profile, summary=None, options=()):
        """The command line of `gpu-profiled run`."""
        line = [self.daemon, "run", "--shim", self.shim, "-o", profile]
        if summary is not None:
            line += ["--summary-json", summary]
        return line + list(options) + ["--"] + list(command)

    def attached(self, pid, profile, summary=None, options=()):
        line = [self.daemon, "--pid", pid, "-o", profile]
        if summary is not None:
            line += ["--summary-json", summary]
        return line + list(options)

    def gpus(self):
        """Numbers of the GPUs there are."""
        try:
            done = self.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], 30)
        except OSError:
            return ["0"]
        return done.out.split() if done.ok() and done.out.split() else ["0"]

    def source(self, name):
        """A workload's source, as line tables name it."""
        return self.here / name

    def cuda_includes(self):
        return ["-isystem", "/usr/local/cuda/include", "-isystem", "/usr/local/cuda/extras/CUPTI/include"]

    def python(self, script, *arguments):
        return [sys.executable, self.here / script, *arguments]


def wait_for_file(path, process, timeout):
    """True once `path` exists; False if the process ended or the time is over."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        if not process.alive() or time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def compile_workloads(bench):
    """nvcc and g++ on the machine itself: (errors, seconds)."""
    start = time.monotonic()
    nvcc = ["nvcc", "-std=c++17", "-arch=native", "-lineinfo", "-O2", "-g", "-Xcompiler", "-fomit-frame-pointer"]
    ptds = bench.work / "ptds.o"
    jobs = [
        [nvcc + ["-o", bench.w2, bench.here / "w2.cu", "-lcuda"]],
        [nvcc + ["-o", bench.hot_loops, bench.here / "hot_loops.cu"]],
        [nvcc + ["-o", bench.transient, bench.here / "transient.cu", "-lcuda"],
         *[["nvcc", "-arch=native", "-lineinfo", "-cubin", f"-DKERNEL={name}", "-o", bench.work / f"{name}.cubin",
            bench.here / "transient_kernel.cu"] for name in ("alpha", "beta")]],
        [nvcc + ["-o", bench.stuck_ids, bench.here / "stuck_ids.cu", *bench.cuda_includes(), "-ldl"]],
        [nvcc + ["--default-stream", "per-thread", "-c", "-o", ptds, bench.here / "apis_ptds.cu"],
         nvcc + ["-o", bench.apis, bench.here / "apis.cu", ptds, "-lcuda", "-ldl"]],
        [["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", bench.listener, bench.root / "tests/bench/listener.cc",
          *bench.cuda_includes(), "-ldl", "-lpthread"]],
    ]
    errors = []

    def build(commands):
        for command in commands:
            done = bench.run(command, 180)
            if not done.ok():
                errors.append(f"{command[0]}: {done.why()}\n{done.err[-2000:]}")
                return

    threads = [threading.Thread(target=build, args=(commands,)) for commands in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors, time.monotonic() - start
