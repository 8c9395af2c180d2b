# SPDX-License-Identifier: Apache-2.0
"""Checks of one profile with PC sampling, for every workload alike."""
import device_code as code

RESOLVED_TARGET = 0.99
DISPLACED_TARGET = 0.01


def pc_summaries(summary):
    """The object pc_sampling of each target that has one."""
    return [t["pc_sampling"] for t in (summary or {}).get("targets", []) if "pc_sampling" in t]


def shim_count(summary, name):
    """Sum over the targets of what their shims counted."""
    return sum(pc["shim"].get(name, 0) for pc in pc_summaries(summary))


def show_state(summary):
    return ", ".join(f"{pc['state']}" + (f" ({pc['reason']}: {pc.get('text', '')})" if pc["reason"] != "none" else "")
                     + f", period 2^{pc['period_log2_cycles']}" for pc in pc_summaries(summary)) or "no pc_sampling in it"


def check_conserved(bench, name, profile, summary):
    """Spreading over instructions loses and invents nothing: GPU time and PC samples."""
    if profile is None or summary is None:
        return
    time = summary["total"]["gpu_time_ns"]
    want = time["received"] - time["evicted"] - time["pending"]
    got = profile.total("gpu_time")
    bench.report.require(f"{name}: gpu_time conserved", got == want, f"{got} of {want} ns", "to the nanosecond")
    counted, shown = shim_count(summary, "samples"), profile.total(code.PC)
    bench.report.require(f"{name}: PC samples in the profile", counted > 0 and shown == counted,
                         f"{shown} of {counted}; {show_state(summary)}", "all that the shim counted")


def check_lines(bench, name, samples, sources):
    """No line that cannot be right, and hardly one outside of its function."""
    impossible, displaced = code.wrong_lines(samples, sources)
    total = sum(s.values[code.PC] for s in samples)
    part = sum(displaced.values()) / total if total else 0.0
    found = [f"{text} ({count} samples)" for text, count in (impossible + displaced).most_common(3)]
    bench.report.require(f"{name}: lines lie in their files and functions",
                         bool(samples) and not impossible and part <= DISPLACED_TARGET,
                         f"{len(samples)} places, {sum(impossible.values())} samples on impossible lines, "
                         f"{part * 100:.2f} % outside of their functions" + (": " if found else "") + "; ".join(found)
                         if samples else "no PC samples", "all; outside of the function <= 1 %")


def check_resolved(bench, name, samples, target=RESOLVED_TARGET):
    """Share of the PC samples in user code that have a source line, or None."""
    user = [s for s in samples if not code.of_toolkit(s)]
    counts, helpers = code.by_label(user, "gpu_src_status"), sum(s.values[code.PC] for s in samples if code.of_toolkit(s))
    part = code.share(counts, code.RESOLVED)
    text = code.show_counts(counts) + (f"; besides {helpers} in the toolkit's helper functions" if helpers else "")
    bench.report.require(f"{name}: PC samples with a source line", bool(user) and part >= target, text,
                         f">= {target * 100:.0f} %")
    return part if user else None


def check_keys(bench, name, summary):
    """Every image whose key a PC record had was read, and is what the key says: gpu-profiled hashes it again."""
    cubins = ((summary or {}).get("total", {}).get("pc_sampling") or {}).get("cubins", {})
    failed = {reason: count for reason, count in cubins.get("failed", {}).items() if count}
    sampled, read = cubins.get("sampled", 0), cubins.get("read", 0)
    bench.report.require(f"{name}: images that have the hash which their PC records have", 0 < sampled == read and not failed,
                         f"{read} of {sampled}" + (f", {failed}" if failed else ""), "all")


def check_attribution(bench, name, samples, tier):
    """Serialized: by its launch's correlation. Continuous: never exact, never without a call path."""
    counts = code.by_label(samples, "gpu_pc_attrib")
    if tier == "serialized":
        good, target = code.share(counts, "exact") >= RESOLVED_TARGET, ">= 99 % with correlation, all exact"
        # What has a correlation and is not exact would be a wrong join.
        good = good and not counts["graph-refused"]
    else:
        good, target = not counts["exact"] and not counts[""] and code.share(counts, "unattributed") < 0.01, \
            "by kernel, < 1 % unattributed"
    bench.report.require(f"{name}: attribution of PC samples", bool(samples) and good, code.show_counts(counts), target)


def check_hot_lines(bench, name, samples, source, chains):
    """The marked lines are the hottest of their kernel, and their chain is the source's; all for inspection."""
    table = code.hot_lines(samples)
    text = code.show_hot_lines(table)
    print(f"--- {name}: hot lines\n{text}", flush=True)
    with open(bench.out / "hot_lines.txt", "a", encoding="utf-8") as file:
        file.write(f"{name}\n{text}\n\n")
    for kernel, marks in code.marked_lines(source).items():
        lines = table.get(kernel, [])
        part = code.share_on_marks(lines, marks)
        bench.report.require(f"{name}: {kernel} is hottest where it loops", part >= 0.5,
                             f"{part * 100:.1f} % of its samples on lines {', '.join(map(str, sorted(marks)))}", ">= 50 %")
        chain = [c.split(":")[0] for c in lines[0].chains.most_common(1)[0][0].split(" < ")] if lines else []
        bench.report.require(f"{name}: {kernel}'s inline chain", chain == chains[kernel], " < ".join(chain) or "none",
                             " < ".join(chains[kernel]))


def check_as_good(bench, name, late, start):
    """Late attach resolves as well as attach from the start."""
    if late is None or start is None:
        bench.report.add(f"{name}: late attach against attach from the start", "one of them is missing", "", "not run")
        return
    bench.report.require(f"{name}: late attach resolves as well as from the start", late >= start - 0.005,
                         f"{late * 100:.2f} % and {start * 100:.2f} %", "not 0.5 points less")
