# SPDX-License-Identifier: Apache-2.0
# For packages with nativeBuildInputs = [ autoAddDriverRunpath cudaPackages.autoAddCudaCompatRunpath ], in this order: each
# hook puts its directory before what is there, so the last one is found first. In the other order, or with the
# driver's hook added again by a later override, the compat libcuda is never loaded, and nothing says so.
{ cudaPackages, elfgate }:

package:
# As the hook itself, which does nothing where nixpkgs has no cuda_compat for the platform.
if !(cudaPackages.cuda_compat.meta.available or false) then
  package
else
  package.overrideAttrs (old: {
    # The hooks run at the end of the fixup phase; this comes after it.
    preDistPhases = (old.preDistPhases or [ ]) ++ [ "checkCudaCompatRunpathPhase" ];
    # Files that never load CUDA need no run path. Those that do are told by the driver's directory in theirs,
    # which autoAddDriverRunpath has put there.
    checkCudaCompatRunpathPhase = ''
      runHook preCheckCudaCompatRunpath
      checked=0
      for output in $(getAllOutputNames); do
        while IFS= read -r -d "" file; do
          [[ $(patchelf --print-rpath "$file" 2>/dev/null) == */run/opengl-driver/lib* ]] || continue
          ${elfgate}/bin/elfgate check "$file" \
            --policy ${elfgate}/share/elfgate/policies/cuda-compat.policy
          checked=$((checked + 1))
        done < <(find "''${!output}" -type f -print0)
      done
      echo "elfgate: cuda_compat comes first in $checked files"
      runHook postCheckCudaCompatRunpath
    '';
  })
