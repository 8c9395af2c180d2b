#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python frames on the call paths, against what the interpreter itself said of each launch (python/*.py).

usage: python_frames.py run|perf|attach|deep|evaluator|interpreters|threads|off --build BUILD
           [--interpreter PATH | --root ROOT]
Without either, the interpreter that runs this. --root: an interpreter of scripts/python-proof, ROOT/interpreter says how
it is started. perf: with CPython's own trampolines (`-X perf`, 3.12 and later). off: with `--python off`."""

import collections
import json
import pathlib
import shutil
import subprocess
import sys

from bench import Bench, PATIENCE, check, check_documented, equal, run_named_case, wait_for, wait_for_memfd
import pprof_raw

SCRIPTS = pathlib.Path(__file__).parent / "python"
ROUNDS = 100
# Without it the first launches would come before gpu-profiled knows the process; real CUDA takes as long to start.
PAUSE = 2
UNNAMED = "[python]"
# What code is called that is freed when it has run: of eval() and, since 3.14 by another name, of other interpreters.
FREED = ("<string>", "<script>")


class Truth:
    """What a script wrote: by kernel the launches and the frames, innermost first."""

    def __init__(self, path):
        self.stacks = {}
        self.launches = 0
        for line in path.read_text().splitlines():
            kernel, launches, frames = json.loads(line)
            self.stacks[kernel] = [tuple(frame) for frame in frames]
            self.launches += launches

    def differs(self, kernel, frames):
        """Why these Python frames are not the kernel's, or None. Of FREED the code object may be gone: unnamed."""
        want = self.stacks[kernel]
        if not frames or frames[0].function != "launch" or len(frames) != len(want) + 1:
            return f"{kernel}: {[f.function for f in frames]}, not launch and {want}"
        for frame, (function, file, line) in zip(frames[1:], want):
            if (frame.function, frame.file, frame.line) != (function, file, line) and not (
                    file in FREED and frame.function == UNNAMED):
                return f"{kernel}: {frame.function} {frame.file}:{frame.line}, not {function} {file}:{line}"
        return None


def mapping_of(profile, frame):
    return profile.mappings.get(frame.mapping, ("", "", ""))[2].split(" ")[0]


def python_frames(profile, sample):
    return [f for f in reversed(sample.frames) if mapping_of(profile, f) == UNNAMED]


def trampolines(profile, sample):
    """Frames that CPython's perf map names: generated code that calls the interpreter. ctypes' has no names."""
    return [f for f in sample.frames if mapping_of(profile, f) == "[jit]" and not f.function.startswith("[")]


def judge(profile, summary, truth, cut=False):
    """Every call path is the interpreter's own; at most 1 % has no Python frames at all. `cut`: the native stacks are."""
    loaded = pprof_raw.load(profile)
    counts = collections.Counter()
    for sample in loaded.samples:
        executions = sample.values["gpu_executions"]
        frames = python_frames(loaded, sample)
        check(not frames or not trampolines(loaded, sample), f"shown twice: {[f.function for f in sample.frames]}")
        counts["all"] += executions
        if not frames:
            counts["none"] += executions
            continue
        wrong = truth.differs(sample.frames[-1].function, frames)
        check(wrong is None, wrong)
        counts["right"] += executions
    check(counts["none"] * 100 <= counts["all"], f"{counts['none']} of {counts['all']} executions without Python frames")
    check_documented(summary)
    python = summary["targets"][0]["python"]
    equal((python["disagree"], python["incomplete"]), (0, 0), f"refused: {python}")
    equal(python["beyond_native"], python["stitched"] if cut else 0, f"of cut native stacks: {python}")
    check(python["stitched"] > (50 if cut else 1000),  # 128 of the largest a second
          f"{python['stitched']} stacks with Python frames")
    print(f"Python {python['version']}: {counts['right']} of {counts['all']} executions on the interpreter's own call "
          f"paths, {counts['none']} without; {python['stitched']} stacks, {python['unnamed_frames']} frames unnamed")


