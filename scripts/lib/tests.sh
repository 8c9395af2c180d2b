# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Runs ctest and counts its tests into the tally; needs log.sh.

# ctest_group <name> <how long> <build dir> <log dir> <skips: allowed|forbidden> <ctest selection...>
ctest_group() {
  local name=$1 time=$2 build=$3 logs=$4 skips=$5 start=$SECONDS counts p f s
  shift 5
  doing "$name tests" "$time" "$logs/$name.log"
  rm -f "$logs/$name.xml"
  ctest --test-dir "$build" --output-junit "$logs/$name.xml" "$@" >"$logs/$name.log" 2>&1 </dev/null || true
  counts=$(python3 "$root/scripts/lib/tally.py" "$logs/$name.xml" "$skips") || {
    failed=$((failed + 1))
    say "FAILED $name tests: no result, see $logs/$name.log"
    return
  }
  # The last line has the numbers, those before it the failures.
  read -r p f s <<<"${counts##*$'\n'}"
  [[ $counts == *$'\n'* ]] && say "${counts%$'\n'*}"
  passed=$((passed + p))
  failed=$((failed + f))
  skipped=$((skipped + s))
  say "$name tests: $p passed, $f failed, $s skipped ($((SECONDS - start)) s), log $logs/$name.log"
}

# run_tests <build dir> <log dir> <quick: yes|no>. The e2e tests measure and attach system-wide, so
# they run one at a time; as root, where BPF works, one that skips is a failure, and where REQUIRE_ROOT
# is set (CI) the lack of root is one.
run_tests() {
  local build=$1 logs=$2 quick=$3 skips=forbidden
  local without=()
  [[ $quick == yes ]] && without=(-LE slow)
  ((EUID == 0)) || [[ -n ${REQUIRE_ROOT:-} ]] || skips=allowed
  ctest_group unit "4 minutes" "$build" "$logs" allowed -LE "e2e$([[ $quick == yes ]] && printf '|slow')" -j "$(nproc)"
  ctest_group e2e "15 minutes" "$build" "$logs" "$skips" -L e2e "${without[@]}"
}
