# SPDX-License-Identifier: Apache-2.0
"""Launches of a (fake) CUDA from Python, for any CPython from 3.9 on, and what the Python stack of each was. write() adds to
a file a line of JSON a distinct stack: [kernel, launches, [[function, file, line], ...] innermost first, without launch()
itself]. Each stack launches a kernel of its own name."""
import ctypes
import json
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
context, module = ctypes.c_void_p(), ctypes.c_void_p()
functions = {}
stacks = {}
lock = threading.Lock()
# Of another interpreter: its frames around this one's, and what its kernels are called.
outer = ()
prefix = "kernel"


def check(status):
    if status != 0:
        raise SystemExit(f"CUDA error {status}")


def start():
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    use()
    check(cuda.cuModuleLoadData(ctypes.byref(module), b"any"))


def use():
    check(cuda.cuCtxSetCurrent(context))


def stack_of(frame):
    out = []
    while frame is not None:
        code = frame.f_code
        out.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(out)


def function_of(name):
    with lock:
        if name not in functions:
            function = ctypes.c_void_p()
            check(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            functions[name] = function
        return functions[name]


def kernel_of(stack):
    with lock:
        entry = stacks.setdefault(stack, [f"{prefix}_{len(stacks)}", 0])
        entry[1] += 1
        return entry[0]


def launch():
    function = function_of(kernel_of(stack_of(sys._getframe(1)) + outer)); check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))  # noqa: E501,E702


def write(path):
    check(cuda.cuCtxSynchronize())
    with open(path, "a") as file:
        for stack, (kernel, launches) in stacks.items():
            file.write(json.dumps([kernel, launches, stack]) + "\n")
