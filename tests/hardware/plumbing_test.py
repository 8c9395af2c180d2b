#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The course of the hardware checks of PC sampling, run for real on the fake driver: the shipped gpu-profiled, the
shim, eBPF, and stand_in in place of the workloads, smaller and shorter. Shows that the sections run to
their end and what they conclude there; says nothing of a GPU.

Run by ctest: plumbing_test.py SECTION --build DIR. Needs root; its cubins are made by make_cubins.py."""
import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import main as hardware_check  # noqa: E402
import section_cost  # noqa: E402
import section_cycles  # noqa: E402
import section_pc  # noqa: E402
import section_pccost  # noqa: E402
import section_pccycles  # noqa: E402
import section_pcshared  # noqa: E402
import section_pctorch  # noqa: E402
import section_record  # noqa: E402
from harness import Bench  # noqa: E402

WORKLOADS = ("w2", "hot_loops", "pc_torch", "train", "triton_add", "capture", "nccl_loop")
SKIPPED = 77


class FakeBench(Bench):
    """The build tree's products, and the stand-in under each workload's name."""

    def __init__(self, build, out, includes, bundle=None):
        super().__init__(bundle or build, out, 280)
        self.includes = [folder for folder in includes.split(";") if folder]
        self.build = pathlib.Path(build).resolve()
        if bundle is None:
            # GPU_PROFILED_TEST_*: as in tests/e2e/bench.py.
            self.daemon = pathlib.Path(os.environ.get("GPU_PROFILED_TEST_DAEMON", self.build / "daemon/gpu-profiled"))
            self.shim = pathlib.Path(os.environ.get("GPU_PROFILED_TEST_SHIM", self.build / "shim/libgpu-profiled-cupti.so"))
        self.cubins = self.build / "tests/hardware/cubins"
        self.listener = self.build / "tests/bench/listener.so"
        for name in WORKLOADS:
            shutil.copy(self.build / "tests/hardware/stand_in", self.work / name)

    def env(self, **values):
        fake = self.build / "tests/fake_cuda"
        cupti = fake / "cupti13/libcupti.so.13"
        given = {"LD_LIBRARY_PATH": f"{fake}/lib:{fake}/cupti13", "GPU_PROFILED_CUPTI_PATH": cupti, "LISTENER_CUPTI": cupti,
                 "STAND_IN_CUBINS": self.cubins, "FAKE_CUDA_DEVICES": 2, "FAKE_CUDA_REPORT": self.work / "violations"}
        return super().env(**{**given, **values})

    def gpus(self):
        return ["0", "1"]

    def python(self, script, *arguments):
        return [self.work / script.removesuffix(".py"), *arguments]

    def cuda_includes(self):
        return [part for folder in self.includes for part in ("-isystem", folder)]


def make_small():
    """What takes minutes on a GPU for the sake of its numbers."""
    section_pc.W2_ROUNDS, section_pc.HOT_ROUNDS, section_pc.TORCH_STEPS = 15, 400, 2000
    section_pc.SERIALIZED_ROUNDS, section_pc.TRAIN_STEPS = 1200, 12000
    section_pccycles.CYCLES, section_pccycles.CAPTURE_CYCLES, section_pccycles.OTHER_CYCLES = 6, 4, 2
    section_pccost.SETS, section_pccost.TURNS, section_pccost.GPU_BOUND_PAIRS = 2, 3, 2
    section_pccost.TRAINING_ROUNDS, section_pccost.TRAINING_STEPS = 9, 600
    section_pccost.DUTY_ROUNDS, section_pccost.DUTY_STEPS = 1, {"10": 600, "1": 600}
    section_cost.MIN_SETS = 2
    section_pcshared.SWITCHES = 4
    section_pc.comings_and_goings = lambda bench: None  # its program is made by nvcc; pc_sampling.short_lived_modules
    section_pctorch.RUNS, section_pctorch.STEPS = 1, 1000


def fake_cuptis(bench, carried=False):
    fake = bench.build / "tests/fake_cuda"
    return [(26, str(fake / "cupti12/libcupti.so.12")), (130001, str(fake / "cupti13/libcupti.so.13"))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=["w2", "cost", "pc", "pctorch", "pccycles", "pcshared:two", "pccost", "record"])
    parser.add_argument("--build", required=True)
    parser.add_argument("--includes", required=True, help="folders of CUPTI's headers, separated by ;")
    parser.add_argument("--bundle", help="try scripts/hardware-bundle's folder instead of the build tree's products")
    parser.add_argument("--out", help="keep the results there")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("skipped: needs root")
        return SKIPPED
    make_small()
    with tempfile.TemporaryDirectory(prefix="hardware-plumbing-") as folder:
        if options.section.startswith("pcshared"):
            os.environ["FAKE_CUDA_GPU_LOCKS"] = folder  # processes of one fake machine
        bench = FakeBench(options.build, options.out or folder, options.includes, options.bundle)
        bench.out.mkdir(exist_ok=True)
        section_cycles.libcuptis = fake_cuptis
        hardware_check.run_sections(bench, [options.section])
        violations = bench.work / "violations"
        broken = violations.read_text() if violations.exists() else ""
        shutil.rmtree(bench.work, ignore_errors=True)
    rows = bench.report.rows
    bad = [row for row in rows if row["status"] in ("not met", "not run")]
    print(f"{len(rows)} results, {len(bad)} that should not be, rules of CUPTI broken: {broken or 'none'}")
    for row in bad:
        print(json.dumps(row))
    return 1 if bad or broken or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
