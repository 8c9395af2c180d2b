# SPDX-License-Identifier: Apache-2.0
"""Line tables of a CPython and what it says of them itself, for tests/unit/python/line_table_test.cc.

usage: pythonX.Y make_lines.py SOURCE... >lines-X.Y.txt
Writes for each code object of the sources "code FIRST_LINE TABLE" (hexadecimal), then "line BEGIN END LINE" for each range
of its bytes; 0: no line. Recipe: the CPython of Debian 11 (3.9), Ubuntu 22.04 (3.10), Debian 12 (3.11), Ubuntu 24.04
(3.12), Debian 13 (3.13) and Debian sid (3.14), on tests/e2e/python/nested.py and this file."""
import dis
import sys


def ranges(code):
    if hasattr(code, "co_lines"):
        return [(begin, end, line or 0) for begin, end, line in code.co_lines()]
    starts = list(dis.findlinestarts(code))
    ends = [begin for begin, _ in starts[1:]] + [len(code.co_code)]
    return [(begin, end, line) for (begin, line), end in zip(starts, ends)]


def write(code):
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    print("code", code.co_firstlineno, table.hex() or "-")
    for begin, end, line in ranges(code):
        if begin != end:
            print("line", begin, end, line)
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            write(constant)


def long_lines():
    """Steps of more than 127 lines and bytes, back and forth."""
    text = ["def f(a):", " x = (a"] + ["\n"] * 300 + [" + a", " )"]
    text += [" return [" + ",".join(["a"] * 400) + "]"] + [""] * 1000 + [" g(a,"] + [""] * 200 + [" b(", "), c(", "))"]
    return "\n".join(text) + "\n"


for path in sys.argv[1:]:
    with open(path) as file:
        write(compile(file.read(), path, "exec"))
write(compile(long_lines(), "<long>", "exec"))
