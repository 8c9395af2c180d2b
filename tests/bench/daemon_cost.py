# SPDX-License-Identifier: Apache-2.0
"""What gpu-profiled costs at the default rate of stacks, 1,000 a second and process: a compiled program, and Python 30 calls
deep, on the fake CUDA. Target: 3 % of a core. Needs root and a whole build; not a test.

usage: daemon_cost.py [--build build/ci] [--seconds 15] [--python PATH]"""
import argparse
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from bench import Bench, emitted, wait_for, wait_for_memfd  # noqa: E402

SCRIPT = """
import ctypes, sys, threading, time
sys.path.insert(0, sys.argv[1])
import cuda_truth
cuda_truth.start()
kernel = cuda_truth.function_of("kernel")
arguments = (kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def deep(level):
    if level:
        deep(level - 1)
    else:
        cuda_truth.cuda.cuLaunchKernel(*arguments)
def thread():
    cuda_truth.use()
    while True:
        deep(26)
        time.sleep(1 / 250)
for _ in range(5):
    threading.Thread(target=thread).start()
"""


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(bench, name, target, seconds):
    wait_for_memfd(target.pid)
    summary = bench.dir / f"{name}.json"
    daemon = bench.spawn([str(bench.daemon), "--pid", str(target.pid), "-o", str(bench.dir / f"{name}.pb.gz"),
                          "--summary-json", str(summary)], bench.env(), stderr=(bench.dir / "stderr").open("w"))
    wait_for(lambda: emitted(target.pid) > 1000, "launches")
    cpu, started = cpu_seconds(daemon.pid), time.monotonic()
    time.sleep(seconds)
    used, elapsed = cpu_seconds(daemon.pid) - cpu, time.monotonic() - started
    began = time.monotonic()
    daemon.send_signal(signal.SIGINT)
    daemon.wait(60)
    target.kill()
    totals = json.loads(summary.read_text())
    stacks = totals["targets"][0]["stacks"]
    rate = stacks["taken"] / (totals["duration_ns"] / 1e9)
    print(f"{name}: {100 * used / elapsed:.1f} % of a core at {rate:.0f} stacks/s, {stacks['whole']} of {stacks['taken']} whole; "
          f"the profile written in {time.monotonic() - began:.2f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/ci")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    bench = Bench(pathlib.Path(options.build).resolve())
    try:
        measure(bench, "native", bench.start_target("--threads", 5, "--launches", 0, "--rate", 1250, FAKE_CUDA_INSTANT=1),
                options.seconds)
        script = bench.dir / "deep.py"
        script.write_text(SCRIPT)
        env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_INSTANT=1)
        folder = pathlib.Path(__file__).resolve().parent.parent / "e2e/python"
        target = bench.spawn([options.python, "-B", str(script), str(folder)], env)
        measure(bench, "python", target, options.seconds)
    finally:
        bench.close()


main()
