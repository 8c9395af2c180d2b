# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the shell tests of this folder share. Sets rc, their exit status.
rc=0

# expect <what> <got> <want>
expect() {
  local what=$1 got=$2 want=$3
  [[ $got == "$want" ]] && return
  printf '%s\n got: %s\nwant: %s\n' "$what" "$got" "$want"
  # shellcheck disable=SC2034 # the tests end with it
  rc=1
}
