#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What cmake/commit.cmake takes for the commit, and that a program is built anew when HEAD moves.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=t@example.org
# shellcheck source=tests/edges/expect.sh
. "$root/tests/edges/expect.sh"

commit() { git -C "$tree" -c commit.gpgsign=false commit -q --allow-empty -m "$1"; }
head() { git -C "$tree" rev-parse HEAD; }
# built <source> <build folder>: what a program of it says.
built() {
  cmake --build "$2" >"$dir/log" 2>&1 || {
    cat "$dir/log"
    return 1
  }
  "$2/program"
}
configure() { cmake -S "$1" -B "$2" "${@:3}" >"$dir/log" 2>&1 || { cat "$dir/log" && return 1; }; }

tree=$dir/tree
mkdir -p "$tree/cmake"
cp "$root/cmake/commit.cmake" "$root/cmake/commit.txt" "$tree/cmake/"
cp "$root/.gitattributes" "$tree/"
cat >"$tree/CMakeLists.txt" <<'LISTS'
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES CXX)
include(cmake/commit.cmake)
add_executable(program main.cc)
gpuprof_commit_source(program)
LISTS
cat >"$tree/main.cc" <<'MAIN'
#include <cstdio>
namespace gpuprof::build { extern const char* const kCommit; }
int main() { std::puts(gpuprof::build::kCommit); }
MAIN
git -C "$tree" init -q
git -C "$tree" add -A
commit first
configure "$tree" "$dir/build"
expect "in a checkout" "$(built "$tree" "$dir/build")" "$(head)"
stamp=$(stat -c %y "$dir/build/program")
expect "built again" "$(built "$tree" "$dir/build")" "$(head)"
expect "nothing to do: the program" "$(stat -c %y "$dir/build/program")" "$stamp"
first=$(head)
commit second
expect "HEAD has moved" "$(built "$tree" "$dir/build")" "$(head)"
[[ $(head) != "$first" ]] || expect "HEAD" same other
echo "// changed" >>"$tree/main.cc"
expect "a file has changed" "$(built "$tree" "$dir/build")" "$(head)-dirty"
configure "$tree" "$dir/build" -DGPU_PROFILED_COMMIT=0123abc
expect "given" "$(built "$tree" "$dir/build")" 0123abc

# The archive lies in another checkout, whose commit is not its own.
mkdir -p "$dir/other/archive"
git -C "$dir/other" init -q
git -C "$dir/other" -c commit.gpgsign=false commit -q --allow-empty -m other
git -C "$tree" archive HEAD | tar -xf - -C "$dir/other/archive"
configure "$dir/other/archive" "$dir/of-archive"
expect "an archive" "$(built "$dir/other/archive" "$dir/of-archive")" "$(head)"

mkdir "$dir/copy"
git -C "$tree" ls-files -z | (cd "$tree" && tar --null -T - -cf -) | tar -xf - -C "$dir/copy"
configure "$dir/copy" "$dir/of-copy"
expect "a copy of the files" "$(built "$dir/copy" "$dir/of-copy")" unknown
exit "$rc"
