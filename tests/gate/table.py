# SPDX-License-Identifier: Apache-2.0
"""The gate's table: number, sentence, where it ran, result. See scripts/gate."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time

from assertions import ASSERTIONS, GPU_ONLY
from halves import NOT_RUN, lacks_privilege

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PASSED, FAILED = "holds", "FAILED"


def run_half(assertion, half, build, logs):
    """(result, seconds) of one half; its output is in `logs`."""
    started = time.monotonic()
    log = logs / f"{assertion.name}.{half}.log"
    with log.open("w") as file:
        code = subprocess.run([sys.executable, HERE / "halves.py", assertion.name, half, "--build", build], stdout=file,
                              stderr=subprocess.STDOUT, timeout=1800, check=False).returncode
    if code == NOT_RUN:
        # Where root is, a half that did not run is a failure.
        result = f"not run: {lacks_privilege()}" if lacks_privilege() else f"{FAILED}: not run, see {log}"
    else:
        result = PASSED if code == 0 else f"{FAILED}: see {log}"
    return result, time.monotonic() - started


def hardware_results(bundle, out, budget):
    """Runs the sections of 13 to 16 on this machine's GPU: assertion's name -> result."""
    wanted = [section for assertion in ASSERTIONS for section in assertion.hardware]
    results = {}
    for section in dict.fromkeys(wanted):
        # hardware-check separates sections by commas, which parts' names have too.
        name, _, part = section.partition(":")
        folder = out / section.translate(str.maketrans(":, ", "___"))
        subprocess.run([ROOT / "scripts/hardware-check", bundle, folder, "--only", f"{name}:{part.split(',')[0]}" if part else name,
                        "--budget", str(budget)], check=False)
        file = folder / "results.json"
        results[section] = json.loads(file.read_text())["results"] if file.exists() else []
    return {a.name: judge(a, results) for a in ASSERTIONS if a.hardware}


def judge(assertion, results):
    """Every kind of row that the assertion is about was measured, and none of its sections' rows failed."""
    rows = [row for section in assertion.hardware for row in results[section]]
    wanted = [[row for row in rows if text in row["check"]] for text in assertion.rows]
    missing = [text for text, found in zip(assertion.rows, wanted) if not found]
    if missing:
        return f"{FAILED}: no result for {', '.join(missing)}"
    bad = [row["check"] for found in wanted for row in found if row["status"] not in ("met", "measured")]
    return f"{FAILED}: {'; '.join(bad)}" if bad else PASSED


def show(assertion, ran, result):
    first, *rest = textwrap.wrap(assertion.sentence, 78)
    print(f"{assertion.name}  {first}")
    for line in rest:
        print(f"        {line}")
    for where, outcome in zip(ran, result):
        print(f"        {where:18} {outcome}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="gate", description="Runs the sixteen assertions and prints what each says.")
    parser.add_argument("--build", default=ROOT / "build/ci", type=pathlib.Path, help="build tree (default: build/ci)")
    parser.add_argument("--only", default="", help="numbers, as in 6,10,12")
    parser.add_argument("--hardware", nargs=2, metavar=("BUNDLE", "OUT"), help="13 to 16 on this machine's GPU, with what "
                        "scripts/hardware-bundle made; results in OUT")
    parser.add_argument("--budget", default=570, type=float, help="seconds for each section on the GPU")
    options = parser.parse_args()
    numbers = {int(n) for n in options.only.split(",") if n} or {a.number for a in ASSERTIONS}
    chosen = [a for a in ASSERTIONS if a.number in numbers]
    failed = not_run = 0
    on_gpu = {}
    if options.hardware:
        chosen = [a for a in chosen if a.number in GPU_ONLY]
        on_gpu = hardware_results(*map(pathlib.Path, options.hardware), options.budget)
    build = options.build.resolve()
    logs = build.parent / "logs/gate"
    if not options.hardware:
        if not (build / "CMakeCache.txt").exists():
            parser.error(f"{build} is no build tree: scripts/check builds build/ci")
        logs.mkdir(parents=True, exist_ok=True)
    for assertion in chosen:
        if assertion.number in GPU_ONLY:
            results = [on_gpu.get(assertion.name, "not run: needs a GPU (scripts/gate --hardware; docs/hardware.md has results)")]
            where = ["NVIDIA GPU"]
        else:
            where, results = [], []
            for half, text in (("unit", "unprivileged"), ("e2e", "root, real eBPF")):
                result, seconds = run_half(assertion, half, build, logs)
                where.append(text)
                results.append(f"{result} ({seconds:.0f} s)")
        show(assertion, where, results)
        failed += sum(r.startswith(FAILED) for r in results)
        not_run += sum(r.startswith("not run") for r in results)
    print(f"{len(chosen)} assertions: {failed} failed, {not_run} not run")
    return 1 if failed or (os.environ.get("REQUIRE_ROOT") and lacks_privilege()) else 0


if __name__ == "__main__":
    sys.exit(main())
