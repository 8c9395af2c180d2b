# SPDX-License-Identifier: Apache-2.0
"""Which libcuda a program runs on, and `run --cuda-compat`, on machines laid out like a data center's, a Jetson, NixOS.

Each case runs in a mount namespace and a root of its own: this machine's files under a layer that is thrown away, with
the fake libcuda where that system has its driver and its forward-compatibility package. What a libcuda's version is,
and how it fails, stands in a file beside it (tests/fake_cuda/README.md).

Run by ctest: cuda_compat.py CASE --build DIR. Needs root, for the namespace and eBPF."""

import json
import os
import shutil
import subprocess
import sys

import pprof_raw
from bench import Bench, check, check_accounting, equal, run_named_case

INSIDE = "GPU_PROFILED_TEST_IN_NAMESPACE"
MULTIARCH = f"/usr/lib/{os.uname().machine}-linux-gnu"
OPENGL = "/run/opengl-driver/lib"
NIX_DRIVER = "/nix/store/0000-nvidia-x11/lib"
NIX_COMPAT = "/nix/store/0000-cuda_compat/compat"
LAUNCHES = 300
# A second: that the shim's page is read before the program ends.
PROGRAMS = {"workload": ("--threads", 1, "--launches", LAUNCHES, "--rate", LAUNCHES),
            "workload_by_name": (LAUNCHES, LAUNCHES)}


