# SPDX-License-Identifier: Apache-2.0
"""Every hardware check in one call; see scripts/hardware-check."""
import argparse
import datetime
import pathlib
import platform
import subprocess
import sys
import time
import traceback

import section_apis
import section_cost
import section_cycles
import section_ids
import section_jobs
import section_pc
import section_pccost
import section_pccycles
import section_pcshared
import section_pctorch
import section_python
import section_record
import section_torch
import section_w2
from harness import Bench, compile_workloads

SECTIONS = {"w2": section_w2, "ids": section_ids, "apis": section_apis, "cycles": section_cycles,
            "torch": section_torch, "cost": section_cost, "pc": section_pc, "pctorch": section_pctorch,
            "pccycles": section_pccycles, "pcshared": section_pcshared,
            "pccost": section_pccost, "record": section_record, "python": section_python, "jobs": section_jobs}


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not known ({error})"


def machine_facts(bench):
    report = bench.report
    report.fact("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"))
    report.fact("gpu", output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"))
    report.fact("kernel", platform.release())
    report.fact("nvcc", output_of("nvcc", "--version").splitlines()[-1:])
    report.fact("gpu-profiled", output_of(str(bench.daemon), "--version"))
    report.fact("commit", (bench.bundle / "COMMIT").read_text().strip() if (bench.bundle / "COMMIT").exists() else "")


def main():
    parser = argparse.ArgumentParser(prog="hardware-check", description=__doc__)
    parser.add_argument("bundle", help="folder with gpu-profiled and libgpu-profiled-cupti.so (scripts/hardware-bundle)")
    parser.add_argument("out", help="folder for results.json, profiles.tar and more")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections, of {','.join(SECTIONS)}; ids, jobs, pc, pctorch, pcshared, pccost and python take :PART, words of a part's name")
    parser.add_argument("--budget", type=float, default=570, help="seconds for everything (default 570)")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name.partition(":")[0] not in SECTIONS]
    if unknown:
        parser.error(f"no section named {', '.join(unknown)}")
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    bench = Bench(options.bundle, options.out, options.budget)
    machine_facts(bench)
    missing = [str(p) for p in (bench.daemon, bench.shim) if not p.exists()]
    if missing:
        parser.error(f"not there: {', '.join(missing)}")
    errors, seconds = compile_workloads(bench)
    if not bench.report.require("workloads compile", not errors, "; ".join(errors) or f"{seconds:.0f} s", "compile"):
        return finish(bench)
    run_sections(bench, names)
    return finish(bench)


def run_sections(bench, names):
    for name in names:
        if bench.left() < 15:
            bench.report.add(name, f"{bench.left():.0f} s left", "", "not run")
            continue
        start = time.monotonic()
        try:
            section, _, bench.part = name.partition(":")
            SECTIONS[section].run(bench)
        except Exception:  # one section's fault must not cost the others their turn
            bench.report.require(f"{name}: the check itself", False, traceback.format_exc(limit=4), "no error")
        print(f"--- section {name} took {time.monotonic() - start:.0f} s", flush=True)


def finish(bench):
    print("\n" + bench.report.table())
    failures = bench.report.failures()
    print(f"{len(bench.report.rows)} results, {len(failures)} not met")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
