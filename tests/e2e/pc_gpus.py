# SPDX-License-Identifier: Apache-2.0
"""One process at a time samples a GPU (docs/adr/0020): the shipped gpu-profiled and the real shim on fake GPUs that
know of each other's processes (FAKE_CUDA_GPU_LOCKS). A second sampler of a GPU is a broken rule of the fake: its
process ends with status 99 and is traced no more.

Run by ctest: pc_gpus.py CASE --build DIR. Needs root; without it the case is skipped (exit 77).
"""

import json
import signal
import subprocess
import sys
import time

import pprof_raw
from bench import PATIENCE, Bench, check, check_identity, equal, read_truth, run_named_case, status_page, wait_for, wait_for_memfd

SESSION = """set clock_khz 1000000
kernel work duration=200us
thread main on=main device=$device
  path a/b
  rate 400
  loop $loops
    launch work
  end
"""


class Gpus(Bench):
    def __init__(self, build):
        super().__init__(build)
        self.session = self.dir / "gpus.session"
        self.session.write_text("let device 0\nlet loops 1000000\n" + SESSION)
        self.names = {}

    def settings(self, name, **more):
        return {"FAKE_CUDA_TRUTH": self.truth_file(name), "FAKE_CUDA_GPU_LOCKS": self.dir.name, **more}

    def start(self, name, device=0, **settings):
        """A process that launches on its `device` until SIGTERM, with nobody attached."""
        env = self.env(CUDA_INJECTION64_PATH=self.shim, **self.settings(name, **settings))
        process = self.spawn(self.player(self.session, device=device), env, stdout=subprocess.DEVNULL)
        self.names[process.pid] = name
        wait_for_memfd(process.pid)
        return process

    def attach_to(self, targets, tier="continuous"):
        pids = [word for target in targets for word in ("--pid", str(target.pid))]
        return self.spawn([str(self.daemon), *pids, "--pc-sampling", tier, "-o", "x.pb.gz", "--summary-json", "x.json"],
                          self.env(), stderr=(self.dir / "stderr").open("w"))

    def end(self, process):
        """Its truth. A broken rule fails here."""
        process.send_signal(signal.SIGTERM)
        equal(process.wait(PATIENCE), 0, f"exit status of {self.names[process.pid]}")
        return read_truth(self.truth_file(self.names[process.pid]))

    def result(self, daemon):
        """(summary by pid, stderr, profile)."""
        daemon.send_signal(signal.SIGINT)
        code = daemon.wait(PATIENCE)
        errors = (self.dir / "stderr").read_text()
        equal(code, 0, f"the daemon's exit status: {errors}")
        summary = json.loads((self.dir / "x.json").read_text())
        check_identity(summary["total"])
        return {target["pid"]: target for target in summary["targets"]}, errors, self.dir / "x.pb.gz"


def word(pid, at):
    return int.from_bytes(status_page(pid)[at:at + 4], "little")


def wanted(process):
    return word(process.pid, 3560)


def held(process):
    return word(process.pid, 3564)


def windows(process):
    return word(process.pid, 2888 + 16 + 8)  # pc_counters[GPUPROF_PC_COUNT_WINDOWS]


def samples(process):
    return word(process.pid, 2888 + 16)


def emitted_more(process, count=500):
    """Traces go on."""
    at = 136 + 8 * 3
    before = word(process.pid, at)
    wait_for(lambda: word(process.pid, at) >= before + count, f"{count} executions of process {process.pid}")


def check_traced(target, truth):
    check_identity(target)
    executions = target["executions"]
    under_way = executions["lost_in_shim"]["incomplete"]  # at the detach
    check(under_way <= 1, f"{under_way} executions under way: one stream launches them")
    equal(executions["received"] + under_way, truth["cupti"]["delivered"], "executions received of those delivered")
    check(executions["received"] > 500, f"{executions['received']} executions: nothing is tested")


def one_gpu(build, tier):
    """Two processes on one GPU: one is sampled, both are traced; it ends, and the other one is sampled."""
    bench = Gpus(build)
    try:
        first, second = bench.start("first"), bench.start("second")
        daemon = bench.attach_to([first, second], tier)
        wait_for(lambda: held(first) or held(second), "one of them is sampled")
        if held(second):  # both launch already: either may ask first
            first, second = second, first
        wait_for(lambda: held(first) and samples(first) and wanted(second), "the first is sampled, the second waits")
        for process in (first, second):
            emitted_more(process)
        equal((held(second), samples(second)), (0, 0), "the second is not sampled meanwhile")
        check(held(first) == 1, "the first is still sampled")
        wait_for(lambda: "PC-sampled" in (bench.dir / "stderr").read_text(), "a line that says so")
        first_truth = bench.end(first)
        ended = time.monotonic()
        wait_for(lambda: held(second) == 1, "the second is sampled")
        print(f"handed on within {time.monotonic() - ended:.2f} s of the exit")
        wait_for(lambda: samples(second) > 0, "samples of the second")
        emitted_more(second)
        by_pid, errors, profile = bench.result(daemon)
        second_truth = bench.end(second)

        line = f"process {second.pid}: GPU 0 is PC-sampled in process {first.pid}; one process a GPU at a time"
        check(line in errors, f"stderr does not say {line}: {errors}")
        for process, truth in ((first, first_truth), (second, second_truth)):
            check_traced(by_pid[process.pid], truth)
            sampling = by_pid[process.pid]["pc_sampling"]
            equal(sampling["shim"]["samples"], truth["pc"]["pc_delivered"], "samples delivered and counted")
            check(sampling["gpus"][0]["sampled_ns"] > 0, f"not told as sampled: {sampling['gpus']}")
        taken = by_pid[second.pid]["pc_sampling"]["gpus"][0]
        equal((taken["id"], taken["taken_by"]), (0, first.pid), "GPU and who had it")
        check(taken["waited_ns"] > 0, "no time is told")
        equal(by_pid[first.pid]["pc_sampling"]["gpus"][0]["taken_by"], None, "who had the first one's GPU")
        comments = pprof_raw.pprof("-comments", path=profile)
        check(f"GPU 0 was PC-sampled in process {first.pid}" in comments, f"the profile does not say so: {comments}")
    finally:
        bench.close()


