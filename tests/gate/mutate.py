# SPDX-License-Identifier: Apache-2.0
"""Plants the faults of mutants.py one at a time in a copy of the tree and runs the tests that must find them. See
scripts/mutate."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

from mutants import MUTANTS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def problem(mutant, root):
    """Why the fault cannot be planted; "" where it can."""
    path = root / mutant.file
    if not path.exists():
        return f"{mutant.name}: there is no {mutant.file}"
    found = path.read_text().count(mutant.old)
    if found != 1:
        return f"{mutant.name}: its old text occurs {found} times in {mutant.file}"
    return f"{mutant.name}: it changes nothing" if mutant.old == mutant.new else ""


def copy_tree(to):
    """The tree's files, as they are here, without what is built. Unchanged files keep their times: nothing is built anew."""
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True)
    wanted = [name for name in names.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    for name in wanted:
        source, target = ROOT / name, to / name
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        os.utime(target)
    have = subprocess.run(["find", ".", "-type", "f", "-not", "-path", "./build/*", "-not", "-path", "./.git*"], cwd=to, capture_output=True,
                          text=True, check=True).stdout.split()
    for name in {name.removeprefix("./") for name in have} - set(wanted):
        (to / name).unlink()


class Tree:
    def __init__(self, folder, jobs):
        self.root, self.build, self.jobs = folder, folder / "build/ci", jobs
        self.log = folder / "build/mutate.log"

    def run(self, command, seconds=1800):
        """Exit status and output."""
        done = subprocess.run([str(c) for c in command], cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=seconds, check=False)
        with self.log.open("a") as file:
            file.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
        return done.returncode, done.stdout

    def configure(self, more):
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # A mutant may leave a variable unused: warnings are no errors here.
        code, out = self.run(["cmake", "--preset", "ci", "-DGPU_PROFILED_WERROR=OFF", "-DGPU_PROFILED_BENCH=OFF", *more])
        if code:
            sys.exit(f"mutate: the copy does not configure: {out[-2000:]}")

    def compile(self, targets):
        return self.run(["cmake", "--build", self.build, "-j", self.jobs, "--target", *targets])

    def test(self, by):
        """(whether all pass, first failure)."""
        program, selection = by
        if program.startswith("Gate"):
            code, out = self.run([sys.executable, self.root / "tests/gate/halves.py", program, selection, "--build", self.build])
            return code == 0, f"{program}.{selection}: {(out.strip().splitlines() or [''])[-1][:160]}"
        path = next((p for p in self.build.glob(f"tests/**/{program}") if p.is_file()), None)
        if path is None:
            sys.exit(f"mutate: no {program} was built")
        code, out = self.run([path, f"--gtest_filter={selection}", "--gtest_fail_fast"])
        failed = [line.split("] ")[1].split(" (")[0] for line in out.splitlines() if line.startswith("[  FAILED  ]")]
        if "0 tests from 0 test suites ran" in out:
            sys.exit(f"mutate: {program} has no {selection}")
        return code == 0, failed[0] if failed else f"{program} ended with {code}"


def judge(tree, mutant):
    """(verdict, what found it)."""
    path = tree.root / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        targets = [mutant.target] if mutant.target != "all" else GATE_TARGETS
        code, out = tree.compile(targets)
        if code:
            return "not built", next((line for line in out.splitlines() if "error" in line), "")[:160]
        try:
            holds, failure = tree.test(mutant.by)
        except subprocess.TimeoutExpired:
            holds, failure = False, f"{mutant.by[0]} hangs"
        return ("SURVIVED", " ".join(mutant.by)) if holds else ("killed", failure)
    finally:
        path.write_text(original)


GATE_TARGETS = ["gpu-profiled", "gpu-profiled-cupti", "fake_cuda_play", "fake_cupti13", "workload"]


def main():
    parser = argparse.ArgumentParser(prog="mutate", description="Plants faults in a copy of the tree; each must be found by a named test.")
    parser.add_argument("--check", action="store_true", help="only whether every fault can still be planted")
    parser.add_argument("--only", default="", help="faults whose name has this text")
    parser.add_argument("--copy", default=ROOT / "build/mutate", type=pathlib.Path, help="folder of the copy (default: build/mutate)")
    parser.add_argument("--jobs", default=os.cpu_count(), type=int)
    parser.add_argument("--define", action="append", default=[], help="-D of the copy's cmake")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only in m.name]
    problems = [text for text in (problem(m, ROOT) for m in chosen) if text]
    if problems or not chosen or len({m.name for m in MUTANTS}) != len(MUTANTS):
        print("\n".join(problems) or "no fault of that name, or two of one name")
        return 1
    if options.check:
        print(f"{len(chosen)} faults can be planted")
        return 0
    options.copy.mkdir(parents=True, exist_ok=True)
    copy_tree(options.copy)
    tree = Tree(options.copy.resolve(), options.jobs)
    tree.configure([f"-D{d}" for d in options.define])
    return run(tree, chosen)


def run(tree, chosen):
    needs_root = [m for m in chosen if m.target == "all"]
    if needs_root and os.geteuid() != 0:
        print(f"not run: needs root: {', '.join(m.name for m in needs_root)}")
        chosen = [m for m in chosen if m not in needs_root]
    targets = {m.target for m in chosen} - {"all"} | (set(GATE_TARGETS) if any(m.target == "all" for m in chosen) else set())
    code, out = tree.compile(sorted(targets))
    if code:
        sys.exit(f"mutate: the tree does not build: {out[-2000:]}")
    for by in dict.fromkeys(m.by for m in chosen):  # a test that fails anyway finds nothing
        holds, failure = tree.test(by)
        if not holds:
            sys.exit(f"mutate: without any fault: {failure}")
    verdicts = {}
    for mutant in chosen:
        started = time.monotonic()
        verdicts[mutant.name], by = judge(tree, mutant)
        print(f"{verdicts[mutant.name]:10} {mutant.name} ({mutant.file}): {by} ({time.monotonic() - started:.0f} s)", flush=True)
    killed = sum(verdict == "killed" for verdict in verdicts.values())
    print(f"{killed} of {len(verdicts)} faults were found ({100 * killed / max(len(verdicts), 1):.0f} %)")
    return 0 if killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
