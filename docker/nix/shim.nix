# SPDX-License-Identifier: Apache-2.0
# The shim. Neither autoAddDriverRunpath nor autoAddCudaCompatRunpath: libcuda loads it, so libcuda is there
# already, whichever it is, and a run path of ours would only be one more way to a second one.
{ lib, stdenv, cmake, ninja, patchelf, cudaPackages, elfgate }:

let
  # cupti.h; cuda.h; crt/host_defines.h, which CUDA 13 has in a package of its own.
  headers = [ cudaPackages.cuda_cupti cudaPackages.cuda_cudart (cudaPackages.cuda_crt or cudaPackages.cuda_nvcc) ];
  policies = { x86_64-linux = "shim-build-x86_64"; aarch64-linux = "shim-build-aarch64"; };
  policy = policies.${stdenv.hostPlatform.system};
in
stdenv.mkDerivation {
  pname = "gpu-profiled-shim";
  version = "0.1.0";
  src = lib.cleanSource ../..;

  nativeBuildInputs = [ cmake ninja patchelf ];
  cmakeFlags = [
    "-DGPU_PROFILED_DAEMON=OFF"
    "-DGPU_PROFILED_TOOLS=OFF"
    "-DGPU_PROFILED_TESTS=OFF"
    "-DGPU_PROFILED_BENCH=OFF"
    "-DCUPTI_INCLUDE_DIR=${lib.concatMapStringsSep ";" (package: "${lib.getOutput "include" package}/include") headers}"
  ];

  # The C library is the one of the process; stdenv's linker would name ours.
  postFixup = ''
    patchelf --remove-rpath $out/lib/gpu-profiled/libgpu-profiled-cupti.so
  '';

  # After the fixup: what is checked is what is installed.
  doInstallCheck = true;
  nativeInstallCheckInputs = [ elfgate ];
  installCheckPhase = ''
    runHook preInstallCheck
    elfgate check $out/lib/gpu-profiled/libgpu-profiled-cupti.so \
      --policy ${elfgate}/share/elfgate/policies/${policy}.policy
    runHook postInstallCheck
  '';

  meta = {
    description = "Records CUDA launches and CUPTI's activity for gpu-profiled, while asked to";
    license = lib.licenses.asl20;
    platforms = lib.attrNames policies;
  };
}
