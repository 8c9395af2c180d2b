# SPDX-License-Identifier: Apache-2.0
"""A job of a parent, eight forked and eight spawned workers in each of three containers, started before and after
gpu-profiled: each process's executions are in the profile under its own labels, and the counts are CUPTI's.

The containers have mount, process and network namespaces of their own, one a user namespace too, and cgroups named as
docker, containerd with systemd and CRI-O name them. Run by ctest: job.py CASE --build DIR. Needs root."""

import json
import pathlib
import shlex
import shutil
import sys

import pprof_raw
from bench import PATIENCE, Bench, check, check_accounting, equal, memfds, read_truth, run_named_case, wait_for
from cgroups import Cgroups, container_id, pod_uid
from pod import SHIM, Engine

FORKED, SPAWNED, LAUNCHES = 8, 8, 200  # for 2 s, that all are armed meanwhile
PROCESSES = 1 + FORKED + SPAWNED
# name: (cgroup, pod uid)
CONTAINERS = {
    "docker": (f"system.slice/docker-{container_id(21)}.scope", container_id(21), None),
    "user": (f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{pod_uid(22).replace('-', '_')}.slice/"
             f"cri-containerd-{container_id(22)}.scope", container_id(22), pod_uid(22)),
    "crio": (f"kubepods/burstable/pod{pod_uid(23)}/crio-{container_id(23)}", container_id(23), pod_uid(23)),
}


class Job:
    def __init__(self, bench, cgroups):
        self.bench, self.cgroups = bench, cgroups
        self.engine = Engine(bench)
        self.results = {}
        self.shim = self.engine.volume("shim") / SHIM
        shutil.copy2(bench.shim, self.shim)
        self.shim.chmod(0o755)

    def command(self, name, **environment):
        """What starts the job's part in the container of that name."""
        self.results[name] = self.engine.volume(f"results-{name}")
        self.results[name].chmod(0o777)
        settings = {"LD_LIBRARY_PATH": "/own", "GPU_PROFILED_CUPTI_PATH": "/own/libcupti.so.13", "FAKE_CUDA_INSTANT": "1",
                    "CUDA_INJECTION64_PATH": f"/opt/gpu-profiled/{SHIM}", "JOB_TRUTH": "/profiles", **environment}
        start = self.engine.command({"image": "my-training-image"},
                                    [(self.shim.parent, "/opt/gpu-profiled", True), (self.results[name], "/profiles", False)],
                                    ["workload_job", name, str(LAUNCHES), str(FORKED), str(SPAWNED)], self.engine.pause(),
                                    environment=settings, user_namespace=name == "user")
        return [*self.cgroups.enter(CONTAINERS[name][0]), *start]

    def processes(self, name):
        """Those of the job in that container, {number there: number here}."""
        found = {}
        for pid in map(int, (self.cgroups.make(CONTAINERS[name][0]) / "cgroup.procs").read_text().split()):
            try:
                status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
            except FileNotFoundError:
                continue
            if status["Name"].strip() == "workload_job":
                found[int(status["NSpid"].split()[-1])] = pid
        return found

    def truths(self):
        """{labels that tell a process: its truth}."""
        out = {}
        for name, (_, container, pod) in CONTAINERS.items():
            files = sorted(self.results[name].glob("*.json"))
            equal(len(files), PROCESSES, f"processes of {name}")
            for file in files:
                labels = {"container_id": container, "ns_pid": file.with_suffix(".pid").read_text().strip()}
                if pod:
                    labels["pod_uid"] = pod
                if "spawned" in file.name:
                    local = int(file.stem.rsplit("spawned", 1)[1])
                    labels |= {"rank": str(100 + local), "local_rank": str(local)}
                out[tuple(sorted(labels.items()))] = read_truth(file)
        return out


def labels_of(labels):
    return tuple(sorted((key, labels[key]) for key in ("container_id", "ns_pid", "pod_uid", "rank", "local_rank") if key in labels))