def case_one_gpu(build):
    one_gpu(build, "continuous")


def case_one_gpu_serialized(build):
    one_gpu(build, "serialized")


def case_two_gpus(build):
    """The GPU that both call 0 is not the same one; and one that the second calls 1 is the first one's 0."""
    bench = Gpus(build)
    try:
        first, second = bench.start("first"), bench.start("second", FAKE_CUDA_FIRST_GPU=1)
        third = bench.start("third", device=1, FAKE_CUDA_FIRST_GPU=1, FAKE_CUDA_DEVICES=2)
        targets = [first, second, third]
        daemon = bench.attach_to(targets)
        wait_for(lambda: all(samples(target) for target in targets), "all three are sampled")
        for target in targets:
            emitted_more(target)
        by_pid, errors, _ = bench.result(daemon)
        check("PC-sampled" not in errors, f"nobody waited: {errors}")
        for target in targets:
            truth = bench.end(target)
            check_traced(by_pid[target.pid], truth)
            sampling = by_pid[target.pid]["pc_sampling"]
            equal((sampling["state"], sampling["reason"]), ("on", "none"), "state and reason")
            equal(sampling["shim"]["samples"], truth["pc"]["pc_delivered"], "samples delivered and counted")
    finally:
        bench.close()


BOTH = """let loops 1000000
set clock_khz 1000000
kernel work duration=100us
thread first on=main
  loop $loops
    path a/b
    launch work
  end
thread second device=1
  loop $loops
    path c
    launch work
  end
"""


def own_threads(build, tier):
    """One process launches on two GPUs, each from a thread of its own, and the clock is read early: no thread switches
    sampling in the context of another one that launches there, which hangs (the fake's rule pc-other-thread)."""
    bench = Gpus(build)
    try:
        bench.session.write_text(BOTH)
        preload = bench.build / "tests/e2e/workload/libworkload_late_clock.so"
        target = bench.start("target", FAKE_CUDA_DEVICES=2, LATE_CLOCK="10:3000", LD_PRELOAD=bench.preload(preload))
        daemon = bench.attach_to([target], tier)
        if tier == "serialized":
            wait_for(lambda: windows(target) >= 24, "windows")
        else:
            wait_for(lambda: samples(target) > 0, "samples")
        by_pid, errors, _ = bench.result(daemon)
        counts = by_pid[target.pid]["pc_sampling"]["shim"]
        check(counts["samples"] > 0, f"{counts}; {errors}")
        truth = bench.end(target)
        equal(counts["samples"], truth["pc"]["pc_delivered"], "samples delivered and counted")
        print(f"{counts['windows']} windows, {counts['samples']} samples")
    finally:
        bench.close()


def case_own_threads(build):
    own_threads(build, "continuous")


def case_own_threads_serialized(build):
    own_threads(build, "serialized")


def case_children(build):
    """`run`: a program and one that starts beside it are armed by their environment, both on one GPU."""
    bench = Gpus(build)
    try:
        play = " ".join(bench.player(bench.session, loops=1600))
        script = f"""set -e
FAKE_CUDA_TRUTH={bench.truth_file('first')} {play} & first=$!
sleep 1
FAKE_CUDA_TRUTH={bench.truth_file('second')} {play} & second=$!
FAKE_CUDA_TRUTH={bench.truth_file('third')} {play}
wait $first
wait $second
cp {bench.truth_file('first')} {bench.truth_file()}"""
        _, summary, first, errors = bench.run(["sh", "-c", script], "--pc-sampling", "continuous",
                                              FAKE_CUDA_GPU_LOCKS=bench.dir.name)
        truths = [first, *[read_truth(bench.truth_file(name)) for name in ("second", "third")]]
        check_identity(summary["total"])
        executions = summary["total"]["executions"]
        equal(executions["received"], sum(truth["recorded_executions"] for truth in truths), f"executions ({errors})")
        equal(executions["produced"], executions["received"], "executions produced")
        delivered = [truth["pc"]["pc_delivered"] for truth in truths]
        check(delivered[0] > 0, f"the first one was alone and was not sampled: {delivered}")
        equal(summary["total"]["pc_sampling"]["counts"]["samples"], sum(delivered), "samples in all")
    finally:
        bench.close()


CASES = {name[5:]: value for name, value in globals().items() if name.startswith("case_")}


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, lambda function, options: function(options.build)))
