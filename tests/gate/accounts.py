# SPDX-License-Identifier: Apache-2.0
"""End-to-end halves of 5, 6, 7 and 9: every record in one bucket, none lost to an eviction, shares by GPU time, caps on
labels."""
import collections
import json
import random
import signal
import subprocess

import pc_checks
import pc_sampling
import pprof_raw
from bench import PATIENCE, check, check_identity, emitted, equal, read_truth, wait_for, wait_for_memfd
from frames import CONTINUOUS, path_of, run, split
from many_targets import grown
from pc_checks import CUBINS, present


def start(bench, index, session, **settings):
    """A session that runs until SIGTERM, on GPUs of its own: its truth is in truth<index>.json."""
    env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(f"truth{index}"),
                    FAKE_CUDA_FIRST_GPU=2 * index, **settings)
    process = bench.spawn(pc_sampling.play(bench, session), env, stdout=subprocess.DEVNULL)
    wait_for_memfd(process.pid)
    return process


def end(bench, index, process):
    process.send_signal(signal.SIGTERM)
    equal(process.wait(PATIENCE), 0, f"exit status of target {index}")
    return read_truth(bench.truth_file(f"truth{index}"))


def attach_to(bench, targets, executions, *options):
    """(profile, summary): one gpu-profiled on all of them until each has emitted so many executions."""
    path, result, errors = bench.dir / "x.pb.gz", bench.dir / "x.json", bench.dir / "stderr"
    pids = [word for target in targets for word in ("--pid", str(target.pid))]
    before = [emitted(target.pid) for target in targets]
    daemon = bench.spawn([str(bench.daemon), *pids, *options, "-o", str(path), "--summary-json", str(result)], bench.env(),
                         stderr=errors.open("w"))
    wait_for(lambda: daemon.poll() is not None or all(emitted(target.pid) >= n + executions
                                                      for target, n in zip(targets, before)), f"{executions} executions each")
    daemon.send_signal(signal.SIGINT)
    equal(daemon.wait(PATIENCE), 0, f"the daemon's exit status ({errors.read_text()})")
    return pprof_raw.load(path), json.loads(result.read_text())


BUCKETS = ("exact", "kernel", "kernel-ambiguous", "kernel-multidevice", "graph-refused", "unattributed")


def check_buckets(entry, delivered, what):
    """One process's or the total's: what the producer gave is in exactly one bucket."""
    records, counts = entry["records"], entry["counts"]
    equal(records["produced"], records["received"] + sum(records["lost_in_ring"].values()), f"{what}: records produced")
    equal(counts["received"], sum(counts[key] for key in ("samples", "not_issued", "other", "unnamed", "refused", "pending")),
          f"{what}: counts received")
    equal(set(entry["attribution"]), set(BUCKETS), f"{what}: buckets")
    equal(sum(entry["attribution"].values()), counts["samples"], f"{what}: samples in buckets")
    # None was lost in the rings here: evicted ones are `refused`.
    equal((sum(records["lost_in_ring"].values()), counts["unnamed"]), (0, 0), f"{what}: lost, unnamed")
    equal(counts["samples"] + counts["refused"] + counts["pending"], delivered, f"{what}: samples that the producer delivered")


