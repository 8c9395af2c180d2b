#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the built shim brings into somebody else's process.

usage: shim_links.py LIBRARY

It must need nothing but the C library, export InitializeInjection alone, and hold no code of the
daemon: an edge that no #include shows (a wrong target_link_libraries) would appear here."""
import re
import subprocess
import sys

ALLOWED_NEEDED = re.compile(r"^(libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|librt\.so\.1|libm\.so\.6|ld-linux[-a-z0-9_]*\.so\.\d)$")
DAEMON = re.compile(r"\bgpuprof::(target|probe|unwind|symbolize|cubin|join|pprof|serve|cli)::|\b(bpf_object|dwfl|gelf|elf)_\w+|google::protobuf")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    library = sys.argv[1]
    problems = []
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", library))
    problems += [f"needs {name}" for name in needed if not ALLOWED_NEEDED.match(name)]
    exported = [line.split()[-1] for line in output_of("nm", "-D", "--defined-only", library).splitlines()]
    exported = [name.split("@")[0] for name in exported if not name.startswith("GPU_PROFILED")]
    if exported != ["InitializeInjection"]:
        problems.append(f"exports {', '.join(exported) or 'nothing'} instead of InitializeInjection alone")
    symbols = output_of("nm", "-C", library).splitlines()
    problems += [f"holds {line.split(maxsplit=2)[-1]}" for line in symbols if DAEMON.search(line)]
    if not symbols:
        problems.append("has no symbol table, so nothing could be checked")
    print("\n".join(problems) if problems else f"needs {', '.join(needed) or 'nothing'}; {len(symbols)} symbols, none foreign")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
