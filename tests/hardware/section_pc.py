# SPDX-License-Identifier: Apache-2.0
"""pc: PC samples reach source lines, in both tiers, from the start and attached late.

Seconds on an H200 (estimated): w2 20, hot_loops 25, serialized 45, PyTorch and Triton 70, NCCL 60, two
GPUs 12; 230 in all.
A part that the time left does not allow says "not run"."""
import time

import device_code as code
import pc_checks
import section_apis
import section_w2 as w2
import truth
from harness import Process, wait_for_file

CONTINUOUS = ("--pc-sampling", "continuous")
SERIALIZED = ("--pc-sampling", "serialized")
W2_ROUNDS = 15
W2_KERNELS = ("tiny", "compute", "scale_copy", "graph_node", "driver_tiny")
HOT_ROUNDS = 600
SERIALIZED_ROUNDS = 1200  # windows begin after a second and are 1.2 s apart
HOT_KERNELS = ("hot_math", "hot_chase", "hot_shared")
HOT_LAUNCHERS = {"hot_math": "launch_math", "hot_chase": "launch_chase", "hot_shared": "launch_shared"}
TORCH_STEPS = 400
TRAIN_STEPS = 1000
# Names of the vendor libraries' kernels, which have no line information.
VENDOR = ("cutlass", "gemm", "gemv", "xmma", "cudnn", "cublas", "nvjet", "implicit_convolve", "winograd", "splitKreduce")


def chains():
    """Kernel -> its inline chain in hot_loops.cu, innermost first."""
    parts = {"hot_math": "math", "hot_chase": "chase", "hot_shared": "shared"}
    return {kernel: [f"{part}_{depth}" for depth in ("inner", "middle", "outer")] + [kernel]
            for kernel, part in parts.items()}


def is_sampling(status):
    """The tier that was asked for is on, or refused: what it will be."""
    return w2.is_tracing(status) and status["pc_state"] in ("on", "refused")


def affords(bench, name, seconds):
    if bench.left() >= seconds:
        return True
    bench.report.add(name, f"{max(bench.left(), 0):.0f} s left, {seconds} needed", "", "not run")
    return False


def check_both(bench, name, profile, summary, kernels, sources, tier="continuous"):
    """Checks that hold of any profile of a workload with line information; its resolved share."""
    pc_checks.check_conserved(bench, name, profile, summary)
    if profile is None:
        return None
    samples = code.pc_samples(profile, code.of_kernels(kernels))
    pc_checks.check_attribution(bench, name, samples, tier)
    pc_checks.check_lines(bench, name, samples, sources)
    return pc_checks.check_resolved(bench, name, samples)


def continuous(bench, name, command, kernels, source, launchers, setup):
    """One workload in the continuous tier by `run` and by late attach; the listener's counts."""
    counts = w2.listen(bench, command)
    if counts is None:
        return None
    profile, summary = w2.run_both(bench, f"{name} run, continuous", command, counts, options=CONTINUOUS)
    w2.check_launchers(bench, f"{name} run, continuous", profile, launchers)
    pc_checks.check_keys(bench, f"{name} run, continuous", summary)
    start = check_both(bench, f"{name} run, continuous", profile, summary, kernels, [source])
    if profile is not None and code.marked_lines(source):
        pc_checks.check_hot_lines(bench, f"{name} run, continuous", code.pc_samples(profile), source, chains())
    elif profile is not None:
        print(code.show_hot_lines(code.hot_lines(code.pc_samples(profile))), flush=True)
    gate = bench.gate_directory()
    late_name = f"{name} late attach, continuous"
    profile, summary = w2.attach_both(bench, late_name, [*command, "--gate", gate], gate, setup(counts), ("beat",),
                                      CONTINUOUS, ready=is_sampling)
    w2.check_launchers(bench, late_name, profile, launchers)
    late = check_both(bench, late_name, profile, summary, kernels, [source])
    if profile is not None and code.marked_lines(source):
        pc_checks.check_hot_lines(bench, late_name, code.pc_samples(profile), source, chains())
    pc_checks.check_as_good(bench, name, late, start)
    return counts


def without_copies(counts):
    """hot_loops copies and fills once each before its gate."""
    return {**counts, "memsets": counts["memsets"] - 1, "memcpys": counts["memcpys"] - 1}


