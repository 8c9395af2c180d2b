# SPDX-License-Identifier: Apache-2.0
"""Loads the shim in root file systems of other systems, without CUDA, and prints a table.

usage: load_proof.py --shim SHIM --host HOST --fixtures FOLDER [--emulator QEMU] ROOT...
(root; HOST: tests/load/host.c, built for an old glibc; FOLDER: what scripts/load-fixtures made)

In each root, and in each odd state of a process: the shim loads (RTLD_NOW), InitializeInjection says in one line
why it declines, and the process goes on. What a step that fails printed is shown. Exit 1 if any failed."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# What a user-mode emulator cannot do is left out there: it makes system calls and temporary files of its own, and
# the kernel starts no program of another machine.
NATIVE_ONLY = ("--deny-memfd", "--no-memlock", "--no-files", "--preload")
# Not a word of the line's fixed text, which names libcupti whatever was done.
TRIED = "tried libcupti.so.13, libcupti.so.12, libcupti.so.11.8"
WITH_PROC = ("with /proc", (), TRIED)
READ_ONLY = ("read-only root", (), TRIED)
NO_EXEC = ("vm.memfd_noexec 2", (), TRIED)
NO_EXEC_FILE = "/proc/sys/vm/memfd_noexec"
PASSES = "loads, declines, goes on"
CANNOT_BE = "cannot be: "


def cases():
    """(name, options of the host, what its line on standard error has in it) of cases.txt."""
    rows = []
    for line in (pathlib.Path(__file__).parent / "cases.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, options, word = line.split("|")
            rows.append((name, tuple(options.split()), word))
    return rows


def command_of(folder, shim, host, options):
    """A case's command where shim, host and fixtures lie in `folder`."""
    options = [option.replace("@/", f"{folder}/fixtures/") for option in options]
    program = f"{folder}/{pathlib.Path(host).name}"
    if options[:1] == ["--as"]:
        program, options = options[1], options[2:]
    return [program, f"{folder}/{pathlib.Path(shim).name}", *options]


def copy_all(folder, shim, host, fixtures):
    """For any user to read."""
    os.chmod(folder, 0o755)
    for file in (shim, host):
        shutil.copy2(file, folder)
    shutil.copytree(fixtures, pathlib.Path(folder) / "fixtures")


def glibc(root):
    """Version of the root's C library, by its own word."""
    for path in ("lib/x86_64-linux-gnu/libc.so.6", "lib/aarch64-linux-gnu/libc.so.6", "lib64/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"):
        file = root / path
        if file.exists():
            found = re.search(rb"GNU C Library [^\n]* version ([0-9.]+)", file.read_bytes())
            return found.group(1).decode().rstrip(".") if found else "?"
    return "?"


def run_in(root, command, script):
    """In a mount and process namespace of its own: nothing is left behind. (exit, out, err)."""
    inside = f"{script} exec chroot {root} \"$@\""
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-ec", inside, "sh",
                           *command], capture_output=True, text=True, timeout=60, check=False,
                          env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
    return done.returncode, done.stdout, done.stderr


def judge(done, wanted):
    """Empty, or what is wrong."""
    code, out, err = done
    lines = [line for line in err.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("gpu-profiled[")]
    if code != 0 or "went on after" not in out:
        return f"exit {code}: {err.strip() or out.strip()}"
    if len(lines) != 1 or len(ours) != 1:
        return f"{len(lines)} lines instead of one: {err.strip()}"
    if wanted not in ours[0] or "unprofiled" not in ours[0]:
        return f"says: {ours[0]}"
    return ""


def native(root, shim, host, fixtures):
    """(case, what is wrong, "" or why it cannot be) of a root of this machine."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gpuprof-load-", dir=root))
    try:
        copy_all(folder, shim, host, fixtures)
        inside = pathlib.Path("/") / folder.name
        states = [(case, "") for case in cases()]
        states.append((WITH_PROC, f"mount -t proc proc {root}/proc;"))
        states.append((READ_ONLY, f"mount --bind {root} {root}; mount -o remount,bind,ro {root};"))
        rows = []
        if os.path.exists(NO_EXEC_FILE):
            states.append((NO_EXEC, f"mount -t proc proc /proc; echo 2 >{NO_EXEC_FILE};"))
        else:
            rows.append((NO_EXEC[0], f"{CANNOT_BE}this kernel has no vm.memfd_noexec (Linux 6.3 has)"))
        return [(case, judge(run_in(root, command_of(inside, shim, host, options), script), wanted))
                for (case, options, wanted), script in states] + rows
    finally:
        shutil.rmtree(folder)


def emulated(root, shim, host, fixtures, emulator):
    """The same of a root of another machine, whose libraries are used in place; nothing of it is entered."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-load-") as folder:
        copy_all(folder, shim, host, fixtures)
        rows = []
        for case, options, wanted in cases():
            if not set(options) & set(NATIVE_ONLY):
                command = [emulator, "-L", str(root), *command_of(folder, shim, host, options)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                rows.append((f"{case}, emulated", judge((done.returncode, done.stdout, done.stderr), wanted)))
        return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shim", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--emulator", help="a user-mode emulator of the shim's machine, qemu-aarch64-static")
    parser.add_argument("roots", nargs="+")
    options = parser.parse_args()
    rows, failed, left_out = [], 0, 0
    for name in options.roots:
        root = pathlib.Path(name).resolve()
        files = (options.shim, options.host, options.fixtures)
        found = emulated(root, *files, options.emulator) if options.emulator else native(root, *files)
        for case, wrong in found:
            cannot_be = wrong.startswith(CANNOT_BE)
            rows.append((root.name, glibc(root), case, PASSES if not wrong else wrong if cannot_be else "FAILED: " + wrong))
            failed += bool(wrong) and not cannot_be
            left_out += cannot_be
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        print(f"{row[0]:{widths[0]}}  glibc {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]}")
    print(f"{len(rows) - left_out} loads, {failed} failed" + (f", {left_out} cannot be here" if left_out else ""))
    return 1 if failed or len(rows) == left_out else 0


if __name__ == "__main__":
    sys.exit(main())
