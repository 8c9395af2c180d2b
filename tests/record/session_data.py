# SPDX-License-Identifier: Apache-2.0
"""Recorded sessions as the repository keeps them: without the code of vendors' libraries, and small.

session_data.py pack RAW OUT [--own MODULE=FOLDER] [--pcs N]     from what the recorder wrote
session_data.py unpack FOLDER OUT                                to a session that can be played
session_data.py lines CUBIN                                      its lines as LLVM reads them, for the tests

Modules are named as in the session. pack copies those that --own names, where FOLDER, the folder of the sources in
their line tables, becomes /build/src with the same number of characters, and describes the others in modules.txt;
unpack makes skeletons of these (skeleton.py). --pcs keeps the N heaviest (pc, stall) of each kernel; the others count
at offset 0, by stall, so that every sum stays. lines prints what tests/data/cubin has of its cubins, for a module of
one function without inlined calls; it needs llvm-dwarfdump.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys

import session_file
import skeleton

FOLDER = "/build/src"
DESCRIPTION = "modules.txt"
TITLE = "# Modules of vendors' libraries: file, OS ABI, ABI, version, flags, then size and st_other of each kernel.\n"


def cut(weights, most):
    """{(pc, stall): Weight} with the `most` heaviest in place and the others at offset 0."""
    heaviest = sorted(weights, key=lambda key: (-weights[key].all, key))[:most]
    kept = {key: weights[key] for key in heaviest}
    for key in set(weights) - set(kept):
        kept.setdefault((0, key[1]), session_file.Weight()).add(weights[key])
    return kept


def without_folder(image, folder):
    """`image` with another folder of its sources."""
    old = folder.encode()
    if len(old) != len(FOLDER) or old not in image:
        raise ValueError(f"no folder of {len(FOLDER)} characters in the module: {folder}")
    return image.replace(old, FOLDER.encode())


def describe(file, image, kernels):
    """A line of modules.txt. `kernels`: id -> function."""
    abi = skeleton.abi_of(image)
    found = {function.name: function for function in skeleton.functions(image)}
    words = [f"{kernel}={found[name].size:#x}/{found[name].other:#x}" for kernel, name in kernels.items()]
    return " ".join([file, f"{abi.os_abi:#x}", str(abi.abi), str(abi.version), f"{abi.flags:#x}", *words])


def build(line, functions):
    """(file, bytes) of a line of modules.txt. `functions`: kernel's id -> function."""
    file, *abi = line.split()[:5]
    sizes = {}
    for word in line.split()[5:]:
        kernel, value = word.split("=")
        size, other = (int(number, 0) for number in value.split("/"))
        sizes[functions[kernel]] = skeleton.Function(functions[kernel], size, other)
    return file, skeleton.write(skeleton.Abi(*(int(number, 0) for number in abi)), list(sizes.values()))


def pack(raw, out, own, most):
    session = session_file.Session((raw / "session").read_text())
    kernels = {}
    for words in session.rows("kernel"):
        kernels.setdefault(session_file.option(words, "module"), {})[words[1]] = session_file.option(words, "function")
    out.mkdir(parents=True)
    described = []
    for words in session.rows("module"):
        file = session_file.option(words, "file")
        image = (raw / file).read_bytes()
        if words[1] in own:
            (out / file).write_bytes(without_folder(image, own[words[1]]))
        else:
            described.append(describe(file, image, kernels[words[1]]))
    if described:
        (out / DESCRIPTION).write_text(TITLE + "\n".join(described) + "\n")
    lines = session.lines
    if most:
        lines = [f"# Of each kernel the {most} heaviest (pc, stall); the others count at offset 0."]
        for line in session.lines:
            if line.startswith("pcs "):
                kernel, rate, weights = session_file.parse_pcs(line.split())
                line = session_file.pcs_line(kernel, rate, cut(weights, most))
            lines.append(line)
    (out / "session").write_text("\n".join(lines) + "\n")


def unpack(folder, out):
    out.mkdir(parents=True, exist_ok=True)
    for file in [folder / "session", *folder.glob("*.cubin")]:
        shutil.copy(file, out)
    if not (folder / DESCRIPTION).exists():
        return
    functions = session_file.Session((folder / "session").read_text()).functions()
    for line in (folder / DESCRIPTION).read_text().splitlines():
        if line.startswith("#"):
            continue
        file, image = build(line, functions)
        (out / file).write_bytes(image)


def lines(cubin):
    """`file`, `function` and `FROM-TO FILE:LINE` lines of a module of one function."""
    text = subprocess.run(["llvm-dwarfdump", "--debug-line", str(cubin)], capture_output=True, text=True, check=True).stdout
    folder = re.search(r'include_directories\[ *1\] = "(.*)"', text).group(1)
    name = re.search(r'name: "(.*)"', text).group(1)
    function, = skeleton.functions(cubin.read_bytes())
    rows = [(int(at, 16), int(line), flags) for at, line, flags in re.findall(r"^0x(\w{16}) +(\d+) .*is_stmt(.*)$", text, re.M)]
    out = [f"file 1 {folder}/{name}", f"function {function.name}"]
    for (at, line, end), (following, _, _) in zip(rows, rows[1:]):
        if "end_sequence" in end:
            raise ValueError("more than one sequence of lines")
        out.append(f"{at:x}-{following:x} 1:{line}")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packs = commands.add_parser("pack")
    packs.add_argument("--own", action="append", default=[], metavar="MODULE=FOLDER")
    packs.add_argument("--pcs", type=int, default=0, metavar="N")
    for command in (packs, commands.add_parser("unpack")):
        command.add_argument("source", type=pathlib.Path)
        command.add_argument("out", type=pathlib.Path)
    commands.add_parser("lines").add_argument("source", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "pack":
        pack(options.source, options.out, dict(word.split("=", 1) for word in options.own), options.pcs)
    elif options.command == "unpack":
        unpack(options.source, options.out)
    else:
        sys.stdout.write(lines(options.source))


if __name__ == "__main__":
    sys.exit(main())
