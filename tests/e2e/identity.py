# SPDX-License-Identifier: Apache-2.0
"""Which process a sample is of: the labels that tell processes, containers, ranks and GPUs apart.

Run by ctest: identity.py CASE --build DIR. Needs root."""

import json
import subprocess
import sys

import pprof_raw
from bench import PATIENCE, Bench, check_accounting, check_documented, emitted, equal, read_truth, run_named_case, wait_for, wait_for_memfd
from cgroups import Cgroups, container_id, pod_uid
from pod import descendant

LAUNCHES = 300
WORK = ("--threads", 1, "--launches", LAUNCHES, "--rate", LAUNCHES)
OF_A_PROCESS = ("pid", "start_ticks", "ns_pid", "comm", "container_id", "pod_uid", "rank", "local_rank")


def start_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[19]


def processes_of(profile):
    """{the labels of a process: its executions}."""
    return profile.by(lambda sample: tuple((key, sample.labels[key]) for key in OF_A_PROCESS if key in sample.labels),
                      "gpu_executions")


def case_container(bench, cgroups):
    """Attached to, in a container of a pod with its own process namespace, and gone before the profile is written."""
    path = (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod_uid(1).replace('-', '_')}.slice/"
            f"cri-containerd-{container_id(1)}.scope")
    inside = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", '"$@" & wait $!', "sh"]
    shell = bench.spawn([*cgroups.enter(path), *inside, *bench.workload("--threads", 1, "--launches", 0, "--rate", 500)],
                        bench.env(CUDA_INJECTION64_PATH=bench.shim, FAKE_CUDA_TRUTH=bench.truth_file(), RANK=11, LOCAL_RANK=3))
    wait_for(lambda: descendant(shell, "workload"), "the program runs")
    pid = descendant(shell, "workload")
    wait_for_memfd(pid)
    ticks = start_ticks(pid)
    daemon = bench.spawn([str(bench.daemon), "--pid", str(pid), "-o", "c.pb.gz", "--summary-json", "c.json"], bench.env())
    wait_for(lambda: emitted(pid) >= LAUNCHES, f"{LAUNCHES} executions of {pid}")
    subprocess.run(["kill", "-TERM", str(pid)], check=True)
    equal(daemon.wait(PATIENCE), 0, "the daemon's exit status")
    equal(shell.wait(PATIENCE), 0, "the program's exit status")
    truth, summary = read_truth(bench.truth_file()), json.loads((bench.dir / "c.json").read_text())
    check_accounting(summary, truth["recorded_executions"])
    check_documented(summary)
    wanted = {"pid": str(pid), "start_ticks": ticks, "ns_pid": "2", "comm": "workload", "container_id": container_id(1),
              "pod_uid": pod_uid(1), "rank": "11", "local_rank": "3"}
    equal(processes_of(pprof_raw.load(bench.dir / "c.pb.gz")), {tuple(wanted.items()): truth["recorded_executions"]}, "labels")
    target = summary["targets"][0]
    equal({key: str(target[key]) for key in wanted}, wanted, "the summary's keys")


def case_ranks(bench, cgroups):
    """Under run: three ranks in docker's, podman's and no container; what is no rank is no label."""
    places = ((f"docker/{container_id(2)}", "RANK=0 LOCAL_RANK=0"), (f"machine.slice/libpod-{container_id(3)}.scope/container",
              "RANK=1 LOCAL_RANK=-1"), ("train.service", "RANK=0x2 LOCAL_RANK=12345678"))
    script = "".join(f"(echo $(exec sh -c 'echo $PPID') > {cgroups.make(path)}/cgroup.procs; {ranks} exec env "
                     f"FAKE_CUDA_TRUTH={bench.truth_file(number)} \"$@\") & " for number, (path, ranks) in enumerate(places))
    profile, summary, _, _ = run_without_truth(bench, ["sh", "-c", script + "wait", "sh", *bench.workload(*WORK)])
    truths = [read_truth(bench.truth_file(number)) for number in range(len(places))]
    check_accounting(summary, sum(truth["executions"] for truth in truths))
    got = sorted((tuple(label for label in labels if label[0] not in ("pid", "start_ticks")), count)
                 for labels, count in processes_of(pprof_raw.load(profile)).items())
    comm = ("comm", "workload")
    equal(got, sorted([((comm, ("container_id", container_id(2)), ("rank", "0"), ("local_rank", "0")), truths[0]["executions"]),
                       ((comm, ("container_id", container_id(3)), ("rank", "1")), truths[1]["executions"]),
                       ((comm,), truths[2]["executions"])]), "labels")


