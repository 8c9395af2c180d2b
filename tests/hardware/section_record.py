# SPDX-License-Identifier: Apache-2.0
"""record: four real runs as sessions of tests/fake_cuda, by tests/record, one archive each.

Seconds on an H200 (estimated): the recorder's build 10, C++ and graph 3 each, Triton 10, PyTorch 12, packing 10; 50 in all."""
import re
import tarfile

from section_pc import affords

# What comes back from a machine is bounded there; what goes into tests/data has to be far smaller.
MOST_BYTES = 16 << 20
SOURCES = ("cupti_calls.cc", "recorder.cc", "session_text.cc")


def workloads(bench):
    """Name -> (command, seconds it may take)."""
    return {
        "inlined": ([bench.hot_loops, "--rounds", 20, "--launches", 2], 60),
        "graph": ([bench.w2, "--rounds", 1, "--tiny", 200, "--pairs", 50, "--graphs", 100, "--driver", 50], 60),
        "triton": (bench.python("triton_add.py", "--count", 200), 90),
        "torch_step": (bench.python("train.py", "--steps", 3), 90),
    }


def build(bench):
    """The recorder, built where it runs; None, and why in the report."""
    library = bench.work / "libgpu-profiled-record.so"
    done = bench.run(["g++", "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-I", bench.root, "-o", library,
                      *(bench.root / "tests/record" / source for source in SOURCES), *bench.cuda_includes(), "-ldl",
                      "-lpthread"], 120)
    good = bench.report.require("record: the recorder builds", done.ok(), "built" if done.ok() else done.err[-600:], "builds")
    return library if good else None


def describe(text):
    """(kernels, modules, sampled instructions) of a session."""
    sampled = sum(len(line.split()) - 2 for line in re.findall(r"^pcs .*$", text, re.M))
    return len(re.findall(r"^kernel ", text, re.M)), len(re.findall(r"^module ", text, re.M)), sampled


def record(bench, library, name, command, timeout):
    folder = bench.path(".session")
    folder.mkdir()
    env = bench.env(CUDA_INJECTION64_PATH=library, GPU_PROFILED_RECORD=folder)
    done = bench.run(command, timeout, env)
    session = folder / "session"
    if not done.ok() or not session.exists():
        bench.report.require(f"record: {name}", False, done.why() + f"; {done.err[-200:]}", "a session")
        return
    archive = bench.out / f"session_{name}.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(folder, arcname=name)
    kernels, modules, sampled = describe(session.read_text())
    size, whole = archive.stat().st_size, sum(f.stat().st_size for f in folder.iterdir())
    good = kernels > 0 and modules > 0 and sampled > 0 and size <= MOST_BYTES
    bench.report.require(f"record: {name}", good,
                         f"{kernels} kernels, {modules} modules, {sampled} sampled instructions, {whole >> 10} KiB, packed "
                         f"{size >> 10} KiB", f"kernels with samples, <= {MOST_BYTES >> 20} MiB packed")
    if size > MOST_BYTES:
        archive.unlink()
        (bench.out / f"session_{name}.txt").write_text(session.read_text())


def run(bench):
    if not affords(bench, "record: the recorder builds", 30):
        return
    library = build(bench)
    for name, (command, timeout) in workloads(bench).items() if library else ():
        if affords(bench, f"record: {name}", 20):
            record(bench, library, name, command, timeout)
