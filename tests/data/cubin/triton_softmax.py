# SPDX-License-Identifier: Apache-2.0
"""A row-wise softmax: lines of Python, with Triton's own reductions and a function of ours inlined.

usage: triton_softmax.py OUT.cubin        (pip's triton; needs no GPU)
"""
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def shifted(x, by):
    low = x - by
    return tl.exp(low)


@triton.jit
def softmax(out, source, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(source + row * n + columns, mask=columns < n, other=-float("inf"))
    largest = tl.max(x, axis=0)
    weights = shifted(x, largest)
    total = tl.sum(weights, axis=0)
    tl.store(out + row * n + columns, weights / total, mask=columns < n)


source = ASTSource(fn=softmax, signature={"out": "*fp32", "source": "*fp32", "n": "i32", "BLOCK": "constexpr"},
                   constexprs={"BLOCK": 1024})
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
with open(sys.argv[1], "wb") as file:
    file.write(compiled.asm["cubin"])
