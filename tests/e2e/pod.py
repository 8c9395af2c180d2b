# SPDX-License-Identifier: Apache-2.0
"""The examples of docker/ as they are written, without an engine: their containers are started with the namespaces,
mounts, users, capabilities and commands that the manifests give them (container.py), the program on the fake driver.

Run by ctest: pod.py CASE --build DIR. Needs root. With GPU_PROFILED_TEST_IMAGES=FOLDER (scripts/docker-steps) the
images' own files are used, else this system's beside the build's."""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys

import yaml

import pprof_raw
from bench import PATIENCE, check, check_accounting, equal, read_truth, wait_for, wait_for_memfd, emitted
from container import mask_of
from endurance import main

SOURCE = pathlib.Path(__file__).resolve().parents[2]
OWNER = 64003  # the program's user
SHIM = "libgpu-profiled-cupti.so"
SYSTEM = ("/usr", "/etc")


def documents(name):
    return list(yaml.safe_load_all((SOURCE / "docker" / name).read_text()))


def by_name(items, name):
    return next(item for item in items if item["name"] == name)


class Engine:
    """Images, volumes and started containers, all in the bench's folder."""

    def __init__(self, bench):
        self.bench = bench
        bench.dir.chmod(0o755)
        self.images = {"gpu-profiled": self.image("daemon"), "gpu-profiled-shim": self.image("shim"),
                       "my-training-image": self.program_image()}
        self.volumes = {}
        self.started = 0

    def system_image(self, name):
        """This system's programs and libraries, mounted read-only; the folders that a container has."""
        folder = self.bench.dir / "images" / name
        for path in (*SYSTEM, "/proc", "/sys", "/tmp", "/dev", "/profiles", "/opt/gpu-profiled", "/own"):
            (folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for path in ("bin", "sbin", "lib", "lib64"):
            (folder / path).symlink_to(f"usr/{path}")
        for device in ("null", "urandom"):
            (folder / "dev" / device).touch()
        return folder

    def image(self, name):
        folder = self.system_image(name)
        built = os.environ.get("GPU_PROFILED_TEST_IMAGES")
        if built:
            for path in ("bin", "sbin", "lib", "lib64"):
                (folder / path).unlink()
            shutil.copytree(pathlib.Path(built) / name, folder, symlinks=True, dirs_exist_ok=True)
            return {"folder": folder, "system": (), "path": "/bin"}
        shutil.copy2(self.bench.daemon, folder / "own/gpu-profiled")
        for script in ("profile-injected", "copy-shim"):
            shutil.copy2(SOURCE / "docker" / script, folder / "own")
        (folder / "shim").mkdir()
        shutil.copy2(self.bench.shim, folder / "shim")
        (folder / "bin").unlink()
        (folder / "bin").mkdir()
        (folder / "bin/sh").symlink_to("/usr/bin/sh")
        (folder / "bin/copy-shim").symlink_to("/own/copy-shim")
        return {"folder": folder, "system": SYSTEM, "path": "/own:/usr/bin:/usr/sbin"}

    def program_image(self):
        folder = self.system_image("program")
        libraries = folder / "own"
        fake = self.bench.build / "tests/fake_cuda"
        for source in (self.bench.programs, fake / "lib", fake / "cupti13"):
            for path in source.iterdir():
                if path.is_file():
                    shutil.copy2(path, libraries)
        return {"folder": folder, "system": SYSTEM, "path": "/own:/usr/bin"}

    def volume(self, name, owner=0):
        """An emptyDir, or a folder of the node: one folder for all who mount it."""
        if name not in self.volumes:
            self.volumes[name] = self.bench.dir / "volumes" / str(len(self.volumes))
            self.volumes[name].mkdir(parents=True)
            self.volumes[name].chmod(0o777 if owner else 0o755)
            os.chown(self.volumes[name], owner, owner)
        return self.volumes[name]

    def start(self, container, mounts, command, processes=None, uid=None, environment=None, **options):
        """A container of a pod: as command(); `options` are of the process."""
        return self.bench.spawn(self.command(container, mounts, command, processes, uid, environment), dict(os.environ), **options)

    def command(self, container, mounts, command, processes=None, uid=None, environment=None, user_namespace=False):
        """What starts a container of a pod: `mounts` are (folder, path, read-only), `processes` a process of the process
        namespace to join (None: the node's)."""
        security = container.get("securityContext", {})
        image = self.images[container["image"]]
        self.started += 1
        root = self.bench.dir / f"root-{self.started}"
        root.mkdir()
        for _, path, _ in mounts:
            place = image["folder"] / path.lstrip("/")
            if not place.exists():
                place.mkdir(parents=True)
        wanted = {
            "root": str(root), "image": str(image["folder"]), "directory": "/profiles", "command": command,
            "system": [(path, path) for path in (*image["system"], "/dev/null", "/dev/urandom")],
            "volumes": [(str(folder), path, read_only) for folder, path, read_only in mounts],
            "read_only": security.get("readOnlyRootFilesystem", False),
            "uid": security.get("runAsUser", 0) if uid is None else uid,
            "capabilities": security.get("capabilities", {}).get("add", []),
            "user_namespace": user_namespace,
            "no_new_privileges": not security.get("allowPrivilegeEscalation", True),
            "environment": {"PATH": image["path"], **{e["name"]: e["value"] for e in container.get("env", [])},
                            **(environment or {})},
        }
        description = self.bench.dir / f"container-{self.started}.json"
        description.write_text(json.dumps(wanted))
        join = ["nsenter", f"--pid=/proc/{processes}/ns/pid", "--"] if processes else []
        return [*join, "unshare", "--mount", "--ipc", "--uts", "--net", "--", sys.executable,
                str(pathlib.Path(__file__).parent / "container.py"), str(description)]

    def pause(self):
        """The first process of a pod's process namespace; its number here."""
        first = self.bench.spawn(["unshare", "--pid", "--fork", "--kill-child", "sleep", "infinity"], dict(os.environ))
        children = pathlib.Path(f"/proc/{first.pid}/task/{first.pid}/children")
        wait_for(lambda: children.read_text().split(), "the pod's first process")
        return int(children.read_text().split()[0])


def descendant(process, name):
    """The process called `name` that `process` is or has started: nsenter --pid forks."""
    pids = [process.pid]
    for pid in pids:
        try:
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name[:15]:
                return pid
            pids += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            continue
    return None


def wait_for_program(process, name):
    wait_for(lambda: process.poll() is not None or descendant(process, name), f"{name} runs")
    equal(process.poll(), None, f"{name} ended")
    return descendant(process, name)


def check_rights(pid, container):
    """A process of a container has what its manifest gives, and no more."""
    security = container["securityContext"]
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":", 1) for line in file)
    equal(int(status["CapEff"], 16), mask_of(security["capabilities"]["add"]), f"capabilities of {status['Name'].strip()}")
    equal(status["NoNewPrivs"].strip() == "1" or security["allowPrivilegeEscalation"], True, "no_new_privs")
    equal(status["Seccomp"].strip(), "2", "a seccomp profile")


