# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What gpu-profiled for another architecture links, from the machine's own Debian mirrors, unpacked into
# a folder: neither the system's package database nor its lists of packages know of it. Needs log.sh.

# From bookworm, and from backports what scripts/check takes from there too. The two shared libraries are
# never linked: the CMake files of spdlog and fmt want to see them.
sysroot_packages=(
  linux-libc-dev libprotobuf-dev libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 libzstd-dev zlib1g-dev libbz2-dev liblzma-dev
  libcap-dev nettle-dev libxxhash-dev libgtest-dev libgmock-dev googletest
  libprotobuf32 libbz2-1.0 # hold the copyright files of theirs
  libexpected-dev libcli11-dev # for any machine; here so that no header of this machine's is used
)
sysroot_backports=(libbpf-dev libelf-dev libdw-dev)

# apt_of <architecture> <folder> <apt-get arguments...>: with lists, cache and package database of its
# own; sources and keys are the machine's.
apt_of() {
  local arch=$1 dir=$2
  shift 2
  mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
  touch "$dir/status"
  apt-get -q -y -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State::Lists="$dir/lists" \
    -o Dir::State::status="$dir/status" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root \
    -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}

# make_sysroot <architecture> <folder>: <folder>/root is what a cross compiler finds its libraries in,
# <folder>/versions says what they are. Once, and again where the folder is not whole, or made of another list.
make_sysroot() {
  local arch=$1 dir=$2 package
  local want="${sysroot_packages[*]} ${sysroot_backports[*]}"
  [[ -e $dir/complete && $(<"$dir/complete") == "$want" ]] && return 0
  rm -rf "$dir"
  mkdir -p "$dir/root" "$dir/packages"
  apt_of "$arch" "$dir/apt" update || return 1
  (cd "$dir/packages" && apt_of "$arch" "$dir/apt" download "${sysroot_packages[@]}") || return 1
  (cd "$dir/packages" && apt_of "$arch" "$dir/apt" -t bookworm-backports download "${sysroot_backports[@]}") || return 1
  for package in "$dir"/packages/*.deb; do
    dpkg-deb -x "$package" "$dir/root" || return 1
    # shellcheck disable=SC2016 # dpkg-deb expands it
    dpkg-deb -W --showformat='${Package} ${Version} ${Architecture}\n' "$package"
  done >"$dir/versions"
  rm -rf "$dir/packages" "$dir/apt"
  printf '%s\n' "$want" >"$dir/complete"
}
