#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the allowed edges of the tree against every #include of ours.

usage: include_edges.py ROOT

The table below is the design: a folder may include itself and what its row names. It has no cycles,
which is checked too. Includes are repo-rooted ("daemon/base/result.h"); generated headers are named
without a folder (BPF skeletons, protobuf). Vendor and system headers come in <> or are not ours.
"""
import pathlib
import re
import sys

# folder -> folders it may include; the longest matching folder of a file counts.
ALLOWED = {
    "proto": [],
    "bpf": ["proto"],
    "shim": ["shim/core", "shim/cupti", "proto"],
    "shim/core": ["proto"],
    "shim/cupti": ["shim/core", "proto"],
    "daemon": ["daemon/cli", "daemon/base"],
    "daemon/base": ["proto"],
    "daemon/target": ["daemon/base", "proto"],
    "daemon/probe": ["daemon/base", "proto", "bpf"],
    "daemon/unwind": ["daemon/base", "proto"],
    "daemon/symbolize": ["daemon/base", "daemon/unwind", "proto"],
    "daemon/python": ["daemon/base", "daemon/unwind", "daemon/symbolize", "proto"],
    "daemon/cubin": ["daemon/base", "proto"],
    "daemon/join": ["daemon/base", "daemon/unwind", "daemon/symbolize", "daemon/cubin", "proto"],
    "daemon/pprof": ["daemon/base", "daemon/join", "proto"],
    "daemon/serve": ["daemon/base", "daemon/join", "daemon/pprof", "proto"],
    "daemon/asker": [],
    # What elfgate reads of a file, so that both judge it alike.
    "daemon/doctor": ["daemon/base", "daemon/target", "daemon/probe", "proto", "tools/elfgate"],
    "daemon/cli": ["daemon/asker", "daemon/base", "daemon/doctor", "daemon/target", "daemon/probe", "daemon/unwind",
                   "daemon/symbolize", "daemon/python", "daemon/cubin", "daemon/join", "daemon/pprof", "daemon/serve",
                   "proto"],
    "tools/elfgate": [],
    "cmake": [],
    # The stand-ins for NVIDIA's libraries must not know what they test.
    "tests/fake_cuda": [],
    "tests/bench/listener.cc": [],
}
# Inside a folder that may be included, only these files may be: the joined model is plain data.
ONLY_FILES = {("daemon/pprof", "daemon/join"): {"daemon/join/model.h"}}
# The shim runs in other people's processes (design 3.1): no streams, no std::string, no std::thread.
GUEST_FORBIDDEN = {"iostream", "ostream", "istream", "sstream", "fstream", "iomanip", "string", "thread",
                   "regex", "filesystem", "locale", "future", "cassert", "assert.h"}
SOURCE_SUFFIXES = {".c", ".cc", ".h", ".cu", ".inc"}
OUR_ROOTS = ("proto/", "bpf/", "shim/", "daemon/", "tools/", "tests/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path: str) -> str | None:
    """The row of ALLOWED that a file belongs to."""
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in ALLOWED:
            return name
    return None


def includes(text: str):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def check_include(path: str, folder: str, style: str, name: str) -> str | None:
    """Why this include is wrong, or None."""
    if folder.startswith("shim") and style == "<" and name in GUEST_FORBIDDEN:
        return f"the shim is a guest: no <{name}>"
    if not name.startswith(OUR_ROOTS) or (style == "<" and name.startswith("bpf/")):  # libbpf's <bpf/...>
        if style == '"' and "/" not in name and not name.endswith((".skel.h", ".pb.h")):
            sibling = f"{path.rsplit('/', 1)[0]}/{name}"
            return f"write the path from the root: {sibling}" if folder != "bpf" else None
        return None
    if style == "<":
        return "our own headers are included with quotes"
    target = folder_of(name)
    if target is None:
        return f"{name} belongs to no folder of the design"
    if target == folder:
        return None
    # A parent's row covers its children only where it names them.
    if target not in ALLOWED[folder]:
        return f"{folder} must not include {target}"
    only = ONLY_FILES.get((folder, target))
    if only and name not in only:
        return f"{folder} may include only {', '.join(sorted(only))} of {target}"
    return None


def check_tree(root: pathlib.Path) -> tuple[list[str], int]:
    problems = []
    files = 0
    for path in sorted(root.rglob("*")):
        if path.suffix not in SOURCE_SUFFIXES or not path.is_file():
            continue
        relative = path.relative_to(root).as_posix()
        if relative.startswith(("build/", "out/", ".")):
            continue
        folder = folder_of(relative)
        if folder is None:
            if relative.startswith("tests/"):
                continue
            problems.append(f"{relative}: belongs to no folder of the design")
            continue
        files += 1
        for number, style, name in includes(path.read_text(errors="replace")):
            problem = check_include(relative, folder, style, name)
            if problem:
                problems.append(f"{relative}:{number}: {problem}")
    return problems, files


def cycles() -> list[str]:
    """Folders of the table that can reach themselves."""
    found = []
    for start in ALLOWED:
        seen, todo = set(), list(ALLOWED[start])
        while todo:
            folder = todo.pop()
            if folder in seen:
                continue
            seen.add(folder)
            todo += ALLOWED.get(folder, [])
        if start in seen:
            found.append(start)
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    problems, files = check_tree(root)
    problems += [f"the table of allowed edges has a cycle through {name}" for name in cycles()]
    if files == 0:
        problems.append(f"no source file found under {root}")
    print("\n".join(problems) if problems else f"{files} files keep to the allowed edges")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
