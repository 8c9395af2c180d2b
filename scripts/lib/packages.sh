# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the build needs from Debian 12, and how it is installed.

# Build and test tools, from Debian 12 itself.
packages_main=(
  build-essential pkg-config cmake ninja-build git ca-certificates
  clang libclang-rt-14-dev clang-format shellcheck binutils file
  llvm # yaml2obj too, which makes the fixtures of elfgate's tests
  protobuf-compiler libprotobuf-dev libcli11-dev libspdlog-dev libexpected-dev
  libxxhash-dev libzstd-dev zlib1g-dev libbz2-dev liblzma-dev libcap-dev libcap2-bin nettle-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  debootstrap qemu-user-static # root file systems for the load proofs, and aarch64 in one
  g++-aarch64-linux-gnu lintian # gpu-profiled for aarch64, and the Debian packages
  libc6-dbg # names clone3, a thread's outermost frame, which the end-to-end tests check
  dwz xz-utils # debug information as distributions keep it, which tests make
  python3 python3-pip
  python3-yaml busybox-static # the manifests of docker/ and their images, which tests run
)
# libbpf 1.4.6 (Debian 12 has 1.1, without uprobe_multi), elfutils 0.192, and a Go that reads DWARF 5.
# libbpf-dev from backports depends on libelf1 from there, so libelf-dev and libdw-dev must be too.
packages_backports=(libbpf-dev libelf-dev libdw-dev elfutils debuginfod bpftool golang-go)
backports_suite=bookworm-backports
backports_file=/etc/apt/sources.list.d/gpu-profiled-backports
# shellcheck disable=SC2034 # used by scripts/check
packages_tidy=(clang-tidy)

# Whether clang can link a fuzz target.
has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang -x c++ -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null
}

is_debian_12() {
  grep -qx 'ID=debian' /etc/os-release 2>/dev/null && grep -qx 'VERSION_ID="12"' /etc/os-release
}

has_backports() {
  # shellcheck disable=SC2016 # apt expands it
  apt-get indextargets --format '$(RELEASE)' 'Created-By: Packages' 2>/dev/null |
    grep -qx "$backports_suite"
}

# backports_source <deb822|list> <file...>: the machine's own entry for Debian 12 with the suite
# replaced, so that mirror, keys and options are those that the machine already trusts.
backports_source() {
  local format=$1
  shift
  if [[ $format == deb822 ]]; then
    awk -v suite="$backports_suite" '
      function flush() { if (wanted && !off && !done) { printf "%s", text; done = 1 } text = ""; wanted = off = 0 }
      /^[ \t]*$/ { flush(); next }
      /^#/ { next }
      tolower($1) == "suites:" {
        for (i = 2; i <= NF; i++) if ($i == "bookworm") wanted = 1
        text = text "Suites: " suite "\n"; next
      }
      tolower($1) == "components:" { text = text "Components: main\n"; next }
      tolower($1) == "types:" { text = text "Types: deb\n"; next }
      tolower($1) == "enabled:" && tolower($2) == "no" { off = 1 }
      { text = text $0 "\n" }
      END { flush() }' "$@"
  else
    awk -v suite="$backports_suite" '
      $1 == "deb" && !done {
        line = $0; sub(/#.*/, "", line); n = split(line, f, /[ \t]+/)
        i = 2; opts = ""
        if (f[2] ~ /^\[/) { while (i <= n) { opts = opts f[i] " "; if (f[i++] ~ /\]$/) break } }
        if (f[i + 1] == "bookworm") { print "deb " opts f[i] " " suite " main"; done = 1 }
      }' "$@"
  fi
}

# Prints the apt source to add and sets backports_ext to its format's file extension.
find_backports_source() {
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -r $file ]] || continue
    backports_text=$(backports_source deb822 "$file")
    backports_ext=sources
    [[ -z $backports_text ]] || return 0
  done
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -r $file ]] || continue
    backports_text=$(backports_source list "$file")
    backports_ext=list
    [[ -z $backports_text ]] || return 0
  done
  return 1
}

print_packages() {
  say "Packages from Debian 12:"
  printf '%s\n' "${packages_main[*]}" | fold -s -w 96 | sed 's/^/  /'
  say "Packages from $backports_suite:"
  say "  ${packages_backports[*]}"
}

# add_backports <log> <apt-get command...>: whether the suite is configured is known only once the
# lists are there.
add_backports() {
  local log=$1
  shift
  doing "reading the package lists" "20 s" "$log"
  quiet "$log" "$@" update || die "apt-get update failed"
  if has_backports; then
    say "apt sources: $backports_suite is configured already, none is added"
    return
  fi
  find_backports_source || die "no apt source for bookworm in /etc/apt: add $backports_suite by hand and run again"
  say "apt source added as $backports_file.$backports_ext:"
  printf '%s\n' "$backports_text" | sed 's/^/  /'
  printf '%s\n' "$backports_text" >"$backports_file.$backports_ext"
  quiet "$log" "$@" update || die "apt-get update failed"
}

# install_packages <log> [extra packages...]
install_packages() {
  local log=$1
  shift
  packages_main+=("$@")
  print_packages
  is_debian_12 || die "this is not Debian 12: install the packages above (libbpf >= 1.3, elfutils >= 0.186) and run again with --no-install"
  ((EUID == 0)) || die "installing needs root: run as root, or install the packages above and use --no-install"
  local -x DEBIAN_FRONTEND=noninteractive
  # apt's sandbox user cannot always write in a chroot or container; the retries bridge a slow mirror.
  local apt=(apt-get -q -y -o Acquire::Retries=3 -o Dpkg::Use-Pty=0)
  add_backports "$log" "${apt[@]}"
  doing "installing the packages" "3 minutes the first time, some seconds later" "$log"
  quiet "$log" "${apt[@]}" install --no-install-recommends "${packages_main[@]}" ||
    die "apt-get install failed"
  # -t, not package/suite: elfutils and Go need their own dependencies from there as well.
  quiet "$log" "${apt[@]}" install --no-install-recommends -t "$backports_suite" \
    "${packages_backports[@]}" || die "apt-get install from $backports_suite failed"
}
