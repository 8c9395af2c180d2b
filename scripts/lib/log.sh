# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Messages, quiet steps with their output in a log file, and the tally behind the closing line.

passed=0
failed=0
skipped=0

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# doing <what> <how long> <log>: before what shows nothing for more than some seconds. The times are
# of two cores.
doing() { say "...    $1 (about $2; log: $3)"; }

# quiet <log> <command...>: runs it with all output in <log>; shows the end of the log if it fails.
quiet() {
  local log=$1 rc=0
  shift
  mkdir -p "$(dirname "$log")"
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  if ((rc != 0)); then
    printf -- '--- failed (exit %d): %s\n' "$rc" "$*"
    tail -n 60 "$log"
    printf -- '--- whole log: %s\n' "$log"
  fi
  return "$rc"
}

# step [-t <how long>] <name> <log> <command...>: one counted check; -t where it takes long.
step() {
  local time=
  if [[ $1 == -t ]]; then
    time=$2
    shift 2
  fi
  local name=$1 log=$2 start=$SECONDS
  shift 2
  [[ -z $time ]] || doing "$name" "$time" "$log"
  if quiet "$log" "$@"; then
    passed=$((passed + 1))
    printf 'ok     %s (%d s)\n' "$name" "$((SECONDS - start))"
  else
    failed=$((failed + 1))
    printf 'FAILED %s\n' "$name"
  fi
}

# The closing line; the exit status says whether everything passed and anything ran.
closing_line() {
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0 && passed > 0))
}
