# SPDX-License-Identifier: Apache-2.0
"""Launches kernels in the main interpreter and in another one that it calls, on the same thread (cuda_truth.py).

usage: interpreters.py TRUTH ROUNDS [SECONDS]     pauses for SECONDS before the first launch"""
import json
import pathlib
import sys
import time

import cuda_truth
from cuda_truth import launch, stack_of

truth_path, rounds = sys.argv[1], int(sys.argv[2])
INNER = """
import json, sys
sys.path.insert(0, {folder!r})
import cuda_truth
cuda_truth.prefix = "inner"
cuda_truth.outer = tuple(tuple(frame) for frame in json.loads({outer!r}))
if {first}:
    cuda_truth.start()
    def inner(n):
        cuda_truth.launch() if n == 0 else inner(n - 1)
inner(3)
if {last}:
    cuda_truth.write({truth!r})
"""


def text(first, last, outer):
    """`first` and `last`: what is to do once. `outer` is the frames around it."""
    return INNER.format(folder=str(pathlib.Path(__file__).parent), first=first, last=last, truth=truth_path,
                        outer=json.dumps(outer))


def interpreter():
    """The module of interpreters, and the number of a new one, which shares extension modules: ctypes wants it."""
    try:
        import _interpreters  # since 3.13
        number = _interpreters.create("legacy")
    except ImportError:
        import _xxsubinterpreters as _interpreters
        number = _interpreters.create(isolated=False)
    return _interpreters, number


def alternate(interpreters, number):
    for i in range(rounds):
        launch()
        interpreters.run_string(number, text(i == 0, i == rounds - 1, stack_of(sys._getframe())))
        launch()


cuda_truth.start()
other = interpreter()
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
alternate(*other)
cuda_truth.write(truth_path)
