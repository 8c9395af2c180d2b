# SPDX-License-Identifier: Apache-2.0
"""python: the lines of PyTorch scripts, by `run` and late attach; eager with autograd, and compiled with a DataLoader.

Seconds on an H200: 80 in all (estimated)."""
import ast
import re

import section_w2 as w2
import truth
from section_pc import run_parts

EAGER_STEPS = 300
COMPILED_STEPS = 150
SCRIPT_TARGET = 0.98
CUT_TARGET = 0.01
BEAT = ("bessel_j0",)  # what a workload launches while it waits
# Threads that PyTorch itself starts to launch from, as it names them.
WORKERS = re.compile(r"^(pt_autograd|pt_|inductor|InductorSub|ThreadPoolExec)")


def functions_of(path):
    """function's name -> its (first, last) lines, of a script."""
    tree = ast.parse(path.read_text())
    return {node.name: (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno)
            for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def wrong_lines(profile, script):
    """[text] of frames of the script whose line lies outside their function."""
    spans = functions_of(script)
    spans["<module>"] = (1, len(script.read_text().splitlines()))
    wrong = set()
    for sample in profile.samples:
        for frame in sample.frames:
            if frame.file == str(script):
                name = frame.function.rsplit(".", 1)[-1]
                first, last = spans.get(name, (0, 0))
                if not first <= frame.line <= last:
                    wrong.add(f"{frame.function} at line {frame.line}")
    return sorted(wrong)


def in_script(sample, script):
    return any(frame.file == str(script) and frame.line > 0 for frame in sample.frames)


def of_worker(sample):
    return bool(WORKERS.match(str(sample.labels.get("thread", ""))))


def share(profile, keep):
    total = profile.total("gpu_time")
    return profile.total("gpu_time", keep) / total if total else 0.0


def show_threads(profile):
    """thread -> share of gpu_time, the share of it with a line of any Python file."""
    names = sorted({str(s.labels.get("thread", "")) for s in profile.samples})
    return {name: round(share(profile, lambda s, n=name: str(s.labels.get("thread", "")) == n), 4) for name in names}


def outside(profile, script):
    """The heaviest stacks without a line of the script, outermost ten frames and the leaf."""
    stacks = {}
    for sample in profile.samples:
        if not in_script(sample, script) and not of_worker(sample):
            key = (str(sample.labels.get("thread", "")), *sample.names()[:6], "…", *sample.names()[-6:])
            stacks[key] = stacks.get(key, 0) + sample.values["gpu_time"]
    return sorted(stacks.items(), key=lambda item: -item[1])[:5]


def check_python(bench, name, profile, summary, script):
    if profile is None:
        return
    bench.report.fact(f"{name}: threads", show_threads(profile))
    bench.report.fact(f"{name}: python", [t.get("python") for t in (summary or {}).get("targets", [])])
    own, worker = share(profile, lambda s: in_script(s, script)), share(profile, of_worker)
    both = share(profile, lambda s: in_script(s, script) or of_worker(s))
    if not bench.report.require(f"{name}: gpu_time with the script's own line, or of a worker thread", both >= SCRIPT_TARGET,
                                f"{both * 100:.2f} % ({own * 100:.2f} % the script's, {worker * 100:.2f} % workers')", ">= 98 %"):
        for stack, time in outside(profile, script):
            print(f"{time} ns: {' < '.join(stack)}", flush=True)
    cut = 1 - truth.share_at_root(profile)
    bench.report.require(f"{name}: stacks that are cut", cut <= CUT_TARGET, f"{cut * 100:.3f} % of gpu_time", "<= 1 %")
    wrong = wrong_lines(profile, script)
    bench.report.require(f"{name}: the script's lines", not wrong, "; ".join(wrong[:4]) or "each in its function", "right")


def both_ways(bench, what, script_name, steps):
    """One script by `run` and by late attach; what is profiled is what the bare listener counted."""
    script = bench.source(script_name)
    command = bench.python(script_name, "--steps", steps)
    counts = w2.listen(bench, command, 120)
    profile, summary = w2.run_both(bench, f"{what} run", command, None, timeout=150)
    check_python(bench, f"{what} run", profile, summary, script)
    if counts is not None and profile is not None:
        # torch.compile times candidates while it compiles: what a run launches is not fixed.
        kinds = truth.executions_by_kind(profile)
        bench.report.add(f"{what} run: executions", f"{kinds}, the listener's run {counts.get('kernels')} kernels", "", "measured")
    gate = bench.gate_directory()
    profile, summary = w2.attach_both(bench, f"{what} late attach", [*command, "--gate", gate], gate, None, BEAT, ready_timeout=150)
    check_python(bench, f"{what} late attach", profile, summary, script)


def run(bench):
    run_parts(bench, (("eager training", 45, lambda: both_ways(bench, "eager", "train.py", EAGER_STEPS)),
                      ("compiled training, DataLoader", 70,
                       lambda: both_ways(bench, "compiled", "train_compiled.py", COMPILED_STEPS))))
