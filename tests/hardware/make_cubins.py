# SPDX-License-Identifier: Apache-2.0
"""make_cubins.py OUT NVCC: what stand_in loads. The real CUDA sources' cubins; kernels named as Triton's, whose lines
are those of pc_torch.py, by #line; kernels without lines, as a library's."""
import pathlib
import subprocess
import sys

import device_code as code

HERE = pathlib.Path(__file__).resolve().parent
VENDOR_KERNELS = ("cutlass_gemm_stand_in", "bessel_j0_beat", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")


def triton_source(python_file):
    ranges = code.function_ranges(str(python_file))
    return "".join(f'#line {ranges[name][0][1] - 1} "{python_file}"\n'
                   f'extern "C" __global__ void {name}(float* out, float x) '
                   f"{{ for (int i = 0; i < 99; ++i) x = x * x + 1; out[threadIdx.x] = x; }}\n"
                   for name in ("triton_softmax", "triton_horner"))


def main():
    out, nvcc = pathlib.Path(sys.argv[1]), sys.argv[2]
    out.mkdir(exist_ok=True)
    (out / "triton.cu").write_text(triton_source(HERE / "pc_torch.py"))
    (out / "vendor.cu").write_text("".join(f'extern "C" __global__ void {name}(float* out) {{ out[threadIdx.x] += 1; }}\n'
                                           for name in VENDOR_KERNELS))
    for source, options in ((HERE / "w2.cu", ["-lineinfo"]), (HERE / "hot_loops.cu", ["-lineinfo"]),
                            (out / "triton.cu", ["-lineinfo"]), (out / "vendor.cu", [])):
        subprocess.run([nvcc, "-std=c++17", "-O2", "-arch=sm_90", "-cubin", *options, "-o", out / f"{source.stem}.cubin",
                        source], check=True, timeout=300)


if __name__ == "__main__":
    main()
