#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/build-portable's build of the shim, with a stand-in for zig: what is compiled again when flags,
# the floor or the compiler change, and that nothing is when they do not.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=scripts/lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source=scripts/lib/portable.sh
. "$root/scripts/lib/portable.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rc=0

mkdir -p "$dir/source/cmake/toolchains" "$dir/source/tests/load"
cp "$root/cmake/toolchains/zig.cmake" "$dir/source/cmake/toolchains/"
echo 'int main(void) { return 0; }' >"$dir/source/tests/load/host.c"
cat >"$dir/source/CMakeLists.txt" <<'LISTS'
cmake_minimum_required(VERSION 3.25)
project(shim LANGUAGES C CXX)
add_library(one MODULE one.c two.cc)
LISTS
echo 'int one;' >"$dir/source/one.c"
echo 'int two;' >"$dir/source/two.cc"

# A compiler that writes down what it compiles of the two, and for what.
make_zig() {
  mkdir -p "$dir/$1"
  cat >"$dir/$1/zig" <<ZIG
#!/bin/sh
language=\$1 target=\$3
shift 3
case "\$*" in *one.c|*two.cc) echo "\$target \$*" >>'$dir/calls' ;; esac
case \$language in cc) exec cc "\$@" ;; *) exec c++ "\$@" ;; esac
ZIG
  chmod +x "$dir/$1/zig"
}

# expect <what> <calls> <text of each>: builds, and that many of the two are compiled so.
expect() {
  local what=$1 want=$2 text=$3 got
  : >"$dir/calls"
  build_shim "$(uname -m)" "$dir/source" "$dir/build" >"$dir/log" 2>&1 || {
    cat "$dir/log"
    exit 1
  }
  got=$(grep -c -- "$text" "$dir/calls" || true)
  if [[ $got != "$want" || $(wc -l <"$dir/calls") != "$want" ]]; then
    printf '%s: compiled %s of %s so: %s\n' "$what" "$got" "$want" "$text"
    cat "$dir/calls"
    rc=1
  fi
}

make_zig zig-1
make_zig zig-2
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER
zig=$dir/zig-1/zig glibc=2.17
# shellcheck disable=SC2034 # build_shim's
cupti_include_dir=$dir
expect "the first time" 2 "gnu.2.17 "
expect "nothing changed" 0 .
# shellcheck disable=SC2317 # called by build_shim
portable_flags() { printf -- '-g0 -DCHANGED'; }
expect "other flags" 2 "gnu.2.17 .*-DCHANGED"
expect "nothing changed again" 0 .
glibc=2.28
expect "another floor" 2 "gnu.2.28 "
zig=$dir/zig-2/zig
expect "another compiler" 2 "gnu.2.28 "
echo '# changed' >>"$dir/source/cmake/toolchains/zig.cmake"
expect "another toolchain file" 2 "gnu.2.28 "
expect "nothing changed at last" 0 .
exit "$rc"
