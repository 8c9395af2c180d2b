# SPDX-License-Identifier: Apache-2.0
"""The table at the end of a profile run: what became of each process of it, and of those beside it that use CUDA.

Run by ctest: targets.py CASE --build DIR. Needs root."""

import json
import pathlib
import re
import signal
import sys

from bench import PATIENCE, check, check_accounting, check_documented, emitted, equal, memfds, run_named_case, wait_for
from doctor import NOT_INJECTED, RESTART, VARIABLE, Stage

WORK = ("--threads", 1, "--launches", 200, "--rate", 200)
FOREVER = ("--threads", 1, "--launches", 0, "--rate", 500)


def rows_of(stderr):
    """{pid: (state, command, finding)} of the table in what gpu-profiled said."""
    lines = stderr.splitlines()
    head = next(at for at, line in enumerate(lines) if re.match(r" +PID  STATE +COMMAND +FINDING$", line))
    rows = {}
    for line in lines[head + 1:]:
        found = re.match(r" *(\d+)  (\S+) +(.{15})  (.*)", line)
        if not found:
            continue
        rows[int(found[1])] = (found[2], found[3].strip(), found[4])
    return rows


def check_rows(stderr, summary, wanted):
    """The table and the summary's `processes` have these rows, {pid: (state, command, finding)}, and no other."""
    equal(rows_of(stderr), wanted, "rows of the table")
    equal({row["pid"]: (row["state"], row["comm"], row["finding"]) for row in summary["processes"]}, wanted, "processes")
    equal(summary["processes_left_out"], 0, "processes left out")
    check_documented(summary)


def run_shell(stage, script, *arguments, **settings):
    """`gpu-profiled run -- sh -c SCRIPT`. (exit status, summary or None, stderr)"""
    for name in ("run.pb.gz", "run.json"):
        (stage.dir / name).unlink(missing_ok=True)
    with (stage.dir / "told").open("w+") as told:
        process = stage.bench.spawn([str(stage.bench.daemon), "run", "--shim", str(stage.shim), "-o", "run.pb.gz", "--summary-json",
                                     "run.json", "--", "sh", "-c", script, "sh", *map(str, arguments)],
                                    stage.bench.env(**settings), stderr=told)
        code = process.wait(PATIENCE)
        told.seek(0)
        text = told.read()
    path = stage.dir / "run.json"
    return code, json.loads(path.read_text()) if path.exists() else None, text


def profiled(executions, summary, pid):
    """What the row of a profiled process says; its time is the summary's."""
    row = next(row for row in summary["processes"] if row["pid"] == pid)
    equal(row["executions"], executions, f"executions of {pid}")
    check(re.fullmatch(rf"{executions:,} executions, [\d.]+ \S+ of GPU time", row["finding"]), row["finding"])
    return row["finding"]


def lost_below(shell):
    """Of a process that `shell`, which has the variable, started without it."""
    return f"{NOT_INJECTED} (sh (process {shell}), above it, was started with it: see what lies between them)"


def case_run(stage):
    """Under run: one is profiled, later comes one whose variable was dropped, one with a wrong path; one does not use CUDA."""
    script = ('echo $$ > pids; "$@" & echo $! >> pids; wait $!; '
              f'env -u {VARIABLE} "$@" & echo $! >> pids; {VARIABLE}=/gone.so "$@" & echo $! >> pids; sleep 2 & wait')
    code, summary, told = run_shell(stage, script, *stage.bench.workload(*WORK), FAKE_CUDA_TRUTH=stage.dir / "truth")
    equal(code, 0, told)
    shell, good, bare, broken = map(int, (stage.dir / "pids").read_text().split())
    check_accounting(summary, 200)
    gone = f"broken injection: {VARIABLE}=/gone.so: there is no such file: install the shim there, or correct the variable{RESTART}"
    check_rows(told, summary, {good: ("profiled", "workload", profiled(200, summary, good)),
                               bare: ("not-injected", "workload", lost_below(shell)), broken: ("broken", "workload", gone)})
    equal(next(row["cause"] for row in summary["processes"] if row["pid"] == broken), "missing", "cause")
    equal(sorted(line for line in told.splitlines() if "not profiled" in line),
          sorted([f"gpu-profiled: not profiled: process {bare} {lost_below(shell)}",
                  f"gpu-profiled: not profiled: process {broken}: {gone}"]), "lines as they come")
    check(shell not in rows_of(told), "the shell uses no CUDA")


def case_nothing(stage):
    """Under run nothing has the shim: the one line says which process and why, the command's own status is kept."""
    script = f'echo $$ > pids; exec env -u {VARIABLE} "$@"'
    code, summary, told = run_shell(stage, script, *stage.bench.workload(*WORK))
    pid = int((stage.dir / "pids").read_text())
    equal((code, summary), (0, None), told)
    equal(told.splitlines()[-1], f"gpu-profiled: nothing could be profiled: process {pid} {NOT_INJECTED}; no file written", "last line")


