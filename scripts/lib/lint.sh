# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Static checks over the files that git knows (tracked, or new and not ignored).

our_files() { git ls-files -co --exclude-standard -- "$@"; }

# Not what fixtures were built from: their line tables know each line by its number.
formatted_files() { our_files '*.cc' '*.h' '*.c' '*.cu' ':(exclude)tests/data'; }

check_format() {
  local files
  mapfile -t files < <(formatted_files)
  ((${#files[@]} > 0)) || return 1
  # Names only: scripts/format mends them all.
  if ! clang-format --dry-run -Werror "${files[@]}" 2>&1 | sed -n 's/^\([^ :]*\):[0-9].*error:.*/\1/p' | sort | uniq -c |
    awk '{ print $2 ": " $1 " places"; bad = 1 } END { exit bad }'; then
    printf 'run scripts/format\n'
    return 1
  fi
}

# The entry scripts, known by their first line; scripts/lib is read through them (-x -a).
shell_scripts() {
  our_files scripts .ci tests docker | while read -r file; do
    head -n 1 "$file" | grep -qE '^#!.*\b(bash|sh)$' && printf '%s\n' "$file"
  done
}

check_shell() {
  local files
  mapfile -t files < <(shell_scripts)
  ((${#files[@]} > 0)) && shellcheck -x -a "${files[@]}"
}

# BPF C is compiled for another target and the fuzzers of clang-tidy know nothing of it.
check_tidy() {
  local build=$1 files
  mapfile -t files < <(our_files 'shim/*.cc' 'daemon/*.cc' 'tests/*.cc' 'tools/*.cc')
  ((${#files[@]} > 0)) || return 0
  printf '%s\0' "${files[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet
}

# `cmake --install` with DESTDIR puts every product where GNUInstallDirs says and nothing elsewhere, and
# the installed gpu-profiled finds the installed shim by itself.
check_install_rules() (
  build=$1
  dest=$(mktemp -d)
  trap 'rm -rf "$dest"' EXIT
  chmod 755 "$dest" # under sudo the workload runs as the caller and loads the shim from here
  rc=0
  DESTDIR=$dest cmake --install "$build" >/dev/null || exit 1
  (cd "$dest" && find . -type f | sort)
  for file in bin/gpu-profiled bin/elfgate lib/gpu-profiled/libgpu-profiled-cupti.so share/doc/gpu-profiled/{LICENSE,LICENSE.GPL-2.0,README.md}; do
    [[ -e $dest/usr/local/$file ]] || {
      printf 'not installed: %s\n' "$file"
      rc=1
    }
  done
  if find "$dest" -type f -not -path "$dest/usr/local/*" | grep .; then
    printf 'installed outside the prefix\n'
    rc=1
  fi
  ((EUID == 0)) || exit "$rc"
  LD_LIBRARY_PATH=$build/tests/fake_cuda/lib:$build/tests/fake_cuda/cupti13 \
    timeout 60 "$dest/usr/local/bin/gpu-profiled" run -o "$dest/profile.pb.gz" -- \
    "$build/tests/e2e/workload/workload" --launches 2000 || rc=1
  [[ -s $dest/profile.pb.gz ]] || {
    printf 'the installed gpu-profiled wrote no profile\n'
    rc=1
  }
  exit "$rc"
)
