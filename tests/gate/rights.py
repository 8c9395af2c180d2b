# SPDX-License-Identifier: Apache-2.0
"""End-to-end half of 11: the rights that gpu-profiled keeps, as root and as a user with the README's setcap line."""
import pathlib
import re
import signal
import subprocess

import pc_sampling
import privileges
from bench import PATIENCE, check, emitted, equal, wait_for

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
KEPT = sum(1 << capability for capability in privileges.KEPT)
SYS_ADMIN = 21  # capabilities(7)


def setcap_as_the_readme_says(path, _):
    line = re.search(r"^sudo (setcap (\S+) /usr/bin/gpu-profiled)$", README.read_text(), re.MULTILINE)
    check(line, "the README has no setcap line")
    done = subprocess.run(["setcap", line.group(2), str(path)], capture_output=True, text=True, check=False)
    equal(done.returncode, 0, f"setcap {line.group(2)}: {done.stderr}")


def check_root(bench):
    """As root, with PC sampling: what is left while it records."""
    target = pc_sampling.start_session(bench, "pc_sampling")
    errors = bench.dir / "stderr"
    daemon = bench.spawn([str(bench.daemon), "--pid", str(target.pid), "--pc-sampling", "continuous", "-o", str(bench.dir / "x.pb.gz"),
                          "--summary-json", str(bench.dir / "x.json")], bench.env(), stderr=errors.open("w"))
    wait_for(lambda: daemon.poll() is not None or emitted(target.pid) >= 500, "500 executions")
    check(daemon.poll() is None, errors.read_text())
    for field in ("CapEff", "CapPrm"):
        held = int(privileges.status_field(daemon.pid, field)[0], 16)
        check(not held >> SYS_ADMIN & 1, f"{field} has CAP_SYS_ADMIN: {held:#x}")
        equal(held, KEPT, f"{field} of root's gpu-profiled")
    daemon.send_signal(signal.SIGINT)
    equal(daemon.wait(PATIENCE), 0, f"the daemon's exit status ({errors.read_text()})")
    check("uprobe_multi" in (bench.dir / "x.json").read_text(), "not attached by uprobe_multi")
    pc_sampling.end_session(bench, target)


def gate11(bench):
    check_root(bench)
    privileges.set_capabilities = setcap_as_the_readme_says
    privileges.case_file_capabilities(bench)
    print(f"root keeps {KEPT:#x}; a user has it by the README's setcap")