def run_without_truth(bench, command):
    """Bench.run, where each process has a truth of its own."""
    bench.truth_file().write_text('{"violations": 0}')
    return bench.run(command)


def case_visible_devices(bench, _):
    """CUDA_VISIBLE_DEVICES=1,0 of three GPUs: device 0 is the machine's GPU 1, and the work on it has that one's UUID."""
    session = bench.dir / "two.session"
    session.write_text("kernel work duration=20us\n"
                       + "".join(f"thread t{device} device={device}\n  path a/b\n  rate 500\n  loop {loops}\n    launch work\n  end\n"
                                 for device, loops in ((0, 200), (1, 300))))
    uuids = [f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
             for text in (bytes(0x10 * (gpu + 1) + i for i in range(16)).hex() for gpu in range(3))]
    for visible, order in ((None, (0, 1)), ("1,0", (1, 0)), ("2,0,1", (2, 0))):
        settings = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        profile, summary, truth, _ = bench.run(bench.player(session), FAKE_CUDA_DEVICES=3, **settings)
        check_accounting(summary, truth["executions"])
        got = pprof_raw.load(profile).by(lambda sample: (sample.labels["gpu_device"], sample.labels["gpu_uuid"]), "gpu_executions")
        equal(dict(got), {("0", uuids[order[0]]): 200, ("1", uuids[order[1]]): 300}, f"CUDA_VISIBLE_DEVICES={visible}")


def case_nested(bench, _):
    """gpu-profiled in a pid namespace of its own: works with that one's /proc; with another one's it says so, and the
    command runs."""
    own, other = (["unshare", "--pid", "--fork", "--kill-child", *proc] for proc in (["--mount-proc"], []))
    told = "/proc is not mounted, or is another pid namespace's"
    for prefix, works in ((own, True), (other, False)):
        summary = bench.dir / "nested.json"
        summary.unlink(missing_ok=True)
        process = bench.spawn([*prefix, str(bench.daemon), "run", "--shim", str(bench.shim), "-o", "nested.pb.gz", "--summary-json",
                               str(summary), "--", *bench.workload(*WORK)], bench.env(FAKE_CUDA_TRUTH=bench.truth_file()),
                              stderr=subprocess.PIPE, text=True)
        text = process.communicate(timeout=PATIENCE)[1]
        equal(process.returncode, 0, f"exit status ({text})")
        equal(read_truth(bench.truth_file())["executions"], LAUNCHES, "the program's executions")
        equal((summary.exists(), told in text), (works, not works), text)
        if works:
            check_accounting(json.loads(summary.read_text()), LAUNCHES)
    process = bench.spawn([*other, str(bench.daemon), "--pid", "1"], bench.env(), stderr=subprocess.PIPE, text=True)
    text = process.communicate(timeout=PATIENCE)[1]
    equal((process.returncode, text.startswith(f"gpu-profiled: {told}"), len(text.splitlines())), (3, True, 1), text)


CASES = {"container": case_container, "ranks": case_ranks, "visible_devices": case_visible_devices, "nested": case_nested}


def run(case, options):
    bench = Bench(options.build)
    cgroups = Cgroups(bench.dir)
    try:
        case(bench, cgroups)
    finally:
        bench.end_processes()
        cgroups.close()
        bench.close()


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run))
