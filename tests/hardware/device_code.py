# SPDX-License-Identifier: Apache-2.0
"""What a profile says about code on the GPU: the device frames of a sample, source status, attribution,
hot lines, and whether a line can be right: it lies in its file, and inside its function."""
import ast
import collections
import functools
import pathlib
import re

# Frames that follow the device's, seen from the leaf.
ABOVE_KERNEL = ("[cuda graph]", "[no stack]", "[unattributed]")
DEVICE_MAPPINGS = ("[cuda]", "[cubin ")
PC = "gpu_pc_samples"
RESOLVED = "resolved"
STATUSES = (RESOLVED, "no-lineinfo", "no-module", "unmapped")


def short_name(mangled):
    """A function's name as our workloads' sources spell it; other names as they are."""
    match = re.match(r"^_Z(\d+)", mangled)
    if not match:
        return mangled
    start = match.end()
    return mangled[start:start + int(match.group(1))]


def device_frames(sample):
    """The frames on the GPU, innermost first, the kernel last: those from the leaf on that lie in a cubin
    or in the object that stands for kernels whose code is not known."""
    frames = []
    for place in sample.locations:
        file = place.mapping.file if place.mapping else ""
        if not file.startswith(DEVICE_MAPPINGS) or place.frames[0].function in ABOVE_KERNEL:
            break
        frames += place.frames
    return frames or sample.frames[:1]


def kernel_frame(sample):
    return device_frames(sample)[-1]


def kernel_name(sample):
    """Mangled."""
    frame = kernel_frame(sample)
    return frame.system_name or frame.function


def pc_samples(profile, keep=lambda sample: True):
    """Samples that carry PC samples."""
    return [s for s in profile.samples if s.values.get(PC, 0) and keep(s)]


def of_kernels(names):
    """Filter: samples of the kernels with these short names."""
    return lambda sample: short_name(kernel_name(sample)) in names


def by_label(samples, label):
    """Label value -> PC samples; "" where the label is missing."""
    counts = collections.Counter()
    for sample in samples:
        counts[str(sample.labels.get(label, ""))] += sample.values[PC]
    return counts


def of_toolkit(sample):
    """In a helper function of the CUDA toolkit's own (division, square root), which has no source."""
    return device_frames(sample)[0].function.startswith("__cuda_sm")


def has_line(frame):
    return bool(frame.file) and frame.line > 0


def share(counts, key):
    total = sum(counts.values())
    return counts[key] / total if total else 0.0


def show_counts(counts):
    total = sum(counts.values())
    return ", ".join(f"{key or '(no label)'} {count} ({count / total * 100:.2f} %)"
                     for key, count in counts.most_common()) or "no PC samples"


def status_by_kernel(samples):
    """Kernel's mangled name -> Counter of gpu_src_status."""
    table = collections.defaultdict(collections.Counter)
    for sample in samples:
        table[kernel_name(sample)][str(sample.labels.get("gpu_src_status", ""))] += sample.values[PC]
    return dict(table)


class HotLine:
    def __init__(self, file, line):
        self.file, self.line = file, line
        self.samples = 0
        self.stalls = collections.Counter()
        self.chains = collections.Counter()


def hot_lines(samples):
    """Kernel's short name -> [HotLine], hottest first: innermost lines of resolved samples, which are a call's
    where the function itself has none."""
    table = collections.defaultdict(dict)
    for sample in samples:
        if sample.labels.get("gpu_src_status") != RESOLVED:
            continue
        frames = device_frames(sample)
        leaf = next(filter(has_line, frames), frames[0])
        lines = table[short_name(kernel_name(sample))]
        hot = lines.setdefault((leaf.file, leaf.line), HotLine(leaf.file, leaf.line))
        hot.samples += sample.values[PC]
        hot.stalls[str(sample.labels.get("gpu_stall", ""))] += sample.values[PC]
        hot.chains[" < ".join(f"{short_name(f.system_name or f.function)}:{f.line}" for f in frames)] += sample.values[PC]
    return {kernel: sorted(lines.values(), key=lambda h: -h.samples) for kernel, lines in table.items()}


