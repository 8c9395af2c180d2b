# SPDX-License-Identifier: Apache-2.0
"""pctorch: PC samples of PyTorch and Triton, in both tiers.

Seconds on an H200: PyTorch and Triton 75, serialized training 22."""
import section_pc as pc


def run(bench):
    pc.run_parts(bench, (("torch and Triton, continuous", 80, lambda: pc.torch_and_triton(bench)),
                         ("torch training, serialized", 30, lambda: pc.torch_serialized(bench))))