def mounts_of(engine, container, volumes):
    found = []
    for mount in container.get("volumeMounts", []):
        volume = by_name(volumes, mount["name"])
        # An emptyDir is anybody's.
        folder = engine.volume(volume["name"], owner=0 if "hostPath" in volume else OWNER)
        found.append((folder, mount["mountPath"], mount.get("readOnly", False)))
    return found


def install_shim(engine, spec, processes):
    """The init container runs, and a second time changes nothing; the shim is there for all to read."""
    init = by_name(spec["initContainers"], "shim")
    inodes = []
    for wanted in ("is new", "is up to date"):
        done = engine.start(init, mounts_of(engine, init, spec["volumes"]), ["sh", "/bin/copy-shim", "/opt/gpu-profiled"],
                            processes, stdout=subprocess.PIPE, text=True)
        told = done.communicate(timeout=PATIENCE)[0]
        equal(done.returncode, 0, f"the init container's exit status ({told})")
        check(wanted in told, f"it says: {told}")
        shim = engine.volumes["shim"] / SHIM
        equal(sorted(path.name for path in engine.volumes["shim"].iterdir()), [SHIM], "files in the volume")
        equal(stat.S_IMODE(shim.stat().st_mode), 0o644, "the shim's mode")
        inodes.append(shim.stat().st_ino)
    equal(inodes[0], inodes[1], "the shim's inode after a second start")
    return shim


