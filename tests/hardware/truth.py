# SPDX-License-Identifier: Apache-2.0
"""Compares a profile with the bare listener's counts, and checks where its stacks end and lead."""
import collections
import json
import os
import re

from device_code import kernel_name, short_name

# Where a thread's stack begins: the program's entry, or what the C library starts a thread with.
ROOTS = re.compile(r"^(_start|main|__libc_start_main.*|__libc_start_call_main|start_thread|clone3?|__clone3?|"
                   r"thread_start)$")


def listener_counts(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def kind_of(sample):
    """kernel, memcpy or memset: by the leaf frame, whose name says it for copies."""
    leaf = sample.frames[0].function
    if leaf.startswith("[memcpy"):
        return "memcpy"
    if leaf.startswith("[memset"):
        return "memset"
    return "kernel"


def executions_by_kind(profile):
    counts = collections.Counter()
    for sample in profile.samples:
        counts[kind_of(sample)] += sample.values["gpu_executions"]
    return dict(counts)


def executions_by_kernel(profile):
    """Executions by the kernel's mangled name (its system name)."""
    counts = collections.Counter()
    for sample in profile.samples:
        if kind_of(sample) == "kernel":
            counts[kernel_name(sample)] += sample.values["gpu_executions"]
    return dict(counts)


def compare_counts(profile, listener, skip=()):
    """(equal, text): executions by kind and, where the listener has them, by kernel name."""
    skipped = {name for name in listener["names"] if any(part in name for part in skip)}
    want_names = {n: c for n, c in listener["names"].items() if n not in skipped}
    got_names = {n: c for n, c in executions_by_kernel(profile).items() if not any(part in n for part in skip)}
    kinds = executions_by_kind(profile)
    want = {"kernel": sum(want_names.values()), "memcpy": listener["memcpys"] + listener["peer_memcpys"],
            "memset": listener["memsets"]}
    got = {"kernel": sum(got_names.values()), "memcpy": kinds.get("memcpy", 0), "memset": kinds.get("memset", 0)}
    wrong = [f"{name}: {got_names.get(name, 0)} of {want_names.get(name, 0)}"
             for name in sorted(set(want_names) | set(got_names)) if got_names.get(name, 0) != want_names.get(name, 0)]
    text = ", ".join(f"{got[kind]} of {want[kind]} {kind}s" for kind in want)
    if wrong:
        text += "; by name: " + "; ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
    return got == want and not wrong, text


def reaches_root(sample):
    """Whether the outermost frame is where a thread begins.

    Stripped C libraries do not name start_thread, so a root in libc or ld.so counts where it is the
    frame that libc's thread start is in: its caller-less frame has no symbol of its own there."""
    if len(sample.frames) < 2:
        return False
    root = sample.frames[-1]
    if ROOTS.match(root.function):
        return True
    library = os.path.basename(root.mapping)
    return library.startswith(("libc.so", "libc-2", "ld-linux", "libpthread"))


def share_at_root(profile):
    total = profile.total("gpu_time")
    return profile.total("gpu_time", reaches_root) / total if total else 0.0


def launchers(profile, functions):
    """kernel short name -> {launching function: share of its executions}; "?" where none is on the stack."""
    table = collections.defaultdict(collections.Counter)
    for sample in profile.samples:
        name = sample.frames[0].function if kind_of(sample) != "kernel" else short_name(kernel_name(sample))
        on_stack = [f for f in functions if any(re.match(rf"^{f}\b", frame.function) for frame in sample.frames[1:])]
        table[name][on_stack[0] if on_stack else "?"] += sample.values["gpu_executions"]
    return {name: {f: c / sum(counts.values()) for f, c in counts.items()} for name, counts in table.items()
            if sum(counts.values())}


def wrong_launchers(profile, expected, unknown=0.0):
    """[text] for each kernel of `expected` (name -> function) with executions under another function; the share
    `unknown` of them may lie under none."""
    shares = launchers(profile, sorted(set(expected.values()), key=len, reverse=True))
    problems = []
    for kernel, function in expected.items():
        if kernel not in shares:
            problems.append(f"{kernel}: not in the profile")
        elif shares[kernel].get(function, 0) + min(shares[kernel].get("?", 0), unknown) < 1:
            found = ", ".join(f"{f} {share:.4f}" for f, share in shares[kernel].items())
            problems.append(f"{kernel}: {found} instead of {function}")
    return problems
