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

# run_portable_tests <build dir> <log dir> <folder>: what uses the shim or gpu-profiled as files, with
# those of the archive that scripts/build-portable put into <folder>. Left out: the tests of the probes
# alone, which link the code.
run_portable_tests() {
  local build=$1 logs=$2 folder=$3 skips=forbidden files
  files=$folder/unpacked
  rm -rf "$files"
  mkdir -p "$files"
  # One on top of the other would be two versions.
  tar -xzf "$folder"/gpu-profiled-*-x86_64.tar.gz -C "$files" --strip-components=1 || {
    failed=$((failed + 1))
    say "FAILED portable tests: no archive in $folder"
    return
  }
  ((EUID == 0)) || [[ -n ${REQUIRE_ROOT:-} ]] || skips=allowed
  GPU_PROFILED_TEST_DAEMON=$files/bin/gpu-profiled \
    GPU_PROFILED_TEST_SHIM=$files/lib/gpu-profiled/libgpu-profiled-cupti.so \
    ctest_group portable-e2e "16 minutes" "$build" "$logs" "$skips" -L 'e2e|shim_file' -E '^probe_(fork_)?e2e_test'
}

# The unit tests of gpu-profiled that run for aarch64 under an emulator. Left out: what needs eBPF or
# looks into processes (probe_test, target_test, cli_test, AddressSpace's cases); unwinder_test,
# single_step_test and symbolizer_test, which sample themselves: the emulator maps no code as executable,
# so there is none to find; symbol_tables_test, whose fixture is x86-64's assembly; and the case that wants
# a vdso, which the emulator does not map.
emulated_tests=(
  byte_reader_test proto_abi_test cfi_libdw_test hostile_cfi_test unwind_parts_test recorded_stacks_test
  unwind_aarch64_test demangle_test line_check_test
  cubin_image_test cubin_store_test cubin_oracle_test cubin_call_sites_test cubin_callers_test cubin_libdw_test
  cubin_malformed_test join_test pprof_test
)

# run_emulated_tests <log dir>: in the tree in which scripts/build-portable built the daemon.
run_emulated_tests() {
  local logs=$1 build=$root/build/daemon-aarch64
  doing "building the unit tests for aarch64" "6 minutes the first time" "$logs/emulated-build.log"
  quiet "$logs/emulated-build.log" cmake --build "$build" --target "${emulated_tests[@]}" || {
    failed=$((failed + 1))
    say "FAILED unit tests for aarch64: not built"
    return
  }
  ctest_group emulated "4 minutes" "$build" "$logs" forbidden -R "^($(IFS='|' && printf '%s' "${emulated_tests[*]}"))\\." -E 'CfiLibdw.VdsoHasTheSameRules|AddressSpace\.' -j "$(nproc)"
}
