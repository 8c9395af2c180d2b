# SPDX-License-Identifier: Apache-2.0
"""usage: caller.py LIBRARY"""
import ctypes
import functools
import sys
import threading

library = ctypes.CDLL(sys.argv[1])
callback_type = ctypes.CFUNCTYPE(None, ctypes.c_int)


def nested(depth):
    if depth > 0:
        return nested(depth - 1)
    return library.launch_nested(3)


class Module:
    def __init__(self, inner):
        self.inner = inner

    def __call__(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def generator(n):
    for i in range(n):
        library.launch()
        yield i


@callback_type
def callback(value):
    if value > 0:
        library.launch_through(callback, value - 1)


def main():
    library.launch()
    nested(10)
    module = nested
    for _ in range(8):
        module = Module(module)
    module(2)
    list(generator(2))
    sorted([3, 1, 2], key=functools.partial(lambda depth, value: nested(depth) and value, 1))
    callback(2)
    eval("nested(1)")
    thread = threading.Thread(target=nested, args=(4,))
    thread.start()
    thread.join()


main()
