# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The builds behind scripts/build-portable; needs log.sh and sysroot.sh. Callers set root, zig, glibc,
# commit, cupti_include_dir.
# shellcheck disable=SC2154

# fetch_zig <folder>: zig's compiler from its wheel on PyPI, unpacked once; sets zig.
fetch_zig() {
  local dir=$1
  zig=$dir/ziglang/zig
  [[ -e $dir/complete ]] && return 0
  rm -rf "$dir"
  mkdir -p "$dir"
  python3 -m pip download -q --no-deps --only-binary=:all: -d "$dir" "ziglang==${dir##*-}" || return 1
  python3 -m zipfile -e "$dir"/ziglang-*.whl "$dir" || return 1
  chmod +x "$zig"
  rm -f "$dir"/ziglang-*.whl
  touch "$dir/complete"
}

# commit_of <source>: as a build there would name it (cmake/commit.cmake).
commit_of() {
  local file
  file=$(mktemp)
  cmake -DSOURCE="$1" -DGIVEN= -DOUT="$file" -P "$1/cmake/commit.cmake" && sed -n 's/.*kCommit = "\(.*\)";/\1/p' "$file"
  rm -f "$file"
}

# commit_time <source>: seconds since 1970, of the checkout or of what `git archive` recorded; else 0.
commit_time() {
  git -c safe.directory='*' -C "$1" log -1 --format=%ct 2>/dev/null || sed -n '2s/^[0-9]*$/&/p;2s/.*[^0-9].*/0/p' "$1/cmake/commit.txt"
}

# portable_flags <source> <build folder>: of every portable build; nothing of the folders in the files.
# The last that fits applies.
portable_flags() { printf -- '-g0 -ffile-prefix-map=%s=. -ffile-prefix-map=%s=.' "$1" "$2"; }

# fresh_tree <build folder> <text...>: empties it where it was built with another text. For what a build
# system does not see change: the compiler behind its wrapper, libraries older than what was linked.
fresh_tree() {
  local build=$1 key
  shift
  key=$(printf '%s\n' "$@")
  [[ -e $build/.key && $(<"$build/.key") == "$key" ]] || rm -rf "$build"
  mkdir -p "$build"
  printf '%s\n' "$key" >"$build/.key"
}

# build_shim <arch> <source> <build folder>
build_shim() {
  local arch=$1 source=$2 build=$3 flags
  flags=$(portable_flags "$source" "$build")
  fresh_tree "$build" "$zig $glibc $(sha256sum <"$source/cmake/toolchains/zig.cmake")"
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGPU_PROFILED_WERROR=ON \
    -DCMAKE_TOOLCHAIN_FILE="$source/cmake/toolchains/zig.cmake" \
    -DGPUPROF_ZIG="$zig" -DGPUPROF_ZIG_ARCH="$arch" -DGPUPROF_ZIG_GLIBC="$glibc" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
    -DCMAKE_MODULE_LINKER_FLAGS=-s -DCUPTI_INCLUDE_DIR="$cupti_include_dir" \
    -DGPU_PROFILED_DAEMON=OFF -DGPU_PROFILED_TOOLS=OFF -DGPU_PROFILED_TESTS=OFF -DGPU_PROFILED_BENCH=OFF || return 1
  cmake --build "$build" || return 1
  # What load proofs load it with; see tests/load/host.c.
  "$zig" cc -target "$arch-linux-gnu.$glibc" -O2 -s -o "$build/load-host" "$source/tests/load/host.c" -ldl
}

# daemon_parts <arch> <source>: what the daemon is compiled and linked with, by version.
daemon_parts() {
  if [[ $1 == aarch64 ]]; then
    sha256sum <"$2/cmake/toolchains/debian-cross.cmake"
    cat "$root/build/sysroot-arm64/versions"
    dpkg-query -W g++-12-aarch64-linux-gnu libc6-dev-arm64-cross libstdc++-12-dev-arm64-cross 2>/dev/null || true
  elif command -v dpkg-query >/dev/null; then
    dpkg-query -W g++ libc6-dev 'libstdc++-*-dev' "${packages_main[@]}" "${packages_backports[@]}" 2>/dev/null || true
  fi
}

# build_daemon <arch> <source> <build folder> [targets, default gpu-profiled]: for x86_64 with this
# machine's compiler and archives, for aarch64 with the cross compiler and those of build/sysroot-arm64.
# The unit tests of the latter run under an emulator, so they are configured too.
build_daemon() {
  local arch=$1 source=$2 build=$3 flags cross=()
  shift 3
  (($# > 0)) || set -- gpu-profiled
  if [[ $arch == aarch64 ]]; then
    cross=(-DCMAKE_TOOLCHAIN_FILE="$source/cmake/toolchains/debian-cross.cmake" -DGPUPROF_CROSS_ARCH=aarch64
      -DGPUPROF_CROSS_SYSROOT="$root/build/sysroot-arm64/root" -DGPU_PROFILED_TESTS=ON)
  fi
  flags=$(portable_flags "$source" "$build")
  [[ $arch != aarch64 ]] || flags+=" -ffile-prefix-map=$root/build/sysroot-arm64/root="
  fresh_tree "$build" "$(daemon_parts "$arch" "$source")"
  cmake -S "$source" --preset static -B "$build" "${cross[@]}" -DGPU_PROFILED_COMMIT="$commit" \
    -DGPU_PROFILED_SHIM=OFF -DGPU_PROFILED_TOOLS=OFF -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DCUPTI_INCLUDE_DIR="$cupti_include_dir" || return 1
  cmake --build "$build" --target "$@" || return 1
  "$(strip_of "$arch")" -o "$build/gpu-profiled" "$build/daemon/gpu-profiled"
}

# try_daemon <arch> <file>: it starts, names its commit, reads a cubin, and says what is wrong with
# another file. Under an emulator where the machine is another.
try_daemon() {
  local arch=$1 file=$2 run=() cubin=$root/tests/data/cubin/calls.sm_120.cubin out
  [[ $(uname -m) == "$arch" ]] || run=("qemu-$arch-static")
  "${run[@]}" "$file" --version | grep -x "commit $commit" || return 1
  "${run[@]}" "$file" --help | grep -- --pid || return 1
  "${run[@]}" "$file" cubin info "$cubin" || return 1
  out=$("${run[@]}" "$file" cubin info "$root/README.md" 2>&1) && return 1
  printf '%s\n' "$out" | grep -x 'gpu-profiled: .*README.md.*'
}

strip_of() { [[ $1 == aarch64 ]] && printf aarch64-linux-gnu-strip || printf strip; }

# elsewhere <build folder> <function> <arch> <file...>: the same commit built by <function> in other
# folders, with another cache of zig's; there the files, relative to the build folder, are the same.
elsewhere() {
  local build=$1 what=$2 arch=$3 file copy
  shift 3
  copy=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$copy'" RETURN
  mkdir "$copy/elsewhere"
  (cd "$root" && git -c safe.directory='*' ls-files -co --exclude-standard -z | tar --null -T - -cf -) | tar -xf - -C "$copy/elsewhere" || return 1
  ZIG_GLOBAL_CACHE_DIR=$copy/cache CCACHE_DISABLE=1 "$what" "$arch" "$copy/elsewhere" "$copy/b" || return 1
  for file in "$@"; do
    cmp "$build/$file" "$copy/b/$file" || return 1
  done
}