def gate05(bench):
    # The hardware loses every 50th sample of the second: the producer's own loss, counted there.
    targets = [start(bench, 0, "pc_sampling"), start(bench, 1, "pc_sampling", FAKE_CUDA_PC_DROP_EVERY=50)]
    profile, summary = attach_to(bench, targets, 6000, *CONTINUOUS)
    truths = [end(bench, index, target) for index, target in enumerate(targets)]
    by_pid = {entry["pid"]: entry for entry in summary["targets"]}
    in_profile = profile.by(lambda s: s.labels["pid"].split()[0], "gpu_pc_samples")
    for target, truth in zip(targets, truths):
        entry = by_pid[target.pid]
        check_identity(entry)
        delivered = truth["pc"]["pc_delivered"]
        check(delivered > 20_000, f"{delivered} samples: nothing is tested")
        check_buckets(entry["pc_sampling"], delivered, f"process {target.pid}")
        equal(in_profile[str(target.pid)], delivered, "samples of the process in the profile")
        equal(entry["shim"]["pc_dropped"], truth["pc"]["pc_dropped"], "samples that the hardware dropped")
        attribution = entry["pc_sampling"]["attribution"]
        check(all(attribution[key] for key in ("kernel", "kernel-ambiguous", "kernel-multidevice", "unattributed")),
              f"a bucket is empty: {attribution}")
    check(truths[1]["pc"]["pc_dropped"] > 100, "the hardware dropped nothing: nothing is tested")
    check_identity(summary["total"])
    check_buckets(summary["total"]["pc_sampling"], sum(t["pc"]["pc_delivered"] for t in truths), "in total")
    for key in ("kernel", "kernel-ambiguous", "kernel-multidevice", "unattributed", "exact"):
        equal(summary["total"]["pc_sampling"]["attribution"][key],
              sum(e["pc_sampling"]["attribution"][key] for e in summary["targets"]), f"{key} in total")
    # Exactly: by the launch's correlation, and a graph's, which N kernels share.
    profile, truth = pc_sampling.run_with_graph(bench, FAKE_CUDA_CALLBACK_FAIL="1:514:1,1:515:1")
    summary = json.loads((bench.dir / "run.json").read_text())
    check_buckets(summary["total"]["pc_sampling"], truth["pc"]["pc_delivered"], "serialized")
    attribution = summary["total"]["pc_sampling"]["attribution"]
    check(attribution["exact"] and attribution["graph-refused"], f"a bucket is empty: {attribution}")
    print(f"{[t['pc']['pc_delivered'] for t in truths]} continuous and {truth['pc']['pc_delivered']} serialized samples, each in one "
          "bucket")


FUNCTIONS = {"scale_up": ("_Z8scale_upPff", "0x80:long_scoreboard*8/7 0x90:lg_throttle*1/1"),
             "scale_twin": ("_Z10scale_twinPff", "0x80:long_scoreboard*7/6 0x90:lg_throttle*1/1"),
             "polynomial": ("_Z10polynomialPffi", "0x40:wait*3/1 0x100:selected*2")}
PAIRS = 50


def fifty_pairs(bench):
    """A session over 50 pairs of a cubin and a function: 17 cubins, each with bytes of its own behind its sections."""
    rng, cubin = random.Random(6), (CUBINS / "equal_offsets.sm_80.cubin").read_bytes()
    modules, kernels, lines = [], [], ["thread first on=main", "  loop $loops"]
    for i in range(PAIRS):
        number, (name, (function, pcs)) = i // 3, list(FUNCTIONS.items())[i % 3]
        if i % 3 == 0:
            image = bench.dir / f"{number}.cubin"
            image.write_bytes(grown(cubin, 4096, rng))
            modules.append(f"module m{number} file={image}")
        kernels += [f"kernel {name}{i} function={function} module=m{number} duration=100us", f"pcs {name}{i} {pcs}"]
        lines += [f"    path {'abcdefghijklmnop'[i % 16]}/{'abcdefghijklmnop'[i // 16]}", f"    launch {name}{i}"]
    session = bench.dir / "pairs.session"
    session.write_text("\n".join(["let loops 1000000", "set clock_khz 1000000", *modules, *kernels, *lines, "  end", ""]))
    return session


def gate06(bench):
    path, summary, truth, _ = bench.run(bench.player(fifty_pairs(bench), loops=400), *CONTINUOUS)
    profile = pprof_raw.load(path)
    delivered = truth["pc"]["pc_delivered"]
    check(delivered >= 10_000, f"{delivered} samples: 10,000 are due")
    pairs = {(row["cubin"], row["kernel"]) for row in truth["pc"]["rows"] if row["delivered"]}
    equal(len(pairs), PAIRS, "pairs of cubin and function that were sampled")
    shown = collections.Counter()
    for sample in pc_checks.pc_samples(profile):
        kernel = split(sample)[2][0]
        shown[kernel.mapping, kernel.system_name] += sample.values["gpu_pc_samples"]
    want = collections.Counter()
    for row in truth["pc"]["rows"]:
        want[row["cubin"], row["kernel"]] += row["delivered"]
    # Which mapping is which cubin is not told by a number: the counts are compared as a whole.
    equal(sorted(((name, n) for (_, name), n in present(shown).items())), sorted((name, n) for (_, name), n in present(want).items()),
          "samples by pair")
    pc_checks.check_summary(summary, truth, "continuous", profile)
    attribution = summary["total"]["pc_sampling"]["attribution"]
    equal((attribution["unattributed"], attribution["exact"]), (0, 0), "samples without an execution, or by a correlation")
    equal(profile.total("gpu_pc_samples"), delivered, "PC samples in the profile")
    equal(summary["join"]["launches_evicted"], 0, "launches evicted")
    print(f"{delivered} samples over {len(pairs)} pairs of cubin and function, all there")


