# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# CUPTI's headers, with cuda.h and crt/host_defines.h: from a toolkit, or from PyPI's wheels. Only the
# headers are unpacked; nothing of NVIDIA's goes into the tree.

# What the build uses where no toolkit is installed.
cupti_default=13.0

# cupti_wheels <CUDA version, or "newest">: pip requirements of the wheels that hold the three headers.
# crt/ is in the compiler's wheel up to 12.x and in a wheel of its own from 13.0.
cupti_wheels() {
  case $1 in
    11.*) printf '%s\n' "nvidia-cuda-cupti-cu11==$1.*" "nvidia-cuda-runtime-cu11==$1.*" "nvidia-cuda-nvcc-cu11==$1.*" ;;
    12.*) printf '%s\n' "nvidia-cuda-cupti-cu12==$1.*" "nvidia-cuda-runtime-cu12==$1.*" "nvidia-cuda-nvcc-cu12==$1.*" ;;
    13.*) printf '%s\n' "nvidia-cuda-cupti==$1.*" "nvidia-cuda-runtime==$1.*" "nvidia-cuda-crt==$1.*" ;;
    newest) printf '%s\n' "nvidia-cuda-cupti<14" "nvidia-cuda-runtime<14" "nvidia-cuda-crt<14" ;;
    *) die "no CUPTI wheels known for CUDA $1" ;;
  esac
}

# fetch_cupti_headers <version> <directory>: <directory>/include gets the headers; done once.
fetch_cupti_headers() {
  local version=$1 dir=$2
  [[ -e $dir/complete ]] && return 0
  local wheels
  mapfile -t wheels < <(cupti_wheels "$version")
  rm -rf "$dir"
  mkdir -p "$dir/wheels" "$dir/include"
  python3 -m pip download -q --no-deps --only-binary=:all: -d "$dir/wheels" "${wheels[@]}" || return 1
  python3 - "$dir" <<'PY' || return 1
import pathlib, re, sys, zipfile
root = pathlib.Path(sys.argv[1])
for wheel in sorted((root / "wheels").glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            match = re.fullmatch(r"nvidia/[^/]+/include/(.+\.h(?:pp)?)", name)
            if match:
                target = root / "include" / match.group(1)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
missing = [h for h in ("cupti.h", "cuda.h", "crt/host_defines.h") if not (root / "include" / h).exists()]
if missing:
    sys.exit("not in the wheels: " + ", ".join(missing))
PY
  rm -rf "$dir/wheels"
  touch "$dir/complete"
}

# Whether pip can get the wheels here: they may be in build/ already.
can_fetch_wheels() {
  local version scratch rc=0
  for version in 11.8 12.0 12.4 12.9 13.0 newest; do
    [[ -e $root/build/cupti-headers/$version/complete ]] && continue
    scratch=$(mktemp -d)
    timeout 120 python3 -m pip download -q --no-deps --only-binary=:all: -d "$scratch" \
      'nvidia-cuda-crt==13.0.*' >/dev/null 2>&1 || rc=$?
    rm -rf "$scratch"
    return "$rc"
  done
}

# The directories of an installed toolkit that hold all three headers, ';'-separated; empty if none.
installed_cupti_headers() {
  local root
  for root in "${CUDA_HOME:-}" /usr/local/cuda; do
    [[ -n $root && -e $root/include/cuda.h && -e $root/include/crt/host_defines.h ]] || continue
    if [[ -e $root/include/cupti.h ]]; then
      printf '%s' "$root/include"
      return
    elif [[ -e $root/extras/CUPTI/include/cupti.h ]]; then
      printf '%s;%s' "$root/extras/CUPTI/include" "$root/include"
      return
    fi
  done
}

# Sets cupti_include_dir, fetching the wheels where no toolkit is installed.
find_cupti_headers() {
  local build=$1
  cupti_include_dir=${CUPTI_INCLUDE_DIR:-$(installed_cupti_headers)}
  if [[ -z $cupti_include_dir ]]; then
    say "CUPTI headers: no CUDA toolkit here, taking CUDA $cupti_default's from PyPI: $(cupti_wheels "$cupti_default" | tr '\n' ' ')"
    quiet "$build/logs/cupti-headers.log" fetch_cupti_headers "$cupti_default" "$build/cupti-headers/$cupti_default" ||
      die "the CUPTI headers could not be fetched: set CUPTI_INCLUDE_DIR"
    cupti_include_dir=$build/cupti-headers/$cupti_default/include
  fi
  say "CUPTI headers: $cupti_include_dir"
}
