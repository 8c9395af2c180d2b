# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Configure and build; needs log.sh and cupti_headers.sh.

# tracefs holds uprobe_events, which kernels without uprobe_multi need; nothing to do without root.
mount_tracefs() {
  ((EUID == 0)) || return 0
  [[ -d /sys/kernel/tracing && ! -e /sys/kernel/tracing/uprobe_events ]] || return 0
  mount -t tracefs nodev /sys/kernel/tracing 2>/dev/null ||
    say "note: tracefs could not be mounted on /sys/kernel/tracing"
}

# As root (sudo, a container) in a tree of somebody else: what was built becomes the owner's when the
# script ends, else the owner's next cmake in build/ fails.
give_back_at_exit() {
  ((EUID != 0)) || trap 'chown -hR --reference="$root" "$root/build" "$root/out" 2>/dev/null || true' EXIT
}

# build_tree <root> <preset> [cmake options...]: into <root>/build/<preset>; build_targets, where set,
# names what is built instead of everything.
# build_time is what the user is told of how long it takes.
build_targets=()
build_time="10 minutes the first time"
build_tree() {
  local root=$1 preset=$2 start=$SECONDS
  shift 2
  find_cupti_headers "$root/build"
  quiet "$root/build/logs/$preset-configure.log" \
    cmake -S "$root" --preset "$preset" -DCUPTI_INCLUDE_DIR="$cupti_include_dir" "$@" || return 1
  doing "building build/$preset" "$build_time" "$root/build/logs/$preset-build.log"
  quiet "$root/build/logs/$preset-build.log" cmake --build "$root/build/$preset" \
    ${build_targets[0]:+--target "${build_targets[@]}"} || return 1
  say "built build/$preset ($((SECONDS - start)) s)"
}