def start_program(engine, container, mounts, environment=None):
    """The pod's program, as a user without rights, in a process namespace of the pod."""
    pause = engine.pause()
    results = engine.volume("results", owner=OWNER)
    settings = {"LD_LIBRARY_PATH": "/own", "GPU_PROFILED_CUPTI_PATH": "/own/libcupti.so.13", "FAKE_CUDA_INSTANT": "1",
                "FAKE_CUDA_TRUTH": "/profiles/truth.json", **(environment or {})}
    program = engine.start(container, [*mounts, (results, "/profiles", False)],
                           ["workload", "--threads", "2", "--launches", "0", "--rate", "1000", "--memcpy-every", "20"], pause,
                           uid=OWNER, environment=settings, stdout=subprocess.DEVNULL)
    pid = wait_for_program(program, "workload")
    wait_for_memfd(pid)
    return pause, program, pid, results / "truth.json"


def profile_program(engine, container, volumes, processes, program, command):
    """`command` in gpu-profiled's container, whose rights are the manifest's, until 2,000 executions were seen; the
    profile has each. What gpu-profiled said on standard error."""
    process, pid, truth = program
    mounts = mounts_of(engine, container, volumes)
    idle = engine.start(container, mounts, container["command"], processes)
    check_rights(wait_for_program(idle, "sleep"), container)
    with (engine.bench.dir / "told").open("w+") as told:
        profiler = engine.start(container, mounts, [*command, "-o", "/profiles/x.pb.gz", "--summary-json", "/profiles/x.json"],
                                processes, stderr=told)
        wait_for(lambda: profiler.poll() is not None or emitted(pid) >= 2000, "2,000 executions")
        if profiler.poll() is None:
            daemon = wait_for_program(profiler, "gpu-profiled")
            check_rights(daemon, container)
            os.kill(daemon, signal.SIGINT)
        code = profiler.wait(PATIENCE)
        told.seek(0)
        text = told.read()
    equal(code, 0, f"exit status ({text})")
    os.kill(pid, signal.SIGTERM)
    equal(process.wait(PATIENCE), 0, "the program's exit status")
    recorded = read_truth(truth)
    folder = engine.volumes["profiles"]
    summary = json.loads((folder / "x.json").read_text())
    check_accounting(summary, recorded["recorded_executions"])
    stacks = summary["targets"][0]["stacks"]
    check(stacks["taken"] > 0, "no stack")
    equal(stacks["whole"], stacks["taken"], "stacks unwound whole")
    profile = pprof_raw.load(folder / "x.pb.gz")
    equal(profile.total(), recorded["recorded_gpu_ns"], "gpu_time")
    names = {name for row in recorded["rows"] for name in row["stack"]}
    for sample in profile.samples:
        check(names & set(sample.functions), f"no function of the program's: {sample.functions}")
    print(f"{recorded['recorded_executions']} executions, {stacks['taken']} stacks, all whole")
    return text


def case_sidecar(bench):
    """The pod of sidecar.yaml: its own init container, program and profiler, the profiler in the pod's process
    namespace with six capabilities."""
    engine = Engine(bench)
    spec = documents("kubernetes/sidecar.yaml")[0]["spec"]
    check(spec["shareProcessNamespace"], "no shared process namespace")
    install_shim(engine, spec, engine.pause())
    train = by_name(spec["containers"], "train")
    pause, *program = start_program(engine, train, mounts_of(engine, train, spec["volumes"]))
    # As a forked child of the program: the shim, but no status page.
    worker = engine.start(train, mounts_of(engine, train, spec["volumes"]), ["sleep", "infinity"], pause, uid=OWNER,
                          environment={"LD_PRELOAD": f"/opt/gpu-profiled/{SHIM}"})
    maps = pathlib.Path(f"/proc/{wait_for_program(worker, 'sleep')}/maps")
    wait_for(lambda: SHIM in maps.read_text(), "the worker has the shim")
    told = profile_program(engine, by_name(spec["containers"], "gpu-profiled"), spec["volumes"], pause, program,
                           ["sh", script_in(engine, "profile-injected"), "--wait", "60"])
    check("declined" not in told, f"the worker was taken for a target: {told}")


def script_in(engine, script):
    """The script's path in the profiler's image."""
    return f"/bin/{script}" if not engine.images["gpu-profiled"]["system"] else f"/own/{script}"