def check_profile(job, truths, profile, summary):
    """The profile has each process's executions under its labels; so has the summary."""
    check_accounting(summary, sum(truth["recorded_executions"] for truth in truths.values()))
    wanted = {labels: truth["recorded_executions"] for labels, truth in truths.items()}
    got = pprof_raw.load(profile).by(lambda sample: labels_of(sample.labels), "gpu_executions")
    equal(dict(got), wanted, "executions by the labels of their process")
    equal({labels_of(target): target["executions"]["received"] for target in summary["targets"]}, wanted, "targets")
    equal({row["state"] for row in summary["processes"]}, {"profiled"}, "states")
    equal(len(summary["processes"]), len(CONTAINERS) * PROCESSES, "processes of the table")
    print(f"{len(wanted)} processes, {sum(wanted.values())} executions")


def case_before(job):
    """The job runs, idle; gpu-profiled attaches to the parents; then all work, and end."""
    bench = job.bench
    parts = {name: bench.spawn(job.command(name, JOB_GO="/profiles/go"), bench.env()) for name in CONTAINERS}
    for name, part in parts.items():
        wait_for(lambda: part.poll() is not None or len([pid for pid in job.processes(name).values() if memfds(pid)]) == PROCESSES,
                 f"the job in {name} is ready")
        equal(part.poll(), None, f"the job in {name} ended")
    numbers = {name: job.processes(name) for name in parts}
    parents = [numbers[name][int((job.results[name] / f"{name}.pid").read_text())] for name in parts]
    daemon = bench.spawn([str(bench.daemon), *[word for pid in parents for word in ("--pid", str(pid))], "-o", "job.pb.gz",
                          "--summary-json", "job.json"], bench.env())
    controlled = lambda: all(is_asked(pid) for found in numbers.values() for pid in found.values())
    wait_for(lambda: daemon.poll() is not None or controlled(), "each is asked to trace")
    for folder in job.results.values():
        (folder / "go").touch()
    for name, part in parts.items():
        equal(part.wait(PATIENCE), 0, f"exit status of the job in {name}")
    equal(daemon.wait(PATIENCE), 0, "the daemon's exit status")
    summary, truths = json.loads((bench.dir / "job.json").read_text()), job.truths()
    for truth in truths.values():
        check(truth["recorded_executions"] > 0, "a process of which nothing was recorded")
    check_profile(job, truths, bench.dir / "job.pb.gz", summary)
    here = {(CONTAINERS[name][1], str(inner)): outer for name, found in numbers.items() for inner, outer in found.items()}
    for sample in pprof_raw.load(bench.dir / "job.pb.gz").samples:
        labels = sample.labels
        equal(int(labels["pid"]), here[labels["container_id"], labels["ns_pid"]], "the number here")


def is_asked(pid):
    """Its control page has a controller's wish: the tier, behind magic, version and seq, is not off."""
    with open(f"/proc/{pid}/fd/{memfds(pid)[0]}", "rb") as file:
        return int.from_bytes(file.read(4096 + 20)[4096 + 16:], "little") != 0


def case_after(job):
    """gpu-profiled run starts the containers: every execution from the first on."""
    bench = job.bench
    script = " & ".join(shlex.join(job.command(name, GPU_PROFILED_ARM="trace")) for name in CONTAINERS) + " & wait"
    daemon = bench.spawn([str(bench.daemon), "run", "--shim", str(job.shim), "-o", "job.pb.gz", "--summary-json", "job.json", "--",
                          "sh", "-c", script], bench.env())
    equal(daemon.wait(2 * PATIENCE), 0, "exit status")
    truths = job.truths()
    equal({truth["recorded_executions"] for truth in truths.values()}, {LAUNCHES}, "recorded of each")
    check_profile(job, truths, bench.dir / "job.pb.gz", json.loads((bench.dir / "job.json").read_text()))


CASES = {"before": case_before, "after": case_after}


def run(case, options):
    bench = Bench(options.build)
    cgroups = Cgroups(bench.dir)
    try:
        case(Job(bench, cgroups))
    finally:
        bench.end_processes()
        cgroups.close()
        bench.close()


if __name__ == "__main__":
    sys.exit(run_named_case(CASES, __doc__, run))