def gate07(bench):
    _, profile, summary, truth = run(bench, "two_stacks", *CONTINUOUS)
    rows = {path_of(row["stack"]): row for row in truth["rows"] if row["kernel"] == "chain"}
    equal({path: row["executions"] for path, row in rows.items()}, {("main", "path_a", "path_b"): 1, ("main", "path_c"): 1},
          "executions by stack")
    delivered = pc_checks.delivered(truth, kernel="chain")
    check(delivered > 1000, f"{delivered} samples of the two executions: nothing is tested")
    samples, times, executions = collections.Counter(), collections.Counter(), collections.Counter()
    parts = collections.Counter()
    for sample in profile.samples:
        kernel = next((f.system_name for f in sample.frames if f.system_name == "chain"), None)
        if kernel is None:
            continue
        stack = path_of(sample.functions)
        times[stack] += sample.values["gpu_time"]
        executions[stack] += sample.values["gpu_executions"]
        if sample.values["gpu_pc_samples"]:
            equal(sample.labels["gpu_pc_attrib"], "kernel-ambiguous", "attribution of the two executions' samples")
            samples[stack] += sample.values["gpu_pc_samples"]
            parts[stack] += 1
    equal(dict(times), {path: row["gpu_ns"] for path, row in rows.items()}, "gpu_time by stack")
    equal(dict(executions), {path: 1 for path in rows}, "executions by stack")
    equal(sum(samples.values()), delivered, "PC samples of both stacks")
    total = sum(row["gpu_ns"] for row in rows.values())
    shares = {path: row["gpu_ns"] / total for path, row in rows.items()}
    check(abs(shares[("main", "path_c")] - 0.5) > 0.05, f"the two executions took as long: {shares}")
    for path, share in shares.items():
        check(abs(samples[path] - delivered * share) <= parts[path] + 1, f"{samples[path]} of {delivered} samples are {path}'s, whose share of "
              f"the GPU time is {share:.4f}")
    equal(summary["total"]["pc_sampling"]["attribution"]["kernel-ambiguous"], delivered, "kernel-ambiguous samples in the summary")
    pc_checks.check_summary(summary, truth, "continuous", profile)
    print(f"{delivered} samples of two executions, {100 * samples[('main', 'path_c')] / delivered:.2f} % of them from the second stack, "
          f"which has {100 * shares[('main', 'path_c')]:.2f} % of the GPU time")


GRAPHS, MOST_VALUES = 1100, 1000


def gate09(bench):
    graphs = [f"graph g{i} k" for i in range(GRAPHS)]
    launches = [line for i in range(GRAPHS) for line in (f"  run-graph g{i}",)]
    session = bench.dir / "graphs.session"
    session.write_text("\n".join(["kernel k duration=20us", *graphs, "thread first on=main", "  path a/b", *launches, ""]))
    path, summary, truth, errors = bench.run(bench.player(session), "--stack-rate", "all")
    profile = pprof_raw.load(path)
    equal(truth["executions"], GRAPHS, "executions")
    equal(profile.total("gpu_executions"), GRAPHS, "executions in the profile")
    equal(profile.total(), truth["gpu_ns"], "gpu_time")
    labelled = [s for s in profile.samples if "gpu_graph_id" in s.labels]
    values = {s.labels["gpu_graph_id"] for s in labelled}
    equal(len(values), MOST_VALUES, "values of the capped label")
    for sample in profile.samples:  # that one alone
        check({"gpu_join", "gpu_device", "gpu_uuid", "gpu_context", "gpu_stream", "pid", "comm", "thread"} <= set(sample.labels),
              f"another label is missing: {sample.labels}")
        equal(sample.labels["gpu_join"], "exact", "gpu_join")
    equal(sum(s.values["gpu_executions"] for s in labelled), MOST_VALUES, "executions with the label")
    suppressed = GRAPHS - MOST_VALUES
    equal(summary["join"]["labels_suppressed"], suppressed, "suppressions counted")
    check(f"{suppressed} samples" in errors and "label" in errors, f"suppressions are not shown: {errors}")
    print(f"{len(values)} of {GRAPHS} graph ids shown, {suppressed} suppressed and told, every other label there")
