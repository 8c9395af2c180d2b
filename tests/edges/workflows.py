# SPDX-License-Identifier: Apache-2.0
"""The workflows of .github hold no logic of their own: each step runs one script of the tree, or an action of
GitHub's; each job has a time limit and the rights that it names.

usage: workflows.py SOURCE_TREE"""
import os
import pathlib
import re
import sys

import yaml

# What a container needs before it has the tree.
BOOTSTRAP = "apt-get update && apt-get install -y --no-install-recommends git ca-certificates"
# The first that run on Node 24: GitHub's runners have no older Node since September 2026.
ACTIONS = {"actions/checkout": 5, "actions/upload-artifact": 6, "actions/download-artifact": 7}
SHELL = re.compile(r"[;&|<>`\n]|\$\(")


def fault_of_step(tree, step):
    if "uses" in step:
        action, _, version = step["uses"].partition("@v")
        return "" if version.isdigit() and int(version) >= ACTIONS.get(action, 1 << 30) else f"uses {step['uses']}"
    command = step["run"].strip()
    if command == BOOTSTRAP:
        return ""
    script = tree / command.split()[0]
    if SHELL.search(command):
        return f"a command line of its own: {command}"
    if "${{" in command:
        return f"an expression inside a command: {command}"
    if not (script.is_file() and os.access(script, os.X_OK) and script.resolve().is_relative_to(tree.resolve())):
        return f"no script of the tree: {command}"
    return ""


def faults(tree, path):
    workflow = yaml.safe_load(path.read_text())
    jobs = workflow["jobs"]
    if workflow.get("permissions") != {"contents": "read"}:
        yield "the workflow's rights are not 'contents: read'"
    for name, job in jobs.items():
        needed = job.get("needs", [])
        for other in [needed] if isinstance(needed, str) else needed:
            if other not in jobs:
                yield f"{name}: needs {other}, which is no job"
        if "timeout-minutes" not in job:
            yield f"{name}: no timeout-minutes"
        if "permissions" in job and "refs/tags/v" not in job.get("if", ""):
            yield f"{name}: rights of its own, and not for tags alone"
        yield from (f"{name}: {fault}" for fault in (fault_of_step(tree, step) for step in job["steps"]) if fault)


def main():
    tree = pathlib.Path(sys.argv[1])
    paths = sorted(tree.glob(".github/workflows/*.yml"))
    found = [f"{path.name}: {fault}" for path in paths for fault in faults(tree, path)]
    print("\n".join(found) or f"{len(paths)} workflows run scripts of the tree")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
