#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shape of libgpu-profiled-cupti.so: one export, no libstdc++, no static TLS, kept once loaded."""
import re
import subprocess
import sys

NEEDED = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def main():
    library = sys.argv[1]
    errors = []
    dynamic = run("readelf", "-dW", library)
    if "Library soname: [libgpu-profiled-cupti.so]" not in dynamic:
        errors.append("the SONAME is not libgpu-profiled-cupti.so")
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    if needed - NEEDED:
        errors.append(f"needs {sorted(needed - NEEDED)}")
    if "STATIC_TLS" in dynamic:
        errors.append("uses static TLS: cannot be loaded where the surplus is spent")
    if "NODELETE" not in dynamic:
        errors.append("can be unloaded under CUPTI's threads")
    if "TLSDESC" in run("readelf", "-rW", library):
        errors.append("uses TLS descriptors")
    symbols = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    exports = [fields[-1] for fields in symbols]
    if exports != ["InitializeInjection"]:
        errors.append(f"exports {exports}")
    undefined = run("nm", "-D", "--undefined-only", library)
    for forbidden in (r"\babort\b", r"__assert_fail", r"\b_Z", r"__cxa_(?!finalize|atexit)",
                      r"\bcu[A-Z]", r"\bcupti"):
        found = re.findall(rf".*{forbidden}.*", undefined)
        if found:
            errors.append(f"refers to {[name.split()[-1] for name in found]}")
    notes = run("readelf", "-nW", library)
    if len(re.findall(r"Name: (\w+)", notes)) != 10:
        errors.append("not one note for each of the ten probes")
    if "NT_GNU_BUILD_ID" not in notes:
        errors.append("has no build id")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
