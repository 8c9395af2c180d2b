#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's table of GPU_PROFILED_* variables is the shim's own table, row by row.

usage: knobs.py ROOT
"""
import pathlib
import re
import sys

STRING = r'"((?:[^"\\]|\\.)*)"'


def shim_table(text: str) -> list[tuple[str, ...]]:
    """(name, values, default, meaning) of kTable; adjacent literals are one string, as in C."""
    start = text.index("kTable[] = {")
    body = text[start:text.index("\n};", start)]
    rows = []
    for row in re.findall(r"\{\s*(" + STRING + r".*?)\}", body, re.DOTALL):
        cells, joined = [], True
        for literal, comma in re.findall(STRING + r"\s*(,?)", row[0]):
            if joined:
                cells.append(literal)
            else:
                cells[-1] += literal
            joined = bool(comma)
        rows.append(tuple(cells))
    return rows


def readme_table(text: str) -> list[tuple[str, ...]]:
    return [tuple(cell.strip().strip("`") if i == 0 else cell.strip() for i, cell in enumerate(line.split("|")[1:-1]))
            for line in text.splitlines() if line.startswith("| `GPU_PROFILED_")]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    shim = shim_table((root / "shim/core/knobs.cc").read_text())
    readme = readme_table((root / "README.md").read_text())
    missing = [f"not in the README: {row}" for row in shim if row not in readme]
    extra = [f"not in the shim: {row}" for row in readme if row not in shim]
    problems = missing + extra + ([] if shim and len(shim[0]) == 4 else ["the shim's table could not be read"])
    print("\n".join(problems) if problems else f"{len(shim)} knobs agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
