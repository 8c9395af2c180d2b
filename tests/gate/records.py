# SPDX-License-Identifier: Apache-2.0
"""End-to-end half of 12: every probe and drop class of proto/usdt_abi.h arrives, is decoded and is consumed."""
import pathlib
import re
import subprocess

import pc_checks
import pc_sampling
import pprof_raw
from bench import check, check_identity, equal, status_page, wait_for_memfd
from frames import CONTINUOUS

ABI = (pathlib.Path(__file__).resolve().parents[2] / "proto/usdt_abi.h").read_text()
PROBE_TOTALS_AT, DROP_TOTALS_AT = 136, 264  # in gpuprof_status_page
NEVER_FIRES = "autoarm"


def enumerated(prefix):
    """{name in lower case: number} of an enum of the ABI, without its zero and its count."""
    found = {name.lower(): int(number) for name, number in re.findall(rf"{prefix}_(\w+)\s*=\s*(\d+)", ABI)}
    return {name: number for name, number in found.items() if name not in ("invalid", "count", "class_count")}


PROBES, DROPS = enumerated("GPUPROF_PROBE"), enumerated("GPUPROF_DROP")
NOT_LOSSES = ("final_total",)  # tells totals of probes


def totals(pid, at, numbers):
    page = status_page(pid)
    return {name: int.from_bytes(page[at + 8 * number:at + 8 * number + 8], "little") for name, number in numbers.items()}


def check_consumed(summary):
    """Nothing that arrived was left undecoded, or decoded for nobody."""
    equal((summary["rings"]["malformed"], summary["join"]["unconsumed"]), (0, 0), "undecoded and unconsumed records")


def attach(bench, target, executions, *options):
    """(summary, the page's totals of probes and drops before and after): the shim's own counts of one attach."""
    before = [totals(target.pid, PROBE_TOTALS_AT, PROBES), totals(target.pid, DROP_TOTALS_AT, DROPS)]
    _, summary, _ = bench.attach_for(target.pid, executions, *options)
    after = [totals(target.pid, PROBE_TOTALS_AT, PROBES), totals(target.pid, DROP_TOTALS_AT, DROPS)]
    return summary, *({name: now[name] - was[name] for name in now} for was, now in zip(before, after))


def check_probes(summary, fired):
    """Each probe's records: as many delivered as the shim emitted while it was attached."""
    delivered = summary["rings"]["records"]
    names = {f"{name}_v1" for name in PROBES if name != NEVER_FIRES}
    equal(set(delivered), names, "probes of the summary")
    for name, count in fired.items():
        if name != NEVER_FIRES:
            equal(delivered[f"{name}_v1"], count, f"records of {name}_v1")
    equal(fired[NEVER_FIRES], 0, f"records of {NEVER_FIRES}")
    check_consumed(summary)


def check_drops(summary, dropped, due):
    """Each class by the shim's own page; those of `due` did occur."""
    told = summary["targets"][0]["shim"]
    equal(set(told), set(DROPS) - set(NOT_LOSSES), "drop classes of the summary")
    for name, count in dropped.items():
        if name not in NOT_LOSSES:
            equal(told[name], count, f"drops of class {name}")
    missing = [name for name in due if not dropped[name]]
    check(not missing, f"these classes did not occur: {missing}; {dropped}")


def check_every_probe(bench):
    """A session with modules that come and go, two devices and windows; the first probe by a process that is injected
    while somebody listens."""
    target = pc_sampling.start_session(bench, "pc_cycles")
    summary, fired, _ = attach(bench, target, 4000, *CONTINUOUS)
    pc_sampling.end_session(bench, target)
    check_probes(summary, fired)
    quiet = [name for name in PROBES if name not in ("process", NEVER_FIRES) and not fired[name]]
    check(not quiet, f"probes that never fired: {quiet}")
    _, summary, _, _ = bench.run(pc_sampling.play(bench, "pc_sampling", loops=50), *CONTINUOUS)
    equal(summary["rings"]["records"]["process_v1"], 1, "process_v1")
    check_consumed(summary)
    return sum(fired.values())


