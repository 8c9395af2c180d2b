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

# make_root <folder> <suite> [debootstrap options]: a minimal root file system. Whole when its name has no .part, so what
# was interrupted begins again.
make_root() {
  local folder=$1 suite=$2 mirror
  shift 2
  [[ ! -d $folder ]] || return 0
  mirror=$(debian_mirror) || mirror=
  mkdir -p "$(dirname "$folder")"
  rm -rf --one-file-system "${folder:?}.part"
  debootstrap "$@" --variant=minbase "$suite" "$folder.part" ${mirror:+"$mirror"} && mv "$folder.part" "$folder"
}
