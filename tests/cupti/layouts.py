# SPDX-License-Identifier: Apache-2.0
"""Where CUPTI lies on real systems: each layout places a release in a root and answers (its path, the steps before CUDA
is used, environment)."""
from root import LIBRARIES

SITE = "/opt/venv/lib/python3.12/site-packages"
CONDA = "/opt/conda/envs/x"


def toolkit(root, release, default=True, folder="/usr/local"):
    version = "13.9" if release == "newest" else release
    home = f"{folder}/cuda-{version}"
    path = root.cupti(release, f"{home}/targets/x86_64-linux/lib/libcupti.so.2025.9.1")
    root.link(f"{home}/targets/x86_64-linux/lib/{root.machine.soname(release)}", "libcupti.so.2025.9.1")
    root.link(f"{home}/lib64", "targets/x86_64-linux/lib")
    if default:
        root.link(f"{folder}/cuda", f"cuda-{version}")
    return path, (), {}


def toolkit_alone(root, release):
    return toolkit(root, release, default=False)


def toolkit_by_variable(root, release):
    path, steps, _ = toolkit(root, release, default=False, folder="/srv")
    return path, steps, {"CUDA_HOME": path.partition("/targets")[0]}


def toolkit_extras(root, release):
    return root.cupti(release, "/usr/local/cuda/extras/CUPTI/lib64/"), (), {}


def pip_cu12(root, release):
    return (root.cupti(release, f"{SITE}/nvidia/cuda_cupti/lib/"),
            ("open", root.library(f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12")), {})


def pip_cu12_torch(root, release):
    return (root.cupti(release, f"{SITE}/nvidia/cuda_cupti/lib/"),
            ("open", root.library(f"{SITE}/torch/lib/libtorch_cuda.so")), {})


def pip_cu12_other(root, release):
    """Numba, JAX: none of the libraries that are known by name is mapped."""
    return (root.cupti(release, f"{SITE}/nvidia/cuda_cupti/lib/"),
            ("open", root.library(f"{SITE}/llvmlite/binding/libllvmlite.so")), {})


def pip_cu13(root, release):
    return (root.cupti(release, f"{SITE}/nvidia/cu13/lib/"),
            ("open", root.library(f"{SITE}/nvidia/cu13/lib/libcudart.so.13")), {})


def conda(root, release):
    return root.cupti(release, f"{CONDA}/lib/"), ("open", root.library(f"{CONDA}/lib/libcudart.so.12")), {}


def conda_activated(root, release):
    return root.cupti(release, f"{CONDA}/lib/"), (), {"CONDA_PREFIX": CONDA}


def triton(root, release):
    return (root.cupti(release, f"{SITE}/triton/backends/nvidia/lib/cupti/"),
            ("open", root.library(f"{SITE}/triton/_C/libtriton.so")), {})


def debian(root, release):
    return root.cupti(release, f"{LIBRARIES}/"), (), {}


def nix(root, release):
    store = "/nix/store/0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
    root.link("/run/opengl-driver/lib/libcuda.so.1", f"{LIBRARIES}/libcuda.so.1")
    path = root.cupti(release, f"{store}-cuda_cupti/lib/")
    app = root.library(f"{store}-app/lib/python3.12/app.so", "", f"-Wl,--enable-new-dtags,-rpath,{store}-cuda_cupti/lib")
    return path, ("open", app), {"LD_LIBRARY_PATH": "/run/opengl-driver/lib"}


ALL = ("11.8", "12.0", "12.4", "12.9", "13.0", "13.2", "newest")
CU12, CU13 = ("12.0", "12.4", "12.9"), ("13.0", "13.2", "newest")
LAYOUTS = ((toolkit, ALL), (toolkit_alone, ("12.9", "13.0")), (toolkit_by_variable, ("12.4",)), (toolkit_extras, ("11.8", "12.9", "13.0")),
           (pip_cu12, ("11.8", *CU12)), (pip_cu12_torch, CU12), (pip_cu12_other, ("12.9",)), (pip_cu13, CU13),
           (conda, ("12.4", "12.9", "13.0")), (conda_activated, ("12.9",)), (triton, ("12.4", "12.9", "13.0")),
           (debian, ("11.8", "12.4", "13.0")), (nix, ALL))
