# SPDX-License-Identifier: Apache-2.0
"""Root file systems with the machine's C library, a stand-in for the driver and real libcuptis, and what a process
in one says of the copy that the shim chose. Needs root; paths in them are the ones of real systems."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SHIM = "/opt/gpu-profiled/libgpu-profiled-cupti.so"
IDLE, DECLINED = 2, 1
MAPPED, LOADED = 1, 2
LINE_BYTES = 1024


class Failure(Exception):
    pass


def expect(holds, message):
    if not holds:
        raise Failure(message)


class Outcome:
    """What a process said: its own lines, the status page, the mapped files, and standard error."""

    def __init__(self, done):
        expect(done.returncode == 0, f"exit {done.returncode}: {done.stderr.strip()}")
        self.errors = done.stderr.splitlines()
        self.said = {}
        self.mapped = {}  # path: identity of the file
        for line in done.stdout.splitlines():
            key, _, value = line.partition(": ")
            if key == "map":
                identity, _, path = value.partition(" ")
                self.mapped[path.removesuffix(" (deleted)")] = identity
            else:
                self.said[key] = value
        expect("went on" in self.said, "did not go on to its end")
        self.state, self.reason = int(self.said.get("state", 0)), int(self.said.get("reason", 0))
        self.version, self.origin = int(self.said.get("version", 0)), int(self.said.get("origin", 0))
        self.path, self.text = self.said.get("path", ""), self.said.get("text", "")


class Machine:
    """The files that every root has: the C library with what the others need, driver, shim, host."""

    def __init__(self, build, cupti_folder):
        self.build = pathlib.Path(build)
        self.host = self.build / "tests/cupti/cupti_host"
        self.shim = self.build / "shim/libgpu-profiled-cupti.so"
        self.daemon = self.build / "daemon/gpu-profiled"
        self.driver = self.build / "tests/fake_cuda/lib/libcuda.so.1"
        self.cuptis = {folder.name: next(folder.glob("libcupti.so.*")) for folder in sorted(pathlib.Path(cupti_folder).iterdir())
                       if folder.is_dir()}
        self.base = set()
        for file in (self.host, self.shim, self.driver, *self.cuptis.values()):
            listing = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
            self.base.update(pathlib.Path(path) for path in re.findall(r"(/\S+) \(0x", listing)
                             if not path.startswith(str(self.build.resolve())))

    def soname(self, release):
        return self.cuptis[release].name


class Root:
    """with Root(machine) as root: place files, then run()."""

    def __init__(self, machine):
        self.machine = machine
        self.folder = None
        self.copies = {}  # path of each libcupti: identity

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpuprof-cupti-"))
        self.folder.chmod(0o755)
        for folder in (LIBRARIES, "/usr/lib64", "/proc", "/tmp", "/opt/gpu-profiled"):
            self.real(folder).mkdir(parents=True, exist_ok=True)
        for link in ("lib", "lib64"):
            (self.folder / link).symlink_to(f"usr/{link}")
        for file in self.machine.base:
            place = "/usr/lib64" if file.name.startswith("ld-linux") else LIBRARIES
            shutil.copy(file, self.real(place) / file.name)
        shutil.copy(next(self.real("/usr/lib64").iterdir()), self.real(LIBRARIES))
        shutil.copy(self.machine.driver, self.real(LIBRARIES) / "libcuda.so.1")
        shutil.copy(self.machine.shim, self.real(SHIM))
        shutil.copy(self.machine.host, self.real("/opt/host"))
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def real(self, path):
        return self.folder / path.lstrip("/")

    def cupti(self, release, path):
        """A libcupti at a path, whose last part may be '' for its own soname. Answers the path."""
        if path.endswith("/"):
            path += self.machine.soname(release)
        self.real(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.machine.cuptis[release], self.real(path))
        self.copies[path] = self.identity(path)
        return path

    def identity(self, path):
        status = os.stat(self.real(path))
        return f"{os.major(status.st_dev):x}:{os.minor(status.st_dev):x}:{status.st_ino}"

    def link(self, path, target):
        self.real(path).parent.mkdir(parents=True, exist_ok=True)
        self.real(path).symlink_to(target)

    def library(self, path, source="", *options):
        """A shared object of our own."""
        self.real(path).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.real(path), "-x", "c", "-", "-x", "none", *options], check=True, text=True,
                       input=source or "int stand_in;", capture_output=True)
        return path

    def start(self, *steps, driver="13.0", shim=True, **environment):
        """A process with these steps of host.c, behind unshare; `driver`: the CUDA release of the driver."""
        major, minor = driver.split(".")
        # Without a GPU the hash callback is refused, and the subscriber would be asked for in its stead.
        environment = {"FAKE_CUDA_DRIVER": str(int(major) * 1000 + int(minor) * 10), "GPU_PROFILED_MODULES": "off", **environment}
        if shim:
            environment["CUDA_INJECTION64_PATH"] = SHIM
        inside = 'mount -t proc proc "$0/proc"; exec chroot "$0" /opt/host "$@"'
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-ec", inside, self.folder, *steps],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment})

    def run(self, *steps, **how):
        """The same to its end."""
        with self.start(*steps, **how) as started:
            out, err = started.communicate(timeout=120)
            return Outcome(subprocess.CompletedProcess(steps, started.returncode, out, err))

    def profiled(self, *steps, **how):
        """What gpu-profiled says of a process that waits after these steps."""
        with self.start(*steps, "wait", **how) as started:
            for line in started.stdout:
                if line.startswith("cuInit"):
                    break
            (pid,) = pathlib.Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
            said = subprocess.run([self.machine.daemon, "--pid", pid, "--duration", "1s", "-o", self.real("/tmp/x.pb.gz")],
                                  capture_output=True, text=True, check=False, timeout=120).stderr
            started.communicate(timeout=120)
        return said.splitlines()

    def one_copy(self, outcome):
        """The path of the one libcupti that is mapped."""
        # Of a removed file too, hence by identity, where overlay file systems do not show another device.
        inodes = {identity.rpartition(":")[2]: path for path, identity in self.copies.items()}
        mapped = {identity: path for path, identity in outcome.mapped.items() if identity.rpartition(":")[2] in inodes}
        expect(len(mapped) == 1, f"{len(mapped)} copies are mapped: {', '.join(mapped.values()) or 'none'}")
        (identity,) = mapped
        return inodes[identity.rpartition(":")[2]]