class Interpreter:
    """How to start one: in its root, or with its files and this system's C library."""

    def __init__(self, bench, options):
        self.prefix, self.path, self.env = [], options.interpreter or sys.executable, {}
        self.folder = bench.dir
        if not options.root:
            return
        root = pathlib.Path(options.root).resolve()
        how, path = (root / "interpreter").read_text().split()
        if how == "chroot":
            # The same paths inside: the shim, the fake driver and our folder are mounted there.
            for path_in in (bench.build.resolve(), SCRIPTS.resolve(), bench.dir):
                target = root / str(path_in).lstrip("/")
                target.mkdir(parents=True, exist_ok=True)
                subprocess.run(["mount", "--bind", str(path_in), str(target)], check=True)
            (root / "proc").mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
            self.prefix, self.path = [shutil.which("chroot", path="/usr/sbin:/sbin:/usr/bin"), str(root)], path
        else:
            self.path = str(root / path.lstrip("/"))
            self.env = {"PYTHONHOME": str(root / "usr"), "EXTRA_LIBRARIES": str(root / "libraries")}

    def command(self, script, *arguments, options=()):
        return [*self.prefix, self.path, "-B", *options, str(SCRIPTS / script), *[str(a) for a in arguments]]

    def environment(self, bench, **settings):
        env = bench.env(**settings)
        extra = self.env.get("EXTRA_LIBRARIES")
        if extra:
            env["LD_LIBRARY_PATH"] += f":{extra}"
            env["PYTHONHOME"] = self.env["PYTHONHOME"]
        return env


def profile_run(bench, options, *run_options, script="nested.py", rounds=ROUNDS, python_options=(), **settings):
    """The profile, the summary and the truth of a run from its start."""
    interpreter = Interpreter(bench, options)
    truth, profile, summary = bench.dir / "stacks.json", bench.dir / "run.pb.gz", bench.dir / "run.json"
    truth.unlink(missing_ok=True)
    done = subprocess.run(
        [str(bench.daemon), "run", "--shim", str(bench.shim), "--stack-rate", "all", "-o", str(profile), "--summary-json",
         str(summary), *run_options, "--", *interpreter.command(script, truth, rounds, PAUSE, options=python_options)],
        env=interpreter.environment(bench, **settings), cwd=bench.dir, capture_output=True, text=True, timeout=180, check=False)
    check(done.returncode == 0, f"run: exit {done.returncode}: {done.stderr}")
    summary = json.loads(summary.read_text())
    known = Truth(truth)
    equal(summary["total"]["executions"]["received"], known.launches, "executions")
    return profile, summary, known


def run(bench, options):
    judge(*profile_run(bench, options))


def perf(bench, options):
    """CPython's own trampolines: never shown twice, and all there is with `--python off`."""
    judge(*profile_run(bench, options, python_options=("-X", "perf")))
    profile, summary, _ = profile_run(bench, options, "--python", "off", python_options=("-X", "perf"))
    check_off(profile, summary)
    loaded = pprof_raw.load(profile)
    named = [sample for sample in loaded.samples if trampolines(loaded, sample)]
    check(len(named) > 10, f"{len(named)} call paths with names from the perf map")


def deep(bench, options):
    """Where the native stack is cut, the outer Python frames are known all the same."""
    judge(*profile_run(bench, options, script="deep.py", rounds=1000), cut=True)


def evaluator(bench, options):
    """With a frame evaluation function, as torch.compile sets one: a native frame for every Python frame."""
    judge(*profile_run(bench, options, EVALUATOR=bench.build / "tests/e2e/libpython_evaluator.so"))


