#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the built shim brings into somebody else's process.

usage: shim_links.py LIBRARY

It must hold no code of the daemon: an edge that no #include shows (a wrong target_link_libraries)
would appear here. What it needs and exports is tools/elfgate's to judge."""
import re
import subprocess
import sys

DAEMON = re.compile(r"\bgpuprof::(target|probe|unwind|symbolize|cubin|join|pprof|serve|cli)::|\b(bpf_object|dwfl|gelf|elf)_\w+|google::protobuf")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    library = sys.argv[1]
    symbols = output_of("nm", "-C", library).splitlines()
    problems = [f"holds {line.split(maxsplit=2)[-1]}" for line in symbols if DAEMON.search(line)]
    if not symbols:
        problems.append("has no symbol table, so nothing could be checked")
    print("\n".join(problems) if problems else f"{len(symbols)} symbols, none foreign")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
