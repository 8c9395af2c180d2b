#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the inputs that a fuzz target begins with.

usage: fuzz_seeds.py TARGET FOLDER        (from the root of the tree)
"""
import pathlib
import struct
import sys

CUBINS = sorted(pathlib.Path("tests/data/cubin").glob("*.cubin"))


def section(elf: bytes, name: str) -> bytes:
    """The content of a section of a 64-bit little-endian ELF file; empty if it has none."""
    table, = struct.unpack_from("<Q", elf, 40)
    count, names_index = struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * i) for i in range(count)]
    names = headers[names_index][4]
    for header in headers:
        at = names + header[0]
        if elf[at:at + len(name) + 1] == name.encode() + b"\0":
            return elf[header[4]:header[4] + header[5]]
    return b""


def cubin() -> dict[str, bytes]:
    # The PTX text and such are most of a file and nothing that is read; small files fuzz faster.
    return {path.name: path.read_bytes() for path in CUBINS if path.stat().st_size < 40_000}


def cubin_lines() -> dict[str, bytes]:
    tables = {path.name: section(path.read_bytes(), ".debug_line") for path in CUBINS}
    return {name: table for name, table in tables.items() if table}


SEEDS = {"cubin": cubin, "cubin_lines": cubin_lines}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[2])
    for name, content in SEEDS.get(sys.argv[1], dict)().items():
        (folder / name).write_bytes(content)


main()
