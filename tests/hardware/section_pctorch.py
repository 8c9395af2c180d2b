# SPDX-License-Identifier: Apache-2.0
"""pctorch: PC samples of PyTorch and Triton, in both tiers.

Seconds on an H200: PyTorch and Triton 75, serialized training 22, eight short runs 60 (estimated)."""
import concurrent.futures
import json

import pc_checks
import section_pc as pc

RUNS = 8  # on each GPU, at the same time
STEPS = 20


def every_run(bench):
    """Short `run`s, one after the other on every GPU at a time: each has samples."""

    def on_gpu(gpu):
        return [one(["env", f"CUDA_VISIBLE_DEVICES={gpu}", *bench.python("pc_torch.py", "--steps", STEPS)])
                for _ in range(RUNS)]

    def one(command):
        summary = bench.path(".json")
        done = bench.run(bench.profiled(command, bench.path(".pb.gz"), summary, pc.CONTINUOUS), 60)
        if not done.ok():
            return 0, done.why()
        found = json.loads(summary.read_text())
        return pc_checks.shim_count(found, "samples"), pc_checks.pc_summaries(found)

    gpus = bench.gpus()
    with concurrent.futures.ThreadPoolExecutor(len(gpus)) as pool:
        results = [result for found in pool.map(on_gpu, gpus) for result in found]
    for count, what in results:
        if count == 0:
            bench.report.fact("a run without samples", what)
    bench.report.require(f"torch and Triton, {RUNS} runs on each of {len(gpus)} GPUs: samples",
                         all(count > 0 for count, _ in results), ", ".join(str(count) for count, _ in results), "in each")


def run(bench):
    pc.run_parts(bench, (("torch and Triton, continuous", 80, lambda: pc.torch_and_triton(bench)),
                         ("torch training, serialized", 30, lambda: pc.torch_serialized(bench)),
                         ("samples in every run", 80, lambda: every_run(bench))))
