#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists every struct of the ABI headers and its members, for abi_table.h.

usage: abi_fields.py OUT HEADER...     S(struct) asks for a size, M(struct, member) for an offset

A declaration it does not understand is an error, so that nothing goes untested."""
import pathlib
import re
import sys


def rows(text: str):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for struct in re.finditer(r"^struct (\w+) \{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
        yield f"S({struct[1]})"
        for declaration in filter(None, map(str.strip, struct[2].split(";"))):
            member = re.fullmatch(r"(?:struct )?\w+ (\w+)(?:\[\w+\])?", declaration)
            if not member:
                sys.exit(f"struct {struct[1]}: cannot read '{declaration}'")
            yield f"M({struct[1]}, {member[1]})"


def main() -> None:
    found = [row for header in sys.argv[2:] for row in rows(pathlib.Path(header).read_text())]
    if not found:
        sys.exit("no struct found")
    pathlib.Path(sys.argv[1]).write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
