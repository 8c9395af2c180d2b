# SPDX-License-Identifier: Apache-2.0
# gpu-profiled's shim and elfgate for NixOS and jetpack-nixos, and a check for packages of others.
# Parsed and evaluated against stand-ins for nixpkgs; never built (docs/cuda-compat.md).
#
#   nix-build docker/nix -A shim
#   nix-build docker/nix -A elfgate
{ pkgs ? import <nixpkgs> { config = { allowUnfree = true; cudaSupport = true; }; } }:

let
  elfgate = pkgs.callPackage ./elfgate.nix { };
in
{
  inherit elfgate;
  shim = pkgs.callPackage ./shim.nix { inherit elfgate; };
  # checkCudaCompatRunpath package: the same package, whose build fails where an ELF file of it
  # would find the driver's libcuda before cuda_compat's.
  checkCudaCompatRunpath = pkgs.callPackage ./check-compat-runpath.nix { inherit elfgate; };
}
