#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's own tools say about every instruction of the cubins in this folder.

usage: oracles.py LIBCUPTI NVDISASM CUBIN...

Writes CUBIN's name with .lines instead of .cubin, and .calls. Two sources that share no code with ours:
cuptiGetSassToSourceCorrelation (the innermost file and line; needs no GPU, but from 13.1 on it does
need libcuda) and the listing of `nvdisasm -gi` (the chain of inlined calls). The last run was with
CUPTI 13.0 and nvdisasm 13.5 (pip: nvidia-cuda-nvdisasm).

Format of .lines, a line each:
  file N PATH                     without "x/.." in it, which CUPTI takes out and nvdisasm does not
  function NAME                   what follows are offsets from its start
  FROM-END CHAIN                  for every instruction in [FROM, END), 16 bytes each, hexadecimal:
                                  nvdisasm's N:LINE < N:LINE ..., innermost first, or `-`; CUPTI
                                  names the innermost too
  FROM-END CHAIN | N:LINE         CUPTI says something else, or `-`: it knows none

Beside it CUBIN's name with .calls, of `nvdisasm -c`, where there are any:
  function NAME
  OFFSET CALLEE                   a CALL of the symbol CALLEE
  OFFSET *                        a CALL, or a branch, to an address in a register
"""
import ctypes
import pathlib
import posixpath
import re
import subprocess
import sys

INSTRUCTION = 16


files: dict[str, int] = {}


def number(path: str, line: int | str) -> str:
    """N:LINE"""
    path = posixpath.normpath(path)
    return f"{files.setdefault(path, len(files) + 1)}:{line}"


class Params(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("cubin", ctypes.c_void_p), ("function", ctypes.c_char_p),
                ("cubin_size", ctypes.c_size_t), ("line", ctypes.c_uint32), ("pc", ctypes.c_uint64),
                ("file", ctypes.c_void_p), ("dir", ctypes.c_void_p)]


class Cupti:
    def __init__(self, path: str):
        self.call = ctypes.CDLL(path).cuptiGetSassToSourceCorrelation
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [ctypes.c_void_p]

    def take(self, text) -> str:
        if not text:
            return ""
        value = ctypes.string_at(text).decode()
        self.free(text)
        return value

    def line(self, cubin: bytes, function: str, pc: int) -> str:
        buffer = ctypes.create_string_buffer(cubin, len(cubin))
        params = Params(ctypes.sizeof(Params), ctypes.addressof(buffer), function.encode(), len(cubin),
                        0, pc, None, None)
        result = self.call(ctypes.byref(params))
        file, directory = self.take(params.file), self.take(params.dir)
        if result != 0 or params.line == 0:
            return "-"
        path = file if not directory or file.startswith("/") else f"{directory}/{file}"
        return number(path, params.line)


def listing(nvdisasm: str, path: pathlib.Path) -> dict[str, dict[int, str]]:
    """section's function -> offset -> chain"""
    out = subprocess.run([nvdisasm, "-gi", "-c", str(path)], check=True, capture_output=True, text=True).stdout
    functions: dict[str, dict[int, str]] = {}
    chain: list[str] = []
    taken = True  # the next annotation starts a new chain
    offsets: dict[int, str] = {}
    for text in out.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.([^,]+),", text):
            offsets = functions.setdefault(match[1].strip('"'), {})
            chain, taken = [], True
        elif match := re.match(r'\s*//## File "([^"]*)", line (\d+)', text):
            if taken:
                chain, taken = [], False
            chain.append(number(match[1], match[2]))
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+\S", text):
            taken = True
            offsets[int(match[1], 16)] = " < ".join(chain) or "-"
    return functions


def write_calls(path: pathlib.Path, nvdisasm: str) -> None:
    out = subprocess.run([nvdisasm, "-c", str(path)], check=True, capture_output=True, text=True).stdout
    functions: dict[str, list[str]] = {}
    calls: list[str] = []
    for text in out.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.([^,]+),", text):
            calls = functions.setdefault(match[1].strip('"'), [])
        elif match := re.match(r"\s*/\*0*([0-9a-f]+)\*/\s+(?:@\S+\s+)?(CALL|BRX|JMX|JMP)\S*\s+(.*?)\s*;", text):
            direct = re.fullmatch(r"`\((.*)\)", match[3])
            calls.append(f"{match[1]} {direct[1] if direct else '*'}")
    lines = [line for name in sorted(functions) if functions[name]
             for line in [f"function {name}", *functions[name]]]
    if lines:
        path.with_suffix(".calls").write_text("\n".join(lines) + "\n")


def write(path: pathlib.Path, cupti: Cupti, nvdisasm: str) -> None:
    cubin = path.read_bytes()
    files.clear()
    lines = []
    for function, chains in sorted(listing(nvdisasm, path).items()):
        lines.append(f"function {function}")
        start, answer = 0, None
        for offset in sorted(chains):
            now, other = chains[offset], cupti.line(cubin, function, offset)
            if other != now.split(" < ")[0]:
                now += f" | {other}"
            if now != answer and answer is not None:
                lines.append(f"{start:x}-{offset:x} {answer}")
            if now != answer:
                start, answer = offset, now
        if answer is not None:
            lines.append(f"{start:x}-{max(chains) + INSTRUCTION:x} {answer}")
    names = [f"file {n} {name}" for name, n in files.items()]
    path.with_suffix(".lines").write_text("\n".join(names + lines) + "\n")


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    cupti = Cupti(sys.argv[1])
    for path in sys.argv[3:]:
        write(pathlib.Path(path), cupti, sys.argv[2])
        write_calls(pathlib.Path(path), sys.argv[2])


main()