def show_hot_lines(table, each=4):
    """Text for inspection by hand: share, place, source text, stalls, chain."""
    out = []
    for kernel, lines in sorted(table.items(), key=lambda item: -sum(h.samples for h in item[1])):
        total = sum(hot.samples for hot in lines)
        out.append(f"{kernel}: {total} samples")
        for hot in lines[:each]:
            stalls = ", ".join(f"{name} {count / hot.samples * 100:.0f} %" for name, count in hot.stalls.most_common(3))
            out.append(f"  {hot.samples / total * 100:5.1f} %  {hot.file}:{hot.line}  | {source_line(hot.file, hot.line)}")
            out.append(f"           {stalls};  {hot.chains.most_common(1)[0][0]}")
    return "\n".join(out)


@functools.lru_cache(maxsize=256)
def source_lines(path):
    try:
        return pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None


def source_line(path, number):
    lines = source_lines(path)
    if lines is None:
        return "(no such file)"
    return lines[number - 1].strip() if 0 < number <= len(lines) else "(no such line)"


@functools.lru_cache(maxsize=64)
def function_ranges(path):
    """Function name -> [(first line, last line)] of a .py or of one of our .cu files."""
    lines = source_lines(path)
    if lines is None:
        return {}
    return python_ranges("\n".join(lines)) if path.endswith(".py") else cuda_ranges(lines)


def python_ranges(text):
    ranges = collections.defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            ranges[node.name].append((node.lineno, node.end_lineno))
    return dict(ranges)


def cuda_ranges(lines):
    """Definitions that begin a line with __global__ or __device__ and end with a brace at its start, or
    on the same line: our own sources' style, not C++."""
    ranges = collections.defaultdict(list)
    for number, line in enumerate(lines, 1):
        match = re.match(r'^(?:extern "C" )?__(?:global|device)__\b[^(;]*\b(\w+)\(', line)
        if not match:
            continue
        last = number
        while last <= len(lines) and not re.search(r"\}\s*$" if last == number else r"^\}", lines[last - 1]):
            last += 1
        ranges[match.group(1)].append((number, min(last, len(lines))))
    return dict(ranges)


def wrong_lines(samples, own_sources=()):
    """(impossible, displaced) of resolved samples: Counters of texts. Impossible: no such file or line. Displaced,
    in `own_sources` only: a line outside of the function that the frame names. A few of the latter are
    the compiler's own: instructions that it hoisted out of an inlined loop keep the line and lose the call.
    Triton's line tables name no inlined functions: its lines have to lie in some function of the file."""
    own = {str(path) for path in own_sources}
    impossible, displaced = collections.Counter(), collections.Counter()
    for sample in samples:
        if sample.labels.get("gpu_src_status") != RESOLVED:
            continue
        frames = device_frames(sample)
        if not any(map(has_line, frames)):
            impossible[f"{frames[0].function}: resolved without a line"] += sample.values[PC]
        for frame in frames:
            where = f"{short_name(frame.system_name or frame.function)} at {frame.file}:{frame.line}"
            if not has_line(frame):
                continue  # a function of the toolkit's, or called from several lines
            if not is_code(frame):
                impossible[f"{where}: no line of code"] += sample.values[PC]
            elif frame.file in own and not is_inside(frame, frame.file.endswith(".py")):
                displaced[f"{where}: outside of it"] += sample.values[PC]
    return impossible, displaced


def is_code(frame):
    lines = source_lines(frame.file)
    return lines is not None and frame.line <= len(lines) and bool(lines[frame.line - 1].strip())


def is_inside(frame, any_function=False):
    """Whether its line lies in the function that it names."""
    ranges = function_ranges(frame.file)
    name = short_name(frame.system_name or frame.function)
    return any(first <= frame.line <= last for function, spans in ranges.items() if any_function or function == name
               for first, last in spans)


def marked_lines(path):
    """Kernel -> lines that end in the comment `// hot: KERNEL`."""
    marks = collections.defaultdict(set)
    for number, line in enumerate(source_lines(str(path)) or [], 1):
        match = re.search(r"(?://|#) hot: (\w+)$", line)
        if match:
            marks[match.group(1)].add(number)
    return dict(marks)


def share_on_marks(lines, marks):
    """Share of a kernel's samples on its marked lines, of HotLines."""
    total = sum(hot.samples for hot in lines)
    return sum(hot.samples for hot in lines if hot.line in marks) / total if total else 0.0
