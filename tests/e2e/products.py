# SPDX-License-Identifier: Apache-2.0
"""What the Python cases test is what was named: GPU_PROFILED_TEST_DAEMON and GPU_PROFILED_TEST_SHIM where they are
set, seen in the running processes. Run by ctest: products.py named --build DIR."""

import os
import pathlib
import re
import subprocess
import sys

from bench import Bench, check, equal, run_named_case, status_page, wait_for_state, STATE_TRACING

BUILD_ID_AT = 520  # gpuprof_status_page.build_id


def build_id_of_file(path):
    notes = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    return re.search(r"Build ID: ([0-9a-f]{40})\n", notes).group(1)


def named(build):
    build = pathlib.Path(build).resolve()
    daemon = pathlib.Path(os.environ.get("GPU_PROFILED_TEST_DAEMON", build / "daemon/gpu-profiled")).resolve()
    shim = pathlib.Path(os.environ.get("GPU_PROFILED_TEST_SHIM", build / "shim/libgpu-profiled-cupti.so")).resolve()
    bench = Bench(build)
    try:
        target = bench.start_target("--launches", 0, "--seconds", 250, "--rate", 1000)
        attached = bench.spawn([str(bench.daemon), "--pid", str(target.pid), "-o", str(bench.dir / "x.pb.gz")], bench.env(),
                               stderr=subprocess.DEVNULL)
        wait_for_state(target.pid, STATE_TRACING)
        equal(os.readlink(f"/proc/{attached.pid}/exe"), str(daemon), "the daemon that runs")
        maps = pathlib.Path(f"/proc/{target.pid}/maps").read_text()
        check(f"{shim}\n" in maps, f"{shim} is not mapped:\n{maps}")
        on_page = status_page(target.pid)[BUILD_ID_AT:BUILD_ID_AT + 20].hex()
        equal(on_page, build_id_of_file(shim), "the shim's build id, as its page tells it")
    finally:
        bench.close()


CASES = {"named": named}

if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, lambda function, options: function(options.build)))
