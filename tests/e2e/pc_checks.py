# SPDX-License-Identifier: Apache-2.0
"""What the profile of a session of tests/fake_cuda must say about PC samples: by the fake's ground truth,
and by what NVIDIA's own tools said about the fixtures (tests/data/cubin/*.lines), not by our reader."""

import collections
import html
import os
import pathlib
import re

import pprof_raw
from bench import check, check_identity, equal

CUBINS = pathlib.Path(__file__).resolve().parent.parent / "data/cubin"

# The cubin of each kernel of the sessions; None: what it was loaded under is not a key of ours.
CUBIN_OF = {
    "chain": "inline_chain.sm_90",
    "_Z8scale_upPff": "equal_offsets.sm_80",
    "_Z10scale_twinPff": "equal_offsets.sm_80",
    "_Z10polynomialPffi": "equal_offsets.sm_80",
    "softmax": "triton_softmax.sm_90",
    "opaque": "opaque.sm_90",
    "jitted": None,
}


# Functions inside a kernel's section: (from, to, whether the tools' rows there are its own, where it is called from),
# by the symbol table and the one call in .calls. ptxas' own functions have no rows, and get the last ones before them.
INSIDE = {
    "chain": ((0x1f10, 0x2780, True, 0x1ea0), (0x2780, 0x2e80, False, 0x2750)),
}


def read_lines(path):
    """{function: [(from, to, ((file, line), ...) innermost first, or ())]} of a .lines file, as in tests/data/cubin."""
    files, functions, rows = {}, {}, None
    for text in path.read_text().splitlines():
        words = text.split(" | ")[0].split()
        if words[0] == "file":
            files[words[1]] = os.path.basename(words[2])
        elif words[0] == "function":
            rows = functions[words[1]] = []
        else:
            start, end = (int(x, 16) for x in words[0].split("-"))
            chain = [w.split(":") for w in words[1:] if ":" in w]
            rows.append((start, end, tuple((files[f], int(line)) for f, line in chain)))
    return functions


class Oracle:
    """Status and lines that a PC must have in the profile."""

    def __init__(self):
        self.tables = {name: read_lines(CUBINS / f"{name}.lines") for name in set(CUBIN_OF.values()) if name}

    def __call__(self, kernel, pc):
        cubin = CUBIN_OF[kernel]
        if cubin is None:
            return "no-module", ()
        table = self.tables[cubin]
        if not any(lines for rows in table.values() for _, _, lines in rows):
            return "no-lineinfo", ()
        lines = self.lines(table[kernel], kernel, pc)
        return ("resolved", lines) if lines else ("unmapped", ())

    def lines(self, rows, kernel, pc):
        """Those of the function at the PC, then of the calls that lead to it."""
        inside = [entry for entry in INSIDE.get(kernel, ()) if entry[0] <= pc < entry[1]]
        own = next((lines for start, end, lines in rows if start <= pc < end), ())
        if not inside:
            return own
        _, _, has_rows, call = inside[0]
        return (own if has_rows else ()) + self.lines(rows, kernel, call)

    def innermost(self, kernel, pc):
        """() where the function at the PC has no lines, whoever called it."""
        _, lines = self(kernel, pc)
        no_rows = any(start <= pc < end and not has_rows for start, end, has_rows, _ in INSIDE.get(kernel, ()))
        return () if no_rows else lines[:1]


def split(sample):
    """(functions of the CPU, kernel's system name, device frames below it, innermost first)."""
    for at, frame in enumerate(sample.frames):
        if frame.system_name in CUBIN_OF:
            return [f.function for f in sample.frames[:at]], frame.system_name, sample.frames[:at - 1 if at else 0:-1]
    return [f.function for f in sample.frames], None, []


def found_lines(sample):
    """((file, line), ...) of the device frames that have a line, innermost first, the kernel's last."""
    _, kernel, frames = split(sample)
    check(kernel is not None, f"a PC sample without a kernel's frame: {sample.functions}")
    at = [f.system_name for f in sample.frames].index(kernel)
    return tuple((os.path.basename(f.file), f.line) for f in reversed(sample.frames[at:]) if f.line)


def present(counter):
    return {key: value for key, value in counter.items() if value}


def pc_samples(profile):
    return [s for s in profile.samples if s.values["gpu_pc_samples"]]