def serialized(bench):
    """hot_loops, which has no graph: every sample belongs to one launch."""
    command = [bench.hot_loops, "--rounds", SERIALIZED_ROUNDS]
    counts = w2.listen(bench, command)
    name = "hot_loops run, serialized"
    profile, summary = w2.run_both(bench, name, command, counts, options=SERIALIZED)
    check_both(bench, name, profile, summary, HOT_KERNELS, [bench.source("hot_loops.cu")], "serialized")
    check_windows(bench, name, profile, summary)
    name = "hot_loops late attach, serialized"
    gate = bench.gate_directory()
    profile, summary = w2.attach_both(bench, name, [*command, "--gate", gate], gate,
                                      without_copies(counts) if counts else None, ("beat",), SERIALIZED, ready=is_sampling)
    check_both(bench, name, profile, summary, HOT_KERNELS, [bench.source("hot_loops.cu")], "serialized")
    check_windows(bench, name, profile, summary)


def check_windows(bench, name, profile, summary):
    windows = pc_checks.shim_count(summary, "windows")
    bench.report.require(f"{name}: windows", windows >= 2, str(windows), ">= 2")
    if profile is None:
        return
    times = {}
    for sample in profile.samples:
        key = str(sample.labels.get("gpu_serialized", "no label"))
        times[key] = times.get(key, 0) + sample.values["gpu_time"]
    total = sum(times.values()) or 1
    text = ", ".join(f"{key} {ns / total * 100:.1f} %" for key, ns in sorted(times.items()))
    bench.report.require(f"{name}: gpu_time by gpu_serialized", 0 < times.get("true", 0) <= 0.2 * total, text,
                         "some true, <= 20 %")