def interpreters(bench, options):
    """Code of another interpreter on the same thread. Before 3.12 nothing tells how its frames and the main one's lie: then
    the native stack stands for them."""
    profile, summary, known = profile_run(bench, options, script="interpreters.py", rounds=1000)
    if int(summary["targets"][0]["python"]["version"].split(".")[1]) >= 12:
        judge(profile, summary, known)
        return
    python, loaded = summary["targets"][0]["python"], pprof_raw.load(profile)
    shown = collections.Counter()
    for sample in loaded.samples:
        kernel, frames = sample.frames[-1].function, python_frames(loaded, sample)
        shown[kernel.split("_")[0], bool(frames)] += sample.values["gpu_executions"]
        wrong = frames and known.differs(kernel, frames)
        check(not wrong, wrong)
    check(shown["inner", True] == 0 and shown["kernel", True] >= 1000, f"executions with Python frames: {shown}")
    check(0 < python["disagree"] <= 1000, f"the native stack stood: {python}")
    print(f"Python {python['version']}: {shown['kernel', True]} executions of the main interpreter on its call paths, "
          f"{shown['inner', False]} of another with the native stack")


def threads(bench, options):
    """A root frame for each thread's name, beside the label, which has the last name that the thread had."""
    profile, summary, known = profile_run(bench, options, "--thread-frames")
    judge(profile, summary, known)
    loaded, names, first = pprof_raw.load(profile), collections.Counter(), 0
    for sample in loaded.samples:
        root, thread = sample.frames[0], sample.labels.get("thread", "")
        if mapping_of(loaded, root) != "[thread]":
            check(root.function == "[no stack]", f"no thread at the root: {[f.function for f in sample.frames]}")
            continue
        name, executions = thread.rsplit("/", 1)[0], sample.values["gpu_executions"]
        if root.function != f"[thread {name}]":
            first += executions
        names[root.function] += executions
    equal(first, 2, "executions of threads before they had their names")
    check(min(names["[thread worker_0]"], names["[thread worker_1]"]) > 1000 and len(names) == 3, f"threads: {names}")


def off(bench, options):
    """The interpreter's C frames alone, and no word of Python in the summary; attached, too."""
    profile, summary, _ = profile_run(bench, options, "--python", "off")
    check_off(profile, summary)
    process, _ = start(bench, options, 3 * ROUNDS)
    profile, summary, _ = bench.attach_for(process.pid, 5_000, "--stack-rate", "all", "--python", "off")
    check_off(profile, summary)


def check_off(profile, summary):
    loaded = pprof_raw.load(profile)
    check(len(loaded.samples) > 10, "nothing is tested")
    check(not any(python_frames(loaded, sample) for sample in loaded.samples), "Python frames with --python off")
    check("python" not in summary["targets"][0], "Python in the summary with --python off")


def start(bench, options, rounds):
    """The script with an idle shim in it, and where its truth will be."""
    interpreter = Interpreter(bench, options)
    truth = bench.dir / "stacks.json"
    process = bench.spawn(interpreter.command("nested.py", truth, rounds, PAUSE),
                          interpreter.environment(bench, CUDA_INJECTION64_PATH=bench.shim), stdout=subprocess.DEVNULL)
    wait_for_memfd(process.pid)
    return process, truth


def attach(bench, options):
    """A process that nobody started for us, attached while it launches."""
    process, truth = start(bench, options, 12 * ROUNDS)
    profile, summary, _ = bench.attach_for(process.pid, 20_000, "--stack-rate", "all")
    wait_for(lambda: process.poll() is not None, "the end of the script", 5 * PATIENCE)
    equal(process.returncode, 0, "the script's status")
    judge(profile, summary, Truth(truth))


def run_case(case, options):
    bench = Bench(pathlib.Path(options.build).resolve())
    try:
        case(bench, options)
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(run_named_case({"run": run, "perf": perf, "attach": attach, "deep": deep, "evaluator": evaluator, "interpreters": interpreters, "off": off, "threads": threads}, __doc__, run_case,
                            interpreter={"help": "a CPython"}, root={"help": "of scripts/python-proof"}))