def case_states(stage):
    """Attached to a tree: profiled, declined, busy, without work, forked; children that come while it is observed."""
    bench = stage.bench
    (stage.dir / "go").mkdir()
    script = ('FAKE_CUDA_TRUTH=truth.json "$@" & echo $! > go/good; FAKE_CUDA_OTHER_CLIENT=1 "$@" & echo $! > go/busy; '
              '"$@" --delay-ms 200000 & echo $! > go/quiet; GPU_PROFILED_CUPTI_PATH=/nowhere/libcupti.so.13 "$@" & '
              f'echo $! > go/declined; while [ ! -e go/on ]; do sleep 0.05; done; env -u {VARIABLE} "$@" & echo $! > go/late; '
              '"$@" & echo $! > go/later; wait')
    outer = stage.spawn(["sh", "-c", script, "sh", *bench.workload(*FOREVER)], **{VARIABLE: stage.shim, "LC_ALL": "C"})
    pid_of = lambda name: int((stage.dir / "go" / name).read_text() or 0)
    wait_for(lambda: all((stage.dir / "go" / name).exists() and memfds(pid_of(name)) for name in ("good", "busy", "quiet", "declined")),
             "the first four have a page")
    with (stage.dir / "told").open("w+") as errors:
        daemon = bench.spawn([str(bench.daemon), "--pid", str(outer.pid), "-o", "x.pb.gz", "--summary-json", "x.json"], bench.env(),
                             stderr=errors)
        wait_for(lambda: emitted(pid_of("good")) >= 100, "executions")
        (stage.dir / "go/on").touch()
        wait_for(lambda: (stage.dir / "go/later").exists() and memfds(pid_of("later")) and emitted(pid_of("later")) >= 50, "the late one")
        told = lambda: (stage.dir / "told").read_text()
        wait_for(lambda: "not profiled" in told() and "holds the profiling interface" in told(), "what cannot be profiled is told")
        daemon.send_signal(signal.SIGINT)
        equal(daemon.wait(PATIENCE), 0, "the daemon's exit status")
    summary = json.loads((stage.dir / "x.json").read_text())
    rows = rows_of(told())
    states = {name: rows[pid_of(name)][0] for name in ("good", "busy", "quiet", "declined", "late", "later")}
    equal(states, {"good": "profiled", "busy": "busy", "quiet": "armed", "declined": "declined", "late": "not-injected",
                   "later": "profiled"}, f"states: {told()}")
    equal(rows[pid_of("quiet")][2], "launched no GPU work while it was observed", "without work")
    check("no usable libcupti" in rows[pid_of("declined")][2], rows)
    equal(rows[pid_of("late")][2], lost_below(outer.pid), "late")
    worst = ["declined", "busy", "late"]
    equal(set(list(rows)[:3]), {pid_of(name) for name in worst}, "those that were not profiled come first")
    equal(len(summary["processes"]), 6, "processes")
    check_documented(summary)


def case_bound(stage):
    """Thirty processes: twenty rows, and how many more of which state; the summary has all."""
    script = f'for i in $(seq 15); do "$@" & env -u {VARIABLE} "$@" & done; wait'
    code, summary, told = run_shell(stage, script, *stage.bench.workload("--threads", 1, "--launches", 20, "--rate", 4))
    equal(code, 0, told)
    rows = rows_of(told)
    equal(len(rows), 20, "rows")
    equal(sorted(state for state, _, _ in rows.values()), ["not-injected"] * 15 + ["profiled"] * 5, "their states")
    check("\n  10 more: 10 profiled (--summary-json)\n" in told, told)
    equal((len(summary["processes"]), summary["processes_left_out"]), (30, 0), "processes of the summary")
    equal(sum(line.startswith("gpu-profiled: not profiled: process") for line in told.splitlines()), 8, "lines as they come")


def case_unrecorded(stage):
    """Launches for which CUPTI gives no record are a warning after 2 s, as they go on and in the table."""
    pid = stage.start_injected(FAKE_CUDA_LATE_MS=200000)
    _, summary, told = stage.bench.attach(pid, "--duration", "5s")
    warning = ("launches without a record for 2 s: CUPTI gives no activity; another tool may have taken it over: end that, or "
               "restart the process")
    equal(summary["processes"][0]["warnings"], [warning], "warnings")
    lines = told.splitlines()
    check(f"gpu-profiled: process {pid}: {warning}" in lines, told)
    check(any(line.strip() == f"warning: {warning}" for line in lines), told)


CASES = {"run": case_run, "nothing": case_nothing, "states": case_states, "bound": case_bound, "unrecorded": case_unrecorded}


def run(case, options):
    stage = Stage(pathlib.Path(options.build))
    try:
        case(stage)
    finally:
        stage.close()


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run))
