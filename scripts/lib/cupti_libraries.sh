# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Real libcuptis from PyPI's wheels, by pip with its own configuration; nothing of NVIDIA's goes into
# the tree. Needs cupti_headers.sh.

# Oldest, those between, and newest; 11.7 is too old for the shim, and 13.2 ends a process whose driver it cannot start on.
cupti_releases=(11.7 11.8 12.0 12.4 12.9 13.0 13.2 newest)

# fetch_cupti_library <CUDA release, or "newest"> <folder>: <folder>/libcupti.so.N; done once.
fetch_cupti_library() {
  local release=$1 dir=$2 wheels
  [[ -e $dir/complete ]] && return 0
  mapfile -t wheels < <(cupti_wheels "$release") # CUPTI's own is the first
  rm -rf "$dir"
  mkdir -p "$dir/wheel"
  # 14 MB each; a registry that does not answer is not waited for.
  timeout 180 python3 -m pip download -q --no-deps --only-binary=:all: -d "$dir/wheel" "${wheels[0]}" || return 1
  python3 - "$dir" <<'PY' || return 1
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
(wheel,) = (folder / "wheel").glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if pathlib.PurePath(n).name.startswith("libcupti.so")]
    (folder / pathlib.PurePath(name).name).write_bytes(archive.read(name))
PY
  rm -rf "$dir/wheel"
  touch "$dir/complete"
}