class Root:
    """A root of its own, of this machine's files: what is written to it is gone afterwards."""

    def __init__(self, bench):
        self.bench = bench
        # Where every user can read them.
        bench.dir.chmod(0o755)
        self.shim = shutil.copy2(bench.shim, bench.dir)
        self.cupti = shutil.copy2(bench.build / "tests/fake_cuda/cupti12/libcupti.so.12", bench.dir)
        layer = bench.dir / "layer"
        layer.mkdir()
        mount("-t", "tmpfs", "tmpfs", layer)
        for name in ("upper", "work", "root"):
            (layer / name).mkdir()
        self.path = layer / "root"
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={layer}/upper,workdir={layer}/work", self.path)
        for name in ("/proc", "/dev"):
            mount("--rbind", name, self.inside(name))
        # An empty /sys with what eBPF needs, so that a kernel module can be pretended.
        mount("-t", "tmpfs", "tmpfs", self.inside("/sys"))
        mount("-t", "tmpfs", "tmpfs", self.inside("/usr/local"))
        for name in ("/sys/kernel", "/sys/devices", "/sys/bus", "/sys/fs"):
            self.inside(name).mkdir()
            mount("--rbind", name, self.inside(name))
        # Where a mount of its own holds the build tree or the programs, the layer below does not show it.
        for folder in (bench.build, bench.dir):
            if not (self.inside(folder) / ".").exists() or os.stat(folder).st_dev != os.stat("/").st_dev:
                self.inside(folder).mkdir(parents=True, exist_ok=True)
                mount("--bind", folder, self.inside(folder))
        # The RUNPATH of the programs leads here.
        self.runpath = bench.build / "tests/fake_cuda/lib"
        mount("-t", "tmpfs", "tmpfs", self.inside(self.runpath))
        for file in self.runpath.glob("libcudart*"):
            shutil.copy2(file, self.inside(file), follow_symlinks=False)
        for file in list(self.inside(MULTIARCH).glob("libcuda.so*")):
            file.unlink()

    def inside(self, path):
        return self.path / str(path).lstrip("/")

    def put(self, folder, name="libcuda.so.1.1", library=None, **settings):
        """A libcuda of that file name, and the link libcuda.so.1 that the loader follows."""
        place = self.inside(folder)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(library or self.bench.build / "tests/fake_cuda/lib/libcuda.so.1", place / name)
        (place / f"{name}.settings").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.link(name, f"{folder}/libcuda.so.1")

    def link(self, target, path):
        place = self.inside(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def write(self, path, text):
        self.inside(path).parent.mkdir(parents=True, exist_ok=True)
        self.inside(path).write_text(text)

    def kernel_module(self, release):
        self.write("/sys/module/nvidia/version", release + "\n")

    def loader_knows(self, folder):
        self.write("/etc/ld.so.conf.d/00-test.conf", folder + "\n")
        subprocess.run(["chroot", self.path, "ldconfig"], check=True, timeout=120)

    def env(self, **settings):
        settings.setdefault("FAKE_CUDA_TRUTH", self.bench.truth_file())
        env = self.bench.env(**settings)
        # The programs' own libraries alone: what leads to libcuda is the case's.
        env["LD_LIBRARY_PATH"] = settings.get("LD_LIBRARY_PATH", str(self.bench.programs))
        env["GPU_PROFILED_CUPTI_PATH"] = str(self.cupti)
        return env

    def run(self, *options, program="workload", prefix=(), expect=0, **settings):
        """(what the target ran on, the lines about it, the profile's comments, all of stderr)."""
        profile, summary = self.bench.dir / "c.pb.gz", self.bench.dir / "c.json"
        for file in (profile, summary):
            self.inside(file).unlink(missing_ok=True)
        command = ["chroot", str(self.path), str(self.bench.daemon), "run", "--shim", str(self.shim), "-o",
                   str(profile), "--summary-json", str(summary), *options, "--", *prefix,
                   *self.bench.workload(*PROGRAMS[program], name=program)]
        done = subprocess.run(command, env=self.env(**settings), capture_output=True, text=True, timeout=180,
                              check=False)
        equal(done.returncode, expect, f"exit status; {done.stderr}")
        lines = [line for line in done.stderr.splitlines() if "cuda_compat:" in line]
        if not self.inside(summary).exists():
            return None, lines, [], done.stderr
        result = json.loads(self.inside(summary).read_text())
        written = self.inside(profile)
        comments = pprof_raw.pprof("-comments", path=str(written)).splitlines() if written.exists() else []
        return result, lines, comments, done.stderr


def mount(*arguments):
    subprocess.run(["mount", *[str(a) for a in arguments]], check=True, timeout=60)


def expect_driver(got, kind, path, cuda, kernel="", told=""):
    """The program ran on this libcuda, was profiled whole, and the profile and the console say so."""
    result, lines, comments, stderr = got
    check(result is not None, f"no summary: {stderr}")
    equal(len(result["targets"]), 1, "targets")
    driver = result["targets"][0]["cuda_driver"]
    equal((driver["kind"], driver["path"], driver["cuda"], driver["kernel_module"]), (kind, path, cuda, kernel),
          f"libcuda ({stderr})")
    equal(driver["release"], path.split(".so.")[1] if not path.endswith(".so.1.1") else "", "release")
    check_accounting(result, LAUNCHES)
    check(any(f"CUDA {cuda} by {path} ({kind})" in comment for comment in comments), f"comments: {comments}")
    if told:
        equal(len(lines), 1, f"lines about cuda_compat ({stderr})")
        check(told in lines[0], f"'{told}' is not in: {lines[0]}")
    else:
        equal(lines, [], "lines about cuda_compat")


def data_center(root):
    """A driver of CUDA 12.2 with its kernel module; the toolkit's compat package has 12.9."""
    root.kernel_module("535.216.01")
    root.put(MULTIARCH, "libcuda.so.535.216.01", driver=12020)
    root.put("/usr/local/cuda-12.9/compat", "libcuda.so.575.57.08", driver=12090)
    root.link("cuda-12.9", "/usr/local/cuda")
    root.link(f"{MULTIARCH}/libcuda.so.1", root.runpath / "libcuda.so.1")


SYSTEM = ("system", f"{MULTIARCH}/libcuda.so.535.216.01", "12.2", "535.216.01")
COMPAT = ("cuda_compat", "/usr/local/cuda-12.9/compat/libcuda.so.575.57.08", "12.9", "535.216.01")


def case_data_center(root):
    """auto: LD_LIBRARY_PATH beats the program's RUNPATH, and one that dlopens by name; never without being asked."""
    data_center(root)
    expect_driver(root.run(), *SYSTEM)
    expect_driver(root.run("--cuda-compat", "never"), *SYSTEM)
    acts = "/usr/local/cuda/compat (CUDA 12.9) is put before the driver's libcuda (CUDA 12.2)"
    expect_driver(root.run("--cuda-compat", "auto"), *COMPAT, told=acts)
    expect_driver(root.run("--cuda-compat", "auto", program="workload_by_name"), *COMPAT, told=acts)
    expect_driver(root.run(program="workload_by_name"), *SYSTEM)
    expect_driver(root.run("--cuda-compat", "/usr/local/cuda-12.9/compat"), *COMPAT, told="is put before")
    # The command takes another one all the same: told at the end.
    result, lines, _, stderr = root.run("--cuda-compat", "auto",
                                        prefix=("env", f"LD_LIBRARY_PATH={root.bench.programs}"))
    equal(result["targets"][-1]["cuda_driver"]["kind"], "system", f"kind ({stderr})")
    equal(len(lines), 2, f"lines about cuda_compat ({stderr})")
    check(f"loaded {SYSTEM[1]} all the same" in lines[1], lines[1])
    # Already first: nothing to do.
    path = f"/usr/local/cuda/compat:{root.bench.programs}"
    expect_driver(root.run("--cuda-compat", "auto", LD_LIBRARY_PATH=path), *COMPAT, told="is found without it")


def case_not_newer(root):
    """An older or equal compat is never used; its version is what it answers, not what its name says."""
    data_center(root)
    for version in (12020, 12010):
        root.put("/usr/local/cuda-12.9/compat", "libcuda.so.575.57.08", driver=version)
        expect_driver(root.run("--cuda-compat", "auto"), *SYSTEM, told="not newer than the driver's 12.2")
        expect_driver(root.run("--cuda-compat", "/usr/local/cuda/compat"), *SYSTEM, told="not newer")
    _, _, _, stderr = root.run("--cuda-compat", "/nowhere", expect=2)
    check("there is no /nowhere/libcuda.so.1" in stderr, stderr)


def case_gpu_class(root):
    """A GPU without forward compatibility, and one that compat and module do not agree on."""
    for code, why in ((804, "data-center GPUs"), (803, "does not go with the loaded kernel module")):
        data_center(root)
        root.put("/usr/local/cuda-12.9/compat", "libcuda.so.575.57.08", driver=12090, init_fail=code)
        expect_driver(root.run("--cuda-compat", "auto"), *SYSTEM, told=why)


def case_jetson(root):
    """Vanilla JetPack: no kernel module's version, the loader's cache knows the driver; auto without being asked."""
    root.write("/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1\n")
    tegra = f"{MULTIARCH}/tegra"
    root.put(tegra, driver=12020)
    root.loader_knows(tegra)
    expect_driver(root.run(), "tegra", f"{tegra}/libcuda.so.1.1", "12.2")
    root.put("/usr/local/cuda-12.9/compat", driver=12090)
    root.link("cuda-12.9", "/usr/local/cuda")
    compat = ("cuda_compat", "/usr/local/cuda-12.9/compat/libcuda.so.1.1", "12.9")
    expect_driver(root.run(), *compat, told="is put before")
    expect_driver(root.run(program="workload_by_name"), *compat, told="is put before")
    expect_driver(root.run("--cuda-compat", "never"), "tegra", f"{tegra}/libcuda.so.1.1", "12.2")


def case_missing_libnvrm(root):
    """Jetson's compat libcuda needs the board's libnvrm libraries: without them it would not even load."""
    case_jetson(root)
    root.put("/usr/local/cuda-12.9/compat", library=root.bench.build / "tests/unit/cli/libasked_tegra.so")
    tegra = ("tegra", f"{MULTIARCH}/tegra/libcuda.so.1.1", "12.2")
    expect_driver(root.run(), *tegra)
    for option in ("auto", "/usr/local/cuda/compat"):
        expect_driver(root.run("--cuda-compat", option), *tegra, told="libnvrm_gpu.so: cannot open shared object file")


def nixos(root):
    """The loader knows no driver: programs have /run/opengl-driver/lib in their RUNPATH."""
    root.kernel_module("535.216.01")
    root.put(NIX_DRIVER, "libcuda.so.535.216.01", driver=12020)
    root.link(f"{NIX_DRIVER}/libcuda.so.1", f"{OPENGL}/libcuda.so.1")
    root.put(NIX_COMPAT, "libcuda.so.575.57.08", driver=12090)
    root.link(f"{OPENGL}/libcuda.so.1", root.runpath / "libcuda.so.1")


def case_nixos(root):
    nixos(root)
    expect_driver(root.run(), "nix", f"{NIX_DRIVER}/libcuda.so.535.216.01", "12.2", "535.216.01")
    expect_driver(root.run("--cuda-compat", NIX_COMPAT), "cuda_compat", f"{NIX_COMPAT}/libcuda.so.575.57.08", "12.9",
                  "535.216.01", told=f"{NIX_COMPAT} (CUDA 12.9) is put before the driver's libcuda (CUDA 12.2)")


def case_opengl_driver_holds_compat(root):
    """The system's choice of compat is told as that, and neither replaced nor put before itself."""
    nixos(root)
    root.link(f"{NIX_COMPAT}/libcuda.so.1", f"{OPENGL}/libcuda.so.1")
    compat = ("cuda_compat", f"{NIX_COMPAT}/libcuda.so.575.57.08", "12.9", "535.216.01")
    expect_driver(root.run(), *compat)
    expect_driver(root.run("--cuda-compat", NIX_COMPAT), *compat, told="is found without it")
    root.put("/usr/local/cuda/compat", "libcuda.so.550.54.15", driver=12040)
    expect_driver(root.run("--cuda-compat", "auto"), *compat, told="not newer than the driver's 12.9")


def case_old_compat_in_runpath(root):
    """Built against an old compat, run under a newer kernel module: explained in one line, and the way out works."""
    nixos(root)
    root.kernel_module("580.159.04")
    root.put(NIX_DRIVER, "libcuda.so.580.159.04", driver=13000)
    root.put(NIX_COMPAT, "libcuda.so.575.57.08", driver=12090, subscribe_fail=999)
    root.link(f"{NIX_COMPAT}/libcuda.so.1", root.runpath / "libcuda.so.1")
    result, _, _, stderr = root.run()
    why = f"{NIX_COMPAT}/libcuda.so.575.57.08 is older than the kernel module 580.159.04"
    check(why in stderr, f"not explained: {stderr}")
    check("cuInit 803" in stderr and "LD_LIBRARY_PATH" in stderr, stderr)
    for line in stderr.splitlines():
        check(why not in line or line.count(why) == 1, f"said twice in a line: {line}")
    check(result is None or result["total"]["executions"]["received"] == 0, "it was traced")
    # Where cuInit fails before it loads the shim, the program's memory tells.
    root.put(NIX_COMPAT, "libcuda.so.575.57.08", driver=12090, init_fail=803)
    result, _, _, stderr = root.run(program="workload_by_name", expect=2, LD_LIBRARY_PATH=NIX_COMPAT)
    check(result is None, "a summary of nothing")
    check("the command never initialised CUDA" in stderr and why in stderr, f"not explained: {stderr}")
    # Or after that, as NVIDIA's does: the shim is there, and no CUDA.
    root.put(NIX_COMPAT, "libcuda.so.575.57.08", driver=12090, init_fail_late=803)
    init = "import ctypes, time; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True); time.sleep(60)"
    env = root.env(LD_LIBRARY_PATH=NIX_COMPAT) | {"CUDA_INJECTION64_PATH": str(root.shim)}
    with subprocess.Popen(["chroot", str(root.path), "/usr/bin/python3", "-c", init], env=env, stdout=subprocess.PIPE,
                          text=True) as process:
        equal(process.stdout.readline().strip(), "803", "cuInit")
        doctor = ["chroot", str(root.path), str(root.bench.daemon), "doctor", "--json", "--pid", str(process.pid)]
        done = subprocess.run(doctor, env=root.env(), capture_output=True, text=True, timeout=60, check=False)
        process.kill()
    row = json.loads(done.stdout)["processes"][0]
    equal((done.returncode, row["state"]), (3, "broken"), done.stdout)
    check(row["finding"].startswith("CUDA does not work in it: " + why), row["finding"])
    check(not any(why in warning for warning in row["warnings"]), "said twice")
    path = f"{OPENGL}:{root.bench.programs}"
    expect_driver(root.run(LD_LIBRARY_PATH=path), "nix", f"{NIX_DRIVER}/libcuda.so.580.159.04", "13.0", "580.159.04")


def case_asked_as_the_user(root):
    """A compat that only root may read is none for a command of another user."""
    data_center(root)
    root.inside("/usr/local/cuda-12.9/compat").chmod(0o700)
    result, lines, _, stderr = root.run("--cuda-compat", "auto", "--user", "nobody", program="workload_by_name",
                                        FAKE_CUDA_TRUTH="/dev/null")
    equal(result["targets"][0]["cuda_driver"]["kind"], "system", f"kind ({stderr})")
    equal(len(lines), 1, f"lines ({stderr})")
    check("Permission denied" in lines[0], lines[0])


def main():
    cases = {name.removeprefix("case_"): function for name, function in globals().items() if name.startswith("case_")}
    if os.geteuid() == 0 and INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])

    def run(function, options):
        bench = Bench(os.path.abspath(options.build))
        try:
            function(Root(bench))
        finally:
            for folder in (bench.dir / "layer/root", bench.dir / "layer"):
                subprocess.run(["umount", "-R", "-l", folder], stderr=subprocess.DEVNULL, check=False)
            bench.close()

    return run_named_case(cases, __doc__.split("\n", maxsplit=1)[0], run)


if __name__ == "__main__":
    sys.exit(main())
