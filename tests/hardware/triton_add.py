# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel launched a fixed number of times: triton_add.py [--count N] [--gate DIR]."""
import argparse
import json

import torch
import triton
import triton.language as tl

from gate import Gate


@triton.jit
def triton_add_kernel(x_pointer, y_pointer, out_pointer, n, block: tl.constexpr):
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    x = tl.load(x_pointer + offsets, mask=mask)
    y = tl.load(y_pointer + offsets, mask=mask)
    tl.store(out_pointer + offsets, x + y, mask=mask)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--gate")
    options = parser.parse_args()
    n = 1 << 20
    x = torch.rand(n, device="cuda")
    y = torch.rand(n, device="cuda")
    out = torch.empty_like(x)
    grid = (triton.cdiv(n, 1024),)
    triton_add_kernel[grid](x, y, out, n, block=1024)  # compiles
    torch.cuda.synchronize()
    gate = Gate(options.gate)

    def beat():
        torch.special.bessel_j0(x[:32])

    gate.open(beat)
    for _ in range(options.count):
        triton_add_kernel[grid](x, y, out, n, block=1024)
    torch.cuda.synchronize()
    gate.close(beat)
    torch.cuda.synchronize()
    print(json.dumps({"count": options.count, "right": bool(torch.equal(out, x + y))}))


if __name__ == "__main__":
    main()