# Faults of the fake's CUPTI -> the classes that the shim counts by them.
FAULTS = (
    ({"FAKE_CUDA_DROP_EVERY": 50, "FAKE_CUDA_ZERO_TIMES_EVERY": 70, "FAKE_CUDA_PC_DROP_EVERY": 90, "FAKE_CUDA_PC_OOM_AT": 3},
     ("cupti", "invalid_time", "pc_dropped", "hw_buffer_full", "non_user", "launches_seen", "launches_drawn")),
)


def check_every_drop(bench):
    for settings, due in FAULTS:
        target = start_faulty(bench, settings)
        summary, fired, dropped = attach(bench, target, 6000, *CONTINUOUS)
        pc_sampling.end_session(bench, target)
        check_drops(summary, dropped, due)
        check_identity(summary["total"])
        check_consumed(summary)
    return {name for _, due in FAULTS for name in due} | check_names_and_clock(bench)


def check_names_and_clock(bench):
    """A kernel's name beyond the most that is kept, and a clock that is set while it runs."""
    due = ("name_cut", "clock_step")
    session = bench.dir / "drops.session"
    session.write_text(f"kernel long function={'a' * 17_000} duration=10us\nthread first on=main\n  rate 2000\n  loop 1000000\n    path a/b\n"
                       "    launch long\n  end\n")
    steps = ",".join(f"{1500 + 1000 * i}:{i % 2 * 5_000_000_000}" for i in range(1, 60))
    env = bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(), STEP_CLOCK=steps,
                    LD_PRELOAD=bench.preload(bench.build / "tests/e2e/workload/libworkload_step_clock.so"))
    target = bench.spawn(bench.player(session), env, stdout=subprocess.DEVNULL)
    wait_for_memfd(target.pid)
    summary, _, dropped = attach(bench, target, 5000)
    pc_sampling.end_session(bench, target)
    check_drops(summary, dropped, due)
    check_identity(summary["total"])
    check_consumed(summary)
    return set(due)


def start_faulty(bench, settings):
    return pc_sampling.start_session(bench, "pc_cycles", settings)


def check_unknown_version(bench):
    """A newer shim, whose module_v1 is module_v2: counted and skipped, everything else as ever."""
    newer = bench.dir / "libnewer-shim.so"
    image = bench.shim.read_bytes()
    old, new = b"gpu_profiled\0module_v1\0", b"gpu_profiled\0module_v2\0"
    equal(image.count(old), 1, "notes of module_v1 in the shim")
    newer.write_bytes(image.replace(old, new))
    newer.chmod(0o755)
    shim, bench.shim = bench.shim, newer
    try:
        path, summary, truth, _ = bench.run(pc_sampling.play(bench, "pc_sampling", loops=100), *CONTINUOUS)
    finally:
        bench.shim = shim
    equal(summary["rings"]["unknown_probes"], 1, "probes of an unknown version")
    equal(summary["rings"]["records"]["module_v1"], 0, "records of the probe that is not there")
    check_consumed(summary)
    profile = pprof_raw.load(path)
    check(truth["pc"]["pc_delivered"] > 1000, "too few samples: nothing is tested")
    equal(pc_checks.check_samples(profile, truth, pc_checks.Oracle()), {"resolved", "no-lineinfo", "no-module", "unmapped"},
          "values of gpu_src_status")
    pc_checks.check_summary(summary, truth, "continuous", profile)


def gate12(bench):
    records = check_every_probe(bench)
    classes = check_every_drop(bench)
    check_unknown_version(bench)
    print(f"{records} records of {len(PROBES) - 1} probes; drop classes {sorted(classes)}; none undecoded, none unconsumed; module_v2 skipped "
          "and counted")