def check_samples(profile, truth, oracle):
    """Every PC sample of the profile, by (kernel, status, line chain, stall), equals the truth."""
    want, want_stalled = collections.Counter(), collections.Counter()
    for row in truth["pc"]["rows"]:
        status, lines = oracle(row["kernel"], row["pc"])
        key = row["kernel"], status, lines, row["stall"]
        want[key] += row["delivered"]
        want_stalled[key] += row["not_issued"]
    got, got_stalled = collections.Counter(), collections.Counter()
    for sample in pc_samples(profile):
        kernel = split(sample)[1]
        status = sample.labels.get("gpu_src_status", "")
        lines = found_lines(sample)
        key = kernel, status, lines, sample.labels.get("gpu_stall", "")
        got[key] += sample.values["gpu_pc_samples"]
        got_stalled[key] += sample.values["gpu_stall_samples"]
    equal(present(got), present(want), "PC samples by kernel, status, lines and stall")
    equal(present(got_stalled), present(want_stalled), "stall samples by kernel, status, lines and stall")
    equal(sum(got.values()), truth["pc"]["pc_delivered"], "PC samples in all")
    return {status for _, status, _, _ in present(got)}


def check_sources(profile):
    """Each device line exists in the fixture's source and holds code."""
    seen = 0
    for sample in pc_samples(profile):
        for file, line in found_lines(sample):
            source = CUBINS / file
            if not source.exists():
                equal(file, "standard.py", "a file that is no fixture")  # Triton's own
                continue
            text = source.read_text().splitlines()
            check(0 < line <= len(text), f"{file}:{line} does not exist")
            check(re.search(r"[a-z]", text[line - 1]), f"{file}:{line} holds no code: {text[line - 1]!r}")
            seen += 1
    check(seen > 0, "no device line at all")


def check_stack(profile, kernel, path):
    """A sample with a CPU stack from main to the launch and a device line."""
    for sample in pc_samples(profile):
        cpu, name, _ = split(sample)
        if name == kernel and [f for f in cpu if f == "main" or f.startswith("path_")] == path and found_lines(sample):
            equal(cpu[0], "_start", "the outermost frame")
            return
    raise AssertionError(f"no sample of {kernel} below {path} with a device line")


def attribs(profile):
    """PC samples by (kernel, attribution)."""
    got = collections.Counter()
    for sample in pc_samples(profile):
        got[split(sample)[1], sample.labels["gpu_pc_attrib"]] += sample.values["gpu_pc_samples"]
    return got


def delivered(truth, **where):
    return sum(row["delivered"] for row in truth["pc"]["rows"] if all(row[k] == v for k, v in where.items()))


def check_time(profile, truth):
    """gpu_time is spread over PCs and executions are not multiplied by it; records of device 1 are lost."""
    rows = [row for row in truth["rows"] if row["stack"][0] == "main"]
    want_ns, want = collections.Counter(), collections.Counter()
    for row in rows:
        want_ns[row["kernel"]] += row["recorded_gpu_ns"]
        want[row["kernel"]] += row["recorded_executions"]
    name = lambda s: split(s)[1]
    equal(present(profile.by(name)), present(want_ns), "gpu_time by kernel")
    equal(present(profile.by(name, "gpu_executions")), present(want), "executions by kernel")


def check_attribution(profile, truth):
    got = attribs(profile)
    want = collections.Counter()
    for kernel in CUBIN_OF:
        first, second = (delivered(truth, kernel=kernel, device=d) for d in (0, 1))
        want[kernel, "kernel-ambiguous" if kernel == "chain" else "kernel"] += first
        want[kernel, "kernel-multidevice" if kernel == "_Z8scale_upPff" else "unattributed"] += second
    equal(present(got), present(want), "PC samples by attribution")


def check_summary(summary, truth, tier, profile):
    """Every sample is in one bucket of each kind, every window is accounted for, each identity holds, and the profile
    says the same."""
    check_identity(summary["total"])
    target = summary["targets"][0]["pc_sampling"]
    equal(target["asked"], tier, "the tier that was asked for")
    equal(target["shim"]["samples"], truth["pc"]["pc_delivered"], "samples by the shim's count")
    total = summary["total"]["pc_sampling"]
    equal(total["identity_holds"], True, f"identities of PC samples: {total}")
    equal(total["records"]["produced"], total["records"]["received"], "records received of those produced")
    counts = total["counts"]
    equal(counts["samples"], truth["pc"]["pc_delivered"], "PC samples")
    equal(counts["not_issued"], sum(row["not_issued"] for row in truth["pc"]["rows"]), "stall samples")
    equal([counts[key] for key in ("unnamed", "refused", "pending")], [0, 0, 0], "samples of no known kind")
    for key, label in (("attribution", "gpu_pc_attrib"), ("source", "gpu_src_status")):
        by_label = profile.by(lambda s: s.labels.get(label, ""), "gpu_pc_samples")
        equal(present(total[key]), present(by_label), f"samples by {label} in summary and profile")
    windows = total["windows"]
    equal(windows[f"opened_{tier}"], target["shim"]["windows"], "windows opened")
    equal(windows["closed"] + windows["open"], windows[f"opened_{tier}"], "windows closed or open")
    equal((windows["opens_lost"], windows["closes_lost"], windows["refused"]), (0, 0, 0), "windows lost")


