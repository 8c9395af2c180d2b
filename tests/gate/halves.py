# SPDX-License-Identifier: Apache-2.0
"""Runs one half of an assertion: halves.py Gate06 unit|e2e --build DIR. Exit 0: it holds; 77: not run, and why."""
import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from assertions import ASSERTIONS

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("e2e", "hardware", "record")]
NOT_RUN = 77
BY_NAME = {assertion.name: assertion for assertion in ASSERTIONS}


def binaries(build):
    """Name -> path of the test programs of a build tree."""
    found = {}
    for folder, _, files in os.walk(build / "tests"):
        for name in files:
            path = pathlib.Path(folder) / name
            if name.endswith("_test") and os.access(path, os.X_OK):
                found[name] = path
    return found


def listed(binary):
    """Every case of a GoogleTest program: "Suite.Case", without the prefix and number of parameters."""
    out = subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True, timeout=60, check=True).stdout
    cases, suite = [], ""
    for line in out.splitlines():
        name = line.split("#")[0].rstrip()
        if not line.startswith(" "):
            suite = name
        elif name:
            cases.append(suite + name.strip())
    return cases


def matching(cases, pattern):
    """The cases that a filter of an assertion names: a case, "Suite.*", or one with parameters ("A/Suite.Case/0")."""
    suite, _, case = pattern.partition(".")
    found = []
    for full in cases:
        of_suite, _, of_case = full.partition(".")
        if suite in of_suite.split("/") and case in ("*", of_case.split("/")[0]):
            found.append(full)
    return found


def run_cases(binary, cases):
    """Runs exactly these cases. An error, or ""."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-gate-") as folder:
        result = pathlib.Path(folder) / "result.json"
        done = subprocess.run([binary, f"--gtest_filter={':'.join(cases)}", f"--gtest_output=json:{result}"],
                              capture_output=True, text=True, timeout=900, check=False, cwd=folder)
        if not result.exists():
            return f"{binary.name} ended with {done.returncode} and no result: {done.stderr[-2000:]}"
        ran = {f"{suite['name']}.{case['name']}": case for suite in json.loads(result.read_text())["testsuites"]
               for case in suite["testsuite"]}
    wrong = [case for case in cases if case not in ran or ran[case]["result"] != "COMPLETED" or ran[case].get("failures")]
    if wrong:
        return f"{binary.name}: not passed: {', '.join(wrong)}\n{done.stdout[-6000:]}"
    return "" if done.returncode == 0 else f"{binary.name} ended with {done.returncode}"


def run_unit(assertion, build):
    programs, total = binaries(build), 0
    for name, patterns in assertion.unit.items():
        if name not in programs:
            raise AssertionError(f"the build tree has no {name}")
        every = listed(programs[name])
        cases = []
        for pattern in patterns:
            found = matching(every, pattern)
            if not found:
                raise AssertionError(f"{name} has no case {pattern}")
            cases += [case for case in found if case not in cases]
        error = run_cases(programs[name], cases)
        if error:
            raise AssertionError(error)
        total += len(cases)
    print(f"{total} cases of {len(assertion.unit)} programs")


def end_to_end(assertion):
    """The function that is the end-to-end half."""
    importlib.import_module("pc_checks")  # that of tests/e2e: others put tests/hardware, which has one too, in front
    module, _, function = assertion.end_to_end.partition(".")
    return getattr(importlib.import_module(module), function)


def lacks_privilege():
    return "" if os.geteuid() == 0 else "needs root"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("assertion", choices=sorted(BY_NAME))
    parser.add_argument("half", choices=("unit", "e2e"))
    parser.add_argument("--build", required=True, type=pathlib.Path, help="build tree")
    options = parser.parse_args()
    assertion, build = BY_NAME[options.assertion], options.build.resolve()
    try:
        if options.half == "unit":
            run_unit(assertion, build)
            return 0
        if lacks_privilege():
            print(f"not run: {lacks_privilege()}")
            return 1 if os.environ.get("REQUIRE_ROOT") else NOT_RUN
        from bench import Bench
        bench = Bench(build)
        try:
            end_to_end(assertion)(bench)
        finally:
            bench.close()
    except AssertionError as error:
        print(f"FAILED {assertion.name} {options.half}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
