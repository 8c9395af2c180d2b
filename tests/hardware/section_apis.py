# SPDX-License-Identifier: Apache-2.0
"""apis: every launch API, copies and fills, cuBLAS, a graph captured before the first arm, Triton."""
import section_w2 as w2

COUNT = 200
LAUNCHERS = {"k_triple": "by_triple", "k_exc": "by_exc", "k_coop": "by_coop", "k_ptds": "by_ptds",
             "k_driver": "by_driver", "k_driver_ex": "by_driver_ex", "k_thread": "by_thread",
             "k_graph": "by_graph", "k_captured_late": "by_captured_late"}
# Every launch gets a stack, so that each kernel's functions are known and not estimated.
EVERY_STACK = ("--stack-rate", "all")


def minus(counts, setup):
    """Listener counts of the work alone: those of the whole program less those of its start."""
    names = {n: c - setup["names"].get(n, 0) for n, c in counts["names"].items()}
    return {**counts, **{k: counts[k] - setup[k] for k in ("memcpys", "peer_memcpys", "memsets")},
            "names": {n: c for n, c in names.items() if c}}


def check_issued(bench, done, counts):
    """The listener itself must have seen what the program says it issued."""
    issued = next((line["kernels"] for line in done.lines() if "kernels" in line), {})
    seen = {}
    for name, count in counts["names"].items():
        seen[w2.truth.short_name(name)] = seen.get(w2.truth.short_name(name), 0) + count
    wrong = [f"{name}: {seen.get(name, 0)} of {count}" for name, count in issued.items() if seen.get(name, 0) != count]
    bench.report.require("apis: listener sees what was issued", bool(issued) and not wrong,
                         "; ".join(wrong) or f"{sum(issued.values())} kernels by {len(issued)} APIs", "all")


def run(bench):
    command = [bench.apis, "--count", COUNT]
    out = bench.path(".listener.json")
    done = bench.run(command, 60, bench.listener_env(out=out, names=True))
    if not bench.report.require("apis: listener", done.ok() and out.exists(), "exit 0" if done.ok() else done.why(),
                                "exit 0"):
        return
    counts = w2.truth.listener_counts(out)
    check_issued(bench, done, counts)
    setup = w2.listen(bench, [bench.apis, "--count", 0])
    profile = w2.run_profiled(bench, "apis run", command, counts, options=EVERY_STACK)
    w2.check_launchers(bench, "apis run", profile, LAUNCHERS)
    if setup is not None:
        gate = bench.gate_directory()
        late = w2.attach_gated(bench, "apis late attach", [*command, "--gate", gate], gate, minus(counts, setup),
                               ("beat",), EVERY_STACK)
        w2.check_launchers(bench, "apis late attach", late, LAUNCHERS)
    triton(bench)


def triton(bench):
    command = bench.python("triton_add.py", "--count", COUNT)
    counts = w2.listen(bench, command, 120)  # also fills Triton's cache
    if counts is None:
        return
    profile = w2.run_profiled(bench, "triton run", command, counts)
    if profile is not None:
        found = sum(c for n, c in w2.truth.executions_by_kernel(profile).items() if "triton_add" in n)
        bench.report.require("triton run: its kernel", found == COUNT + 1, f"{found} of {COUNT + 1}", "all")
