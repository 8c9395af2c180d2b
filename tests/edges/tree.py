#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what holds for every file of the tree: an SPDX line, no vendor header, no mirror's name.

usage: tree.py ROOT
"""
import pathlib
import re
import sys

SPDX_SUFFIXES = {".c", ".cc", ".h", ".cu", ".py", ".sh", ".proto", ".cmake"}
SKIPPED = ("build/", "out/", ".git/", ".git", "shared/")
# Package mirrors and registries are the machine's business; the format of packaging/copyright has a name of its own.
HOSTS = re.compile(r"https?://(?!www\.debian\.org/doc/)[a-z0-9.-]*(debian|pypi|pythonhosted|ubuntu)\.[a-z]+", re.IGNORECASE)
VENDOR = re.compile(r"Copyright[^\n]*N[V]IDIA", re.IGNORECASE)


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    problems = []
    files = 0
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if relative.startswith(SKIPPED) or "__pycache__" in relative or not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        files += 1
        script = text.startswith("#!")
        if (path.suffix in SPDX_SUFFIXES or script or path.name == "CMakeLists.txt") and \
                "SPDX-License-Identifier:" not in "\n".join(text.splitlines()[:3]):
            problems.append(f"{relative}: no SPDX line at the top")
        if HOSTS.search(text):
            problems.append(f"{relative}: names a package host")
        if VENDOR.search(text):
            problems.append(f"{relative}: holds vendor text")
    if files == 0:
        problems.append(f"no file found under {root}")
    print("\n".join(problems) if problems else f"{files} files are as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
