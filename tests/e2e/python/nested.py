# SPDX-License-Identifier: Apache-2.0
"""Launches kernels from every kind of Python frame, and writes what each launch's Python stack was (cuda_truth.py).

usage: nested.py TRUTH ROUNDS [SECONDS]     pauses for SECONDS before the first launch
EVALUATOR in the environment: a library with evaluator.c"""
import asyncio
import ctypes
import functools
import os
import sys
import threading
import time

import cuda_truth
from cuda_truth import launch

truth_path, rounds = sys.argv[1], int(sys.argv[2])
cuda_truth.start()
if "EVALUATOR" in os.environ:
    ctypes.PyDLL(os.environ["EVALUATOR"]).install()


def plain():
    launch()


def deep(n):
    if n == 0:
        launch()
    else:
        deep(n - 1)


def several_lines():
    return [
        launch(),
        len(
            str(
                launch(),
            )
        ),
    ]


class Module:
    def __call__(self, n):
        return self.forward(n)

    def forward(self, n):
        if n:
            return Module()(n - 1)
        launch()
        return 0

    @property
    def prop(self):
        launch()
        return 1

    @staticmethod
    def static():
        launch()

    @classmethod
    def of_class(cls):
        launch()


def generator():
    for _ in range(2):
        launch()
        yield
    yield from inner_generator()


def inner_generator():
    launch()
    yield


async def coroutine():
    await awaited()


async def awaited():
    launch()


def run_coroutine():
    c = coroutine()
    try:
        c.send(None)
    except StopIteration:
        pass


def decorated(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args)
    return wrapper


@decorated
def with_decorator(x):
    launch()
    return x


def from_c():
    sorted([2, 1], key=lambda x: launch() or x)
    list(map(with_decorator, [1, 2]))
    functools.reduce(lambda a, b: launch() or a, [1, 2, 3])
    functools.partial(deep, 2)()
    max([1, 2], key=functools.partial(keyed, 1))


def keyed(a, b):
    deep(1)
    return b


def comprehensions():
    [launch() for _ in range(2)]
    {launch(): 1 for _ in range(1)}
    list(launch() for _ in range(2))


def raising():
    try:
        raise ValueError
    except ValueError:
        launch()
    finally:
        launch()


made = compile("def made(n):\n\n    launch()\n    return n\nmade(1)\nlaunch()\n", "<made>", "exec")


class Initialised:
    """Calls that the interpreter specialises into frames of its own once they are warm."""

    def __init__(self, depth=0):
        if depth:
            self.inner = Initialised(depth - 1)
        launch()

    def __getitem__(self, key):
        launch()
        return key

    def __enter__(self):
        launch()

    def __exit__(self, *error):
        launch()

    def __call__(self, *args, **kwargs):
        launch()

    def __del__(self):
        launch()

    def __eq__(self, other):
        launch()
        return True


class Watched:
    def __init__(self):
        self.value = 1

    def __getattribute__(self, name):
        launch()
        return object.__getattribute__(self, name)


class Derived(Initialised):
    def __init__(self):
        super().__init__(1)


def specialised():
    for _ in range(3):
        it = Derived()
        it[1]
        it.inner
        with it:
            pass
        it(1, *[2], key=3)
        it in [1, it]
        del it
        Watched().value
    for _ in generator():
        launch()


async def awaiting():
    await asyncio.sleep(0)
    async with Asynchronous():
        await asyncio.gather(awaited(), awaited())
    async for _ in asynchronous_generator():
        launch()


class Asynchronous:
    async def __aenter__(self):
        launch()

    async def __aexit__(self, *error):
        launch()


async def asynchronous_generator():
    launch()
    yield 1


def in_a_class_body():
    class Body:
        launch()


def traced():
    """A profile function is called by the interpreter, in the middle of its frame."""
    def profiling(frame, event, arg):
        if event == "call" and frame.f_code is keyed.__code__:
            launch()
    before = sys.getprofile()
    sys.setprofile(profiling)
    try:
        keyed(1, 2)
    finally:
        sys.setprofile(before)


def executed():
    exec(made, {"launch": launch})
    eval("launch()")  # its code object is freed at once


def callback():
    """C calls Python through a function pointer."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(a, b):
        launch()
        return 0
    items = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(items, 2, ctypes.sizeof(ctypes.c_int), kind(compare))


def everything():
    plain()
    deep(40)
    several_lines()
    Module()(3)
    Module().prop
    Module.static()
    Module.of_class()
    list(generator())
    run_coroutine()
    from_c()
    comprehensions()
    raising()
    specialised()
    asyncio.run(awaiting())
    in_a_class_body()
    traced()
    executed()
    callback()


time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)


def in_thread(number):
    cuda_truth.use()
    launch()
    ctypes.CDLL(None).prctl(15, f"worker_{number}".encode())  # PR_SET_NAME; before 3.14 threading names none
    for _ in range(rounds):
        everything()


threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for _ in range(rounds):
    everything()
for thread in threads:
    thread.join()
cuda_truth.write(truth_path)