def refuses_graphs_midway(bench):
    """Sampled until the first graph, then refused for good, while tracing goes on."""
    name = "serialized, a graph mid-run"
    command = [bench.hot_loops, "--rounds", SERIALIZED_ROUNDS, "--graph-after", SERIALIZED_ROUNDS * 3 // 4]
    counts = w2.listen(bench, command)
    profile, summary = w2.run_both(bench, name, command, counts, options=SERIALIZED)
    check_refused(bench, name, profile, summary, "graph", at_least_windows=1)


def refuses_graphs_at_start(bench):
    """A graph was seen before serialized sampling was asked for: not one window."""
    name = "serialized, a graph before"
    gate = bench.gate_directory()
    target = Process([bench.hot_loops, "--rounds", 10, "--graph-after", 0, "--gate", gate], bench.shim_env())
    profile, summary = bench.path(".pb.gz"), bench.path(".json")
    try:
        if not wait_for_file(gate / "ready", target, 60):
            bench.report.require(f"{name}: workload", False, target.finish(1).why(), "starts")
            return
        first = bench.run(bench.attached(target.pid, bench.path(".pb.gz"), options=("--duration", "1s")), 60)
        done = bench.run(bench.attached(target.pid, profile, summary, (*SERIALIZED, "--duration", "2s")), 60)
        bench.report.require(f"{name}: both attaches", first.ok() and done.ok(),
                             "exit 0" if first.ok() and done.ok() else f"{first.why()}; {done.why()}", "exit 0")
    finally:
        (gate / "go").touch()
        (gate / "stop").touch()
        finished = target.finish(60)
    bench.report.require(f"{name}: target ends well", finished.ok(), "exit 0" if finished.ok() else finished.why(), "exit 0")
    check_refused(bench, name, w2.check_profile(bench, name, profile, None), w2.check_summary(bench, name, summary), "graph",
                  at_most_windows=0)


def check_refused(bench, name, profile, summary, reason, at_least_windows=0, at_most_windows=None):
    """Counter, summary field and labels say that serialized sampling was refused, and why."""
    parts = pc_checks.pc_summaries(summary)
    windows, refused = pc_checks.shim_count(summary, "windows"), pc_checks.shim_count(summary, f"{reason}_refused")
    good = bool(parts) and all(p["state"] == "refused" and p["reason"] == reason for p in parts) and refused > 0 \
        and windows >= at_least_windows and (at_most_windows is None or windows <= at_most_windows)
    bench.report.require(f"{name}: refused", good, f"{pc_checks.show_state(summary)}; {windows} windows, {refused} refusals",
                         f"refused for {reason}")
    if profile is not None:
        counts = code.by_label(code.pc_samples(profile), "gpu_pc_attrib")
        bench.report.add(f"{name}: attribution of PC samples", code.show_counts(counts), "", "measured")


def torch_and_triton(bench):
    """Triton's kernels resolve to Python lines; the vendor libraries' have no lines; nothing is wrong."""
    command = bench.python("pc_torch.py", "--steps", TORCH_STEPS)
    counts = w2.listen(bench, command, 120)  # also fills Triton's cache
    setup = w2.listen(bench, bench.python("pc_torch.py", "--steps", 0), 120)
    if counts is None or setup is None:
        return
    name = "torch and Triton run, continuous"
    profile, summary = w2.run_both(bench, name, command, counts, options=CONTINUOUS, timeout=120)
    start = check_torch(bench, name, profile, summary)
    gate = bench.gate_directory()
    name = "torch and Triton late attach, continuous"
    profile, summary = w2.attach_both(bench, name, [*command, "--gate", gate], gate, section_apis.minus(counts, setup),
                                      ("bessel_j0",), CONTINUOUS, ready=is_sampling)
    late = check_torch(bench, name, profile, summary)
    pc_checks.check_as_good(bench, "Triton", late, start)


def two_gpus(bench):
    """One process, two GPUs: both are sampled at a time, and each sample says which."""
    name = "hot_loops on two GPUs, continuous"
    if len(bench.gpus()) < 2:
        bench.report.add(name, "one GPU", "", "not run")
        return
    command = [bench.hot_loops, "--rounds", HOT_ROUNDS // 2, "--devices", 2]
    counts = w2.listen(bench, command)
    profile, summary = w2.run_both(bench, name, command, counts, options=CONTINUOUS)
    check_both(bench, name, profile, summary, HOT_KERNELS, [bench.source("hot_loops.cu")])
    if profile is None:
        return
    samples = code.pc_samples(profile, code.of_kernels(HOT_KERNELS))
    counts = code.by_label(samples, "gpu_device")
    attribs = code.by_label(samples, "gpu_pc_attrib")
    bench.report.require(f"{name}: devices", set(counts) == {"0", "1"} and min(counts.values()) * 3 > sum(counts.values())
                         and not attribs["kernel-multidevice"],
                         f"{code.show_counts(counts)}; {code.show_counts(attribs)}", "about half each, none unknown")


def check_torch(bench, name, profile, summary):
    pc_checks.check_conserved(bench, name, profile, summary)
    if profile is None:
        return None
    samples = code.pc_samples(profile)
    pc_checks.check_attribution(bench, name, samples, "continuous")
    source = bench.source("pc_torch.py")
    triton = [s for s in samples if code.kernel_name(s).startswith("triton_")]
    share = pc_checks.check_resolved(bench, f"{name}: Triton", triton)
    total = sum(s.values[code.PC] for s in triton) or 1
    python, own = (sum(s.values[code.PC] for s in triton if is_right(code.device_frames(s)[0].file)) / total
                   for is_right in (lambda file: file.endswith(".py"), lambda file: file == str(source)))
    bench.report.require(f"{name}: Triton's lines are Python's", python >= 0.99 and own >= 0.5,
                         f"{python * 100:.2f} % in .py files, {own * 100:.2f} % in {source.name}, the rest in Triton's library",
                         ">= 99 %, most in the source")
    pc_checks.check_lines(bench, f"{name}: Triton", triton, [source])
    print(code.show_hot_lines(code.hot_lines(triton)), flush=True)
    vendor = [s for s in samples if any(part in code.kernel_name(s) for part in VENDOR)]
    counts = code.by_label(vendor, "gpu_src_status")
    bench.report.require(f"{name}: cuBLAS and cuDNN kernels", bool(vendor) and set(counts) == {"no-lineinfo"},
                         code.show_counts(counts), "no-lineinfo, all")
    others = [s for s in samples if s not in triton and s not in vendor]
    pc_checks.check_lines(bench, f"{name}: everything", samples, [source])
    bench.report.add(f"{name}: other kernels", code.show_counts(code.by_label(others, "gpu_src_status")), "", "measured")
    table = code.status_by_kernel(samples)
    bench.report.fact(f"{name}: status by kernel",
                      {kernel[:120]: dict(counts) for kernel, counts in
                       sorted(table.items(), key=lambda item: -sum(item[1].values()))[:30]})
    return share


def torch_serialized(bench):
    """A training loop without graphs and collectives."""
    name = "torch training, serialized"
    command = bench.python("train.py", "--steps", TRAIN_STEPS)
    profile, summary = w2.run_both(bench, name, command, None, options=SERIALIZED, timeout=120)
    pc_checks.check_conserved(bench, name, profile, summary)
    if profile is not None:
        pc_checks.check_attribution(bench, name, code.pc_samples(profile), "serialized")
        check_windows(bench, name, profile, summary)


def comings_and_goings(bench):
    """Modules and contexts that go while they are profiled: each kernel keeps its executions, and has as many samples a
    second of GPU time as where both stay. (CUPTI's records and its decoder's samples come up to 100 ms later, when the
    next module may lie where the last one was.)"""
    rates = {}
    for mode in ("stay", "modules", "contexts"):
        name = f"code that comes and goes, {mode}"
        profile, summary = w2.run_both(bench, name, [bench.transient, mode, bench.work], None, options=CONTINUOUS)
        if profile is None:
            return
        for kernel in ("alpha", "beta"):
            of_it = [s for s in profile.samples if code.kernel_name(s) == kernel]
            time_ns = sum(s.values["gpu_time"] for s in of_it)
            rates[mode, kernel] = sum(s.values.get(code.PC, 0) for s in of_it) / time_ns * 1e6 if time_ns else 0
        attribution = code.by_label(code.pc_samples(profile), "gpu_pc_attrib")
        bench.report.add(f"{name}: attribution", code.show_counts(attribution), "", "measured")
        launched = truth.executions_by_kernel(profile)
        bench.report.require(f"{name}: executions by kernel", launched == {"alpha": 2000, "beta": 2000}, str(launched),
                             "2000 each")
        share = [rates[mode, kernel] / (rates["stay", kernel] or 1) for kernel in ("alpha", "beta")]
        if mode == "contexts":  # each lives for less than it takes to be granted the GPU and to switch sampling on
            bench.report.add(f"{name}: samples a GPU time", f"alpha {share[0] * 100:.1f} %, beta {share[1] * 100:.1f} %", "",
                             "measured")
            continue
        pc_checks.check_conserved(bench, name, profile, summary)
        bench.report.require(f"{name}: samples a GPU time, of what they are where both stay",
                             rates["stay", "alpha"] > 0 and all(0.9 <= s <= 1.1 for s in share),
                             f"alpha {share[0] * 100:.1f} %, beta {share[1] * 100:.1f} % ({rates[mode, 'alpha']:.0f} and "
                             f"{rates[mode, 'beta']:.0f} a ms)", "90 to 110 %")


def collectives(bench):
    """Two ranks of an all-reduce loop end, whatever is sampled."""
    command = bench.python("nccl_loop.py", "--steps", 300)
    alone = bench.run(command, 90)
    said = (alone.lines() or [{}])[-1]
    if not alone.ok():
        reason = said.get("not_possible")
        bench.report.add("NCCL, 2 ranks", reason or alone.why(), "ends", "not run" if reason else "not met")
        return
    bench.report.fact("NCCL devices", said.get("devices"))
    for tier in ("off", "continuous", "serialized"):
        name = f"NCCL, 2 ranks on {said.get('devices')} GPU, {tier}"
        if not affords(bench, name, 30):
            continue
        profile, summary = bench.path(".pb.gz"), bench.path(".json")
        done = bench.run(bench.profiled(command, profile, summary, ("--pc-sampling", tier)), 90)
        result = (done.lines() or [{}])[-1]
        good = done.ok() and result.get("right") is True
        bench.report.require(name, good, f"{result.get('steps')} steps in {done.seconds:.0f} s, "
                             f"{'right' if result.get('right') else 'not right'}" if done.ok() else done.why(),
                             "ends, sums right")
        if not done.ok():
            continue
        summary = w2.check_summary(bench, name, summary)
        if tier == "serialized":
            check_refused(bench, name, None, summary, "collective")
        elif tier == "continuous":
            pc_checks.check_conserved(bench, name, w2.check_profile(bench, name, profile, None), summary)


def run_parts(bench, parts):
    """(name, seconds, function): those whose names have `bench.part` in them, as the time left allows."""
    for name, seconds, part in parts:
        if bench.part in name and affords(bench, name, seconds):
            start = time.monotonic()
            part()
            print(f"    {name} took {time.monotonic() - start:.0f} s", flush=True)


def run(bench):
    run_parts(bench, (
        ("w2, continuous", 30, lambda: continuous(bench, "w2", [bench.w2, "--rounds", W2_ROUNDS], W2_KERNELS,
                                                  bench.source("w2.cu"), w2.LAUNCHERS, w2.without_setup)),
        ("hot_loops, continuous", 35, lambda: continuous(bench, "hot_loops", [bench.hot_loops, "--rounds", HOT_ROUNDS],
                                                         HOT_KERNELS, bench.source("hot_loops.cu"), HOT_LAUNCHERS,
                                                         without_copies)),
        ("hot_loops, serialized", 40, lambda: serialized(bench)),
        ("serialized, a graph mid-run", 20, lambda: refuses_graphs_midway(bench)),
        ("serialized, a graph before", 20, lambda: refuses_graphs_at_start(bench)),
        ("code that comes and goes", 40, lambda: comings_and_goings(bench)),
        ("hot_loops on two GPUs, continuous", 15, lambda: two_gpus(bench)),
        ("NCCL, 2 ranks", 40, lambda: collectives(bench))))
