# SPDX-License-Identifier: Apache-2.0
{ lib, stdenv, cmake, ninja, pkg-config, elfutils, tl-expected }:

stdenv.mkDerivation {
  pname = "elfgate";
  version = "0.1.0";
  src = lib.cleanSource ../..;

  nativeBuildInputs = [ cmake ninja pkg-config ];
  buildInputs = [ elfutils tl-expected ];
  cmakeFlags = [
    "-DGPU_PROFILED_SHIM=OFF"
    "-DGPU_PROFILED_DAEMON=OFF"
    "-DGPU_PROFILED_TESTS=OFF"
    "-DGPU_PROFILED_BENCH=OFF"
  ];
  ninjaFlags = [ "elfgate" ];
  installPhase = ''
    runHook preInstall
    install -D -t $out/bin tools/elfgate/elfgate
    install -D -m 644 -t $out/share/elfgate/policies ../tools/elfgate/policies/*.policy
    runHook postInstall
  '';

  meta = {
    description = "Checks what an ELF file asks of the systems that load it";
    license = lib.licenses.asl20;
    mainProgram = "elfgate";
  };
}
