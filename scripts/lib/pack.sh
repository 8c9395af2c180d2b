# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Archives and Debian packages of what portable.sh built; needs it and packages.sh. Callers set root,
# version, commit, glibc, shim_only, SOURCE_DATE_EPOCH. Alike for a commit: order, times, owners, compression.

deb_arch() { [[ $1 == aarch64 ]] && printf arm64 || printf amd64; }

# The static libraries inside gpu-profiled, and what their licenses want told.
linked_packages=(
  libbpf-dev libelf-dev libdw-dev libprotobuf-dev libzstd-dev zlib1g-dev libbz2-dev liblzma-dev nettle-dev
  libcap-dev libxxhash-dev libspdlog-dev libfmt-dev libcli11-dev libexpected-dev
)

# version_of <arch> <package>
version_of() {
  if [[ $1 == aarch64 ]]; then
    awk -v p="$2" '$1 == p { print $2 }' "$root/build/sysroot-arm64/versions"
  else
    dpkg-query -W -f '${Version}' "$2"
  fi
}

# third_party <arch>: name, version and copyright file of each.
third_party() {
  local arch=$1 package docs=/usr/share/doc
  local -a runtime=(libc6-dev libstdc++-12-dev)
  printf 'The libraries in gpu-profiled, statically linked, with their licenses.\n'
  if [[ $arch == aarch64 ]]; then
    docs=$root/build/sysroot-arm64/root$docs
    runtime=(libc6-dev-arm64-cross libstdc++-12-dev-arm64-cross)
  fi
  for package in "${linked_packages[@]}"; do
    printf '\n==== %s %s\n\n' "$package" "$(version_of "$arch" "$package")"
    cat "$docs/$package/copyright" || return 1
  done
  for package in "${runtime[@]}"; do
    printf '\n==== %s %s\n\n' "$package" "$(dpkg-query -W -f '${Version}' "$package")"
    cat "/usr/share/doc/$package/copyright" || return 1
  done
}

# pack <folder>: all of it, and the checksums. No Debian package of the shim alone.
pack() {
  local into=$1 arch
  for arch in x86_64 aarch64; do
    pack_archive "$arch" "$into" || return 1
    [[ $shim_only == yes ]] || pack_deb "$arch" "$into" || return 1
  done
  (cd "$into" && sha256sum -- gpu-profiled* >SHA256SUMS)
}

# stage <arch> <prefix folder> <doc folder>
stage() {
  local arch=$1 to=$2 docs=$3
  install -D -m 644 "$root/build/portable-$arch/shim/libgpu-profiled-cupti.so" "$to/lib/gpu-profiled/libgpu-profiled-cupti.so"
  install -d -m 755 "$docs"
  install -m 644 "$root"/README.md "$docs/"
  [[ $shim_only == no ]] || return 0
  install -D -m 755 "$root/build/daemon-$arch/gpu-profiled" "$to/bin/gpu-profiled"
  third_party "$arch" | gzip -n9 >"$docs/THIRD-PARTY.gz" || return 1
  chmod 644 "$docs/THIRD-PARTY.gz"
}

# Folders under umask 022, times of the commit.
settle() {
  find "$1" -type d -exec chmod 755 {} +
  find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# pack_archive <arch> <folder>: gpu-profiled-VERSION-ARCH.tar.gz
pack_archive() {
  local arch=$1 into=$2 name=gpu-profiled-$version-$1 dir
  dir=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$dir'" RETURN
  stage "$arch" "$dir/$name" "$dir/$name" || return 1
  install -m 644 "$root"/{LICENSE,LICENSE.GPL-2.0,CHANGELOG.md} "$dir/$name/" || return 1
  settle "$dir"
  tar -C "$dir" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -n9 >"$into/$name.tar.gz"
}

# pack_deb <arch> <folder>: gpu-profiled_VERSION_ARCH.deb by CPack, with cmake/packaging.cmake's words.
pack_deb() {
  local arch=$1 into=$2 dir docs build=$root/build/daemon-$1
  dir=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$dir'" RETURN
  docs=$dir/stage/usr/share/doc/gpu-profiled
  stage "$arch" "$dir/stage/usr" "$docs" || return 1
  install -m 644 "$root/packaging/copyright" "$docs/copyright" || return 1
  gzip -n9 <"$root/CHANGELOG.md" >"$docs/CHANGELOG.md.gz"
  deb_changelog | gzip -n9 >"$docs/changelog.gz"
  chmod 644 "$docs"/*.gz
  install -D -m 644 "$root/packaging/lintian-overrides" "$dir/stage/usr/share/lintian/overrides/gpu-profiled" || return 1
  settle "$dir"
  cpack --config "$build/CPackConfig.cmake" -G DEB -B "$dir/cpack" \
    -D CPACK_INSTALL_CMAKE_PROJECTS= -D CPACK_INSTALLED_DIRECTORIES="$dir/stage;/" -D CPACK_STRIP_FILES=OFF \
    -D CPACK_DEBIAN_PACKAGE_ARCHITECTURE="$(deb_arch "$arch")" -D CPACK_DEBIAN_PACKAGE_SHLIBDEPS=OFF \
    -D CPACK_DEBIAN_PACKAGE_DEPENDS="libc6 (>= $glibc)" || return 1
  cp "$dir"/cpack/*.deb "$into/"
}

deb_changelog() {
  printf 'gpu-profiled (%s) unstable; urgency=medium\n\n  * Commit %s.\n  * CHANGELOG.md.gz says what is new.\n\n -- %s  %s\n' \
    "$version" "$commit" "$(sed -n 's/^set(CPACK_PACKAGE_CONTACT "\(.*\)")$/\1/p' "$root/cmake/packaging.cmake")" \
    "$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
}
