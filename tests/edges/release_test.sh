#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/release --dry-run: what it would publish, and what it refuses.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/scripts/lib" "$tree/packages"
cp "$source/scripts/release" "$tree/scripts/"
cp "$source/scripts/lib/log.sh" "$tree/scripts/lib/"
echo 'project(gpu-profiled VERSION 1.2.3 LANGUAGES C CXX)' >"$tree/CMakeLists.txt"
printf '# Changelog\n\n## Unreleased\n\nlater\n\n## 1.2.3 (2026-12-01)\n\nnow\n\n## 1.2.2\n\nearlier\n' >"$tree/CHANGELOG.md"

fresh() {
  rm -f "$tree/packages"/*
  for arch in x86_64 aarch64; do echo "$arch" >"$tree/packages/gpu-profiled-1.2.3-$arch.tar.gz"; done
  (cd "$tree/packages" && sha256sum -- *.tar.gz >SHA256SUMS)
}

refused() {
  local word=$1 said
  shift
  if said=$("$tree/scripts/release" --dry-run "$@" 2>&1); then
    echo "not refused: $*" >&2
    exit 1
  fi
  [[ $said == *"$word"* ]] || {
    echo "refused without a word of '$word': $said" >&2
    exit 1
  }
}

fresh
said=$("$tree/scripts/release" --dry-run v1.2.3 "$tree/packages")
[[ $said == *gpu-profiled-1.2.3-aarch64.tar.gz*SHA256SUMS* && $said == *now* && $said != *later* && $said != *earlier* ]]
refused 'not of version 1.2.3' v1.2.4 "$tree/packages"
echo changed >>"$tree/packages/gpu-profiled-1.2.3-aarch64.tar.gz"
refused 'SHA256SUMS says' v1.2.3 "$tree/packages"
fresh
echo other >"$tree/packages/other"
refused 'not in SHA256SUMS' v1.2.3 "$tree/packages"
fresh
rm "$tree/packages/gpu-profiled-1.2.3-aarch64.tar.gz"
(cd "$tree/packages" && sha256sum -- *.tar.gz >SHA256SUMS)
refused 'for aarch64' v1.2.3 "$tree/packages"
fresh
sed -i '/^## 1.2.3/d' "$tree/CHANGELOG.md"
refused 'no section' v1.2.3 "$tree/packages"
echo "scripts/release publishes what was built, and nothing else"