def case_daemonset(bench):
    """The DaemonSet's profiler with the node's processes, and a program that got the shim by the CDI device: the
    program's files, user and process namespace are others."""
    engine = Engine(bench)
    spec = next(d for d in documents("kubernetes/daemonset.yaml") if d["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    check(spec["hostPID"], "not the node's processes")
    shim = install_shim(engine, spec, None)
    edits = documents("cdi/gpu-profiled.yaml")[0]["devices"][0]["containerEdits"]
    equal([mount["hostPath"] for mount in edits["mounts"]], [f"/opt/gpu-profiled/{SHIM}"], "what the device mounts")
    (engine.images["my-training-image"]["folder"] / "opt/gpu-profiled" / SHIM).touch()
    environment = dict(entry.split("=", 1) for entry in edits["env"])
    _, *program = start_program(engine, {"image": "my-training-image"},
                                [(shim, mount["containerPath"], "ro" in mount["options"]) for mount in edits["mounts"]], environment)
    profile_program(engine, by_name(spec["containers"], "gpu-profiled"), spec["volumes"], None, program,
                    ["gpu-profiled", "--pid", str(program[1])])


def of_compose(service):
    """A compose service as a pod's container, with its volumes."""
    container = {
        "name": service["image"], "image": service["image"], "command": service.get("entrypoint"),
        "env": [{"name": name, "value": value} for name, value in service.get("environment", {}).items()],
        "securityContext": {"runAsUser": 0, "capabilities": {"add": service.get("cap_add", [])},
                            "allowPrivilegeEscalation": "no-new-privileges:true" not in service.get("security_opt", [])},
        "volumeMounts": [],
    }
    for entry in service["volumes"]:
        source, path, *options = entry.split(":")
        container["volumeMounts"].append({"name": pathlib.Path(source).name, "mountPath": path, "readOnly": "ro" in options})
    return container


def case_compose(bench):
    """The services of compose.yaml: the shim's volume, the program, and the profiler in its process namespace."""
    engine = Engine(bench)
    services = documents("compose.yaml")[0]["services"]
    equal(services["gpu-profiled"]["pid"], "service:train", "the profiler's process namespace")
    equal([service.get("cap_drop") for service in services.values()], [None, None, ["ALL"]], "what is dropped")
    volumes = [{"name": "shim", "hostPath": {}}, {"name": "profiles", "hostPath": {}}]
    install_shim(engine, {"initContainers": [{**of_compose(services["shim"]), "name": "shim"}], "volumes": volumes}, engine.pause())
    train = {**of_compose(services["train"]), "image": "my-training-image"}
    pause, *program = start_program(engine, train, mounts_of(engine, train, volumes))
    profile_program(engine, of_compose(services["gpu-profiled"]), volumes, pause, program,
                    ["sh", script_in(engine, "profile-injected"), "--wait", "60"])


def case_older_kernel(bench):
    """Without uprobe_multi (Linux before 6.6) the six capabilities are refused by name, and with SYS_ADMIN, as the
    manifests' comments say, the same container profiles; no tracefs is mounted."""
    engine = Engine(bench)
    spec = documents("kubernetes/sidecar.yaml")[0]["spec"]
    install_shim(engine, spec, engine.pause())
    train, profiler = by_name(spec["containers"], "train"), by_name(spec["containers"], "gpu-profiled")
    pause, *program = start_program(engine, train, mounts_of(engine, train, spec["volumes"]))
    inside = pathlib.Path(f"/proc/{program[1]}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1]
    command = ["gpu-profiled", "--debug-no-uprobe-multi", "--pid", inside]
    refused = engine.start(profiler, mounts_of(engine, profiler, spec["volumes"]), [*command, "--duration", "1s"], pause,
                           stderr=subprocess.PIPE, text=True)
    told = refused.communicate(timeout=PATIENCE)[1]
    check(refused.returncode in (1, 3) and "CAP_SYS_ADMIN" in told, f"exit {refused.returncode}: {told}")
    profiler["securityContext"]["capabilities"]["add"].append("SYS_ADMIN")
    profiler["securityContext"]["allowPrivilegeEscalation"] = True
    profile_program(engine, profiler, spec["volumes"], pause, program, command)


CASES = {"sidecar": case_sidecar, "daemonset": case_daemonset, "compose": case_compose, "older_kernel": case_older_kernel}

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
