# SPDX-License-Identifier: Apache-2.0
"""Launches kernels below more C frames than are copied of a stack, between them Python's (cuda_truth.py).

usage: deep.py TRUTH ROUNDS [SECONDS]     pauses for SECONDS before the first launch"""
import ctypes
import sys
import time

import cuda_truth
from cuda_truth import launch

LEVELS = 120
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
qsort = ctypes.CDLL(None).qsort


def level(n):
    if n == 0:
        launch()
        return 0
    pair = (ctypes.c_int * 2)(2, 1)
    qsort(pair, 2, ctypes.sizeof(ctypes.c_int), COMPARE(lambda a, b: level(n - 1)))
    return 0


cuda_truth.start()
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
for _ in range(int(sys.argv[2])):
    level(LEVELS)
cuda_truth.write(sys.argv[1])
