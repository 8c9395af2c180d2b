#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The guard is the only way into CUPTI: one guarded call compiles, each unguarded one does not.

Also: every function that the present CUPTI headers declare is on vendor.h's list of poisoned names.
"""
import argparse
import pathlib
import re
import subprocess
import sys

PROLOGUE = '#include "shim/cupti/guard.h"\nusing namespace gpuprof::cupti;\n'

COMPILES = {
    "a guarded call": "void f() { const Guard guard = Guard::lock(); (void)guard.flush_all(false); }",
    "a guarded try": "void f() { const Guard g = Guard::try_lock();"
                     " if (g.held()) (void)g.activity_enable(CUPTI_ACTIVITY_KIND_MEMCPY); }",
    "guarded PC sampling": "void f(CUcontext c) { const Guard g = Guard::try_lock();"
                           " if (g.held()) (void)g.pc_stop(c); }",
}

# What does not compile, and the text that the compiler must give as its reason.
FAILS = {
    "a direct call": ("void f() { (void)cuptiActivityFlushAll(0); }", "poisoned"),
    "a direct call of a PC-sampling function":
        ("void f() { (void)cuptiPCSamplingStop(nullptr); }", "poisoned"),
    "PC sampling without a guard": ("void f(CUcontext c) { (void)Guard::pc_enable(c); }",
                                    "without object"),
    "PC sampling through the table":
        ("void f() { (void)gpuprof::cupti::table.cuptiPCSamplingGetData; }", "poisoned"),
    "the address of a function": ("auto* p = &cuptiSubscribe;", "poisoned"),
    "cuptiFinalize": ("void f() { (void)cuptiFinalize(); }", "poisoned"),
    "the table": ("void f() { (void)table.cuptiActivityFlushAll(0); }", "poisoned"),
    "the table by another name": ("void f() { (void)gpuprof::cupti::table; }", "table"),
    "a call without an object": ("void f() { (void)Guard::flush_all(false); }", "without object"),
    "a guard that nobody took": ("void f() { const Guard guard(true); }", "private"),
    "a default guard": ("void f() { const Guard guard; }", "no matching function"),
    "a copied guard": ("void f() { const Guard a = Guard::lock(); const Guard b = a; }", "deleted"),
    "a discarded guard": ("void f() { Guard::lock(); }", "nodiscard"),
    "walking a buffer outside its callback":
        ("void f(uint8_t* p) { CompletedBuffer buffer(nullptr, 0, p, 0); (void)buffer.next(); }",
         "private"),
}


def compile_source(arguments, source):
    command = [arguments.compiler, "-std=c++20", "-fsyntax-only", "-Werror=unused-result",
               f"-I{arguments.source_dir}", "-x", "c++", "-"]
    for directory in arguments.include.split(";"):
        command[1:1] = ["-isystem", directory]
    return subprocess.run(command, input=PROLOGUE + source + "\n", text=True,
                          capture_output=True, check=False)


def check_sources(arguments):
    errors = []
    for name, source in COMPILES.items():
        result = compile_source(arguments, source)
        if result.returncode != 0:
            errors.append(f"{name} must compile:\n{result.stderr}")
    for name, (source, reason) in FAILS.items():
        result = compile_source(arguments, source)
        if result.returncode == 0:
            errors.append(f"{name} must not compile: {source}")
        elif reason not in result.stderr:
            errors.append(f"{name} fails for another reason than '{reason}':\n{result.stderr}")
    return errors


def check_names(arguments):
    vendor = pathlib.Path(arguments.source_dir, "shim/cupti/vendor.h").read_text()
    poisoned = set(re.findall(r"\bcupti[A-Z]\w*", vendor))
    declared = set()
    for directory in arguments.include.split(";"):
        for header in pathlib.Path(directory).glob("cupti*.h"):
            declared |= set(re.findall(r"CUPTIAPI\s+(cupti[A-Z]\w*)\s*\(",
                                       header.read_text(errors="replace")))
    if len(declared) < 50:
        return [f"only {len(declared)} functions found in the CUPTI headers: {arguments.include}"]
    missing = sorted(declared - poisoned)
    return [f"not poisoned in shim/cupti/vendor.h: {' '.join(missing)}"] if missing else []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--source-dir", required=True)
    parser.add_argument("--include", required=True, help="semicolon-separated")
    arguments = parser.parse_args()
    errors = check_sources(arguments) + check_names(arguments)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(COMPILES)} compile, {len(FAILS)} do not, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
