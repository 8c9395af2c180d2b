#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The backports source is derived from whatever format and options the machine's own entry has.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=scripts/lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source=scripts/lib/packages.sh
. "$root/scripts/lib/packages.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=tests/edges/expect.sh
. "$root/tests/edges/expect.sh"

cat >"$dir/a.sources" <<'SOURCES'
# comment
Types: deb deb-src
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/x.gpg
SOURCES
expect "deb822: the paragraph of the release, with its key" "$(backports_source deb822 "$dir/a.sources")" \
  "Types: deb
URIs: http://mirror.example/debian
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/x.gpg"

cat >"$dir/a.list" <<'LIST'
# deb http://commented.example/debian bookworm main
deb-src http://src.example/debian bookworm main
deb http://mirror.example/security bookworm-security main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian bookworm main contrib # ours
deb http://second.example/debian bookworm main
LIST
expect "one line: the first entry of the release, with its options" "$(backports_source list "$dir/a.list")" \
  "deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.example/debian bookworm-backports main"

printf 'deb http://mirror.example/ubuntu noble main\n' >"$dir/b.list"
expect "another release: nothing" "$(backports_source list "$dir/b.list")" ""
# A fresh image has the suite configured and no lists: apt names no release before it has read them.
lists=no
configured=yes
apt-get() {
  case " $* " in
    *" update "*) lists=yes ;;
    *" indextargets "*)
      [[ $lists == no ]] || printf 'bookworm\n'
      [[ $lists == no || $configured == no ]] || printf 'bookworm-backports\n'
      ;;
  esac
}
find_backports_source() {
  backports_text="deb http://mirror.example/debian bookworm-backports main"
  # shellcheck disable=SC2034 # used by add_backports
  backports_ext=list
}
backports_file=$dir/added
add_backports "$dir/log" apt-get -q >"$dir/out"
expect "configured, no lists yet: nothing is added" "$(ls "$dir/added"* 2>/dev/null)" ""
lists=no
configured=no
add_backports "$dir/log" apt-get -q >"$dir/out"
expect "not configured: added once" "$(cat "$dir/added.list")" "$backports_text"
exit "$rc"
