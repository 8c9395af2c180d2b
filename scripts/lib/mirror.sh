# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Where root file systems and packages of other Debian releases come from.

# The machine's own mirror, or MIRROR: an archive has the releases that a mirror has no more.
debian_mirror() {
  local found
  # shellcheck disable=SC2016 # apt expands it
  found=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Component: main' 2>/dev/null | grep -m 1 -v security)}
  [[ -n $found ]] || return 1
  printf '%s\n' "$found"
}