def listed(path, functions, *options):
    """{(function, line): (flat, cum)} as `go tool pprof -list` prints them."""
    text = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-trim_path=/tmp/kernels", f"-source_path={CUBINS}",
                           *options, f"-list=^({'|'.join(functions)})$", path=path)
    got, function = {}, None
    for row in text.splitlines():
        routine = re.match(r"ROUTINE =+ (\S+) in", row)
        if routine:
            function = routine.group(1)
        found = re.match(r"\s+(\d+|\.)\s+(\d+|\.)\s+(\d+):", row)
        if found and function and (found.group(1), found.group(2)) != (".", "."):
            flat, cum = (0 if x == "." else int(x) for x in found.group(1, 2))
            got[function, int(found.group(3))] = flat, cum
    return got


def check_views(path, truth, oracle):
    """-list, -lines, -peek, -weblist and -tagroot of pprof say what the truth says."""
    flat, cum, stalls = collections.Counter(), collections.Counter(), collections.Counter()
    for row in truth["pc"]["rows"]:
        stalls[row["stall"]] += row["delivered"]
        _, lines = oracle(row["kernel"], row["pc"])
        for place in set(lines):
            cum[place] += row["delivered"]
        flat[oracle.innermost(row["kernel"], row["pc"])] += row["delivered"]
    want = {}
    for function, file, numbers in (("inner", "inline_chain.cu", [7]), ("middle", "inline_chain.cu", [13]),
                                    ("outer", "inline_chain.cu", [18]), ("chain", "inline_chain.cu", [27, 28, 29]),
                                    ("apart", "inline_chain.cu", [22, 23]),
                                    ("scale_up", "equal_offsets.cu", [8, 9, 10]),
                                    ("scale_twin", "equal_offsets.cu", [15, 17, 19])):
        for line in numbers:
            want[function, line] = flat[((file, line),)], cum[file, line]
    got = listed(path, {function for function, _ in want})
    equal(got, want, "pprof -list: (flat, cum) by function and line")

    lines = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-lines", "-top", "-nodecount=500", path=path)
    row = next(r for r in lines.splitlines() if re.search(r"inner .*inline_chain\.cu:7\b", r))
    equal(int(row.split()[0]), flat[(("inline_chain.cu", 7),)], "pprof -lines: inner's line 7")

    peek = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-peek=^middle$", path=path)
    check("outer" in peek and "inner" in peek, f"pprof -peek of middle lacks its caller or callee: {peek}")

    # What a division without lines costs is its line's.
    slow = "__cuda_sm3x_div_rn_noftz_f32_slowpath"
    peek = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-lines", f"-peek=^{slow}", path=path)
    check(re.search(r"apart .*inline_chain\.cu:23( \(inline\))?\n.*" + slow, peek), f"pprof -peek: {slow} is not at its call: {peek}")

    roots = pprof_raw.pprof("-sample_index=gpu_pc_samples", "-tagroot=gpu_stall", "-top", "-nodecount=500", path=path)
    for stall, samples in present(stalls).items():
        row = next((r.split() for r in roots.splitlines() if r.split()[-1:] == [stall]), None)
        check(row, f"pprof -tagroot: no root {stall}")
        equal(int(row[3]), samples, f"pprof -tagroot: {stall}")

    page = path.parent / "web.html"
    pprof_raw.pprof("-sample_index=gpu_pc_samples", "-trim_path=/tmp/kernels", f"-source_path={CUBINS}", "-weblist=^inner$",
                    f"-output={page}", path=path)
    text = html.unescape(re.sub(r"<[^>]+>", " ", page.read_text()))
    want = rf"\s7\s+{flat[(('inline_chain.cu', 7),)]}\s+{cum['inline_chain.cu', 7]}\s+x = x \* 1\.0001f"
    check(re.search(want, text), f"pprof -weblist: no line like {want}")
    served = pprof_raw.web_page("source?f=^inner$&si=gpu_pc_samples", "-trim_path=/tmp/kernels", f"-source_path={CUBINS}", path=path)
    text = html.unescape(re.sub(r"<[^>]+>", " ", served))
    check(re.search(want, text), f"the web UI's source view: no line like {want}: {text[-3000:]}")
