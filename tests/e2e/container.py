# SPDX-License-Identifier: Apache-2.0
"""Starts one program as a container runtime does, without an engine: namespaces, mounts, user, capabilities and
seccomp of a container's description.

usage: container.py DESCRIPTION        (root; JSON, see enter(); the process becomes the container's)

What Docker's and containerd's default profiles refuse a container with such capabilities is refused here."""

import ctypes
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

# capability.h, in its order.
CAPABILITIES = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 24, 38, 22
EPERM, ENOSYS = 1, 38
# By the capability that has a profile allow them; none: with no capability of ours. (perf_event_open comes with
# PERFMON in Docker's and containerd's, in Podman's and CRI-O's of before 2026 with SYS_ADMIN too.)
REFUSED = {
    "SYS_ADMIN": "clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount "
                 "open_tree perf_event_open quotactl setdomainname sethostname setns umount2 unshare",
    "SYS_CHROOT": "chroot", "SYS_BOOT": "reboot", "SYS_MODULE": "init_module finit_module delete_module",
    "SYS_PACCT": "acct", "SYS_RAWIO": "iopl ioperm", "SYS_TIME": "settimeofday clock_settime",
    "SYS_NICE": "get_mempolicy mbind set_mempolicy", "SYSLOG": "syslog", "BPF": "bpf",
    "SYS_PTRACE": "kcmp pidfd_getfd process_madvise", "DAC_READ_SEARCH": "open_by_handle_at",
    None: "add_key request_key keyctl userfaultfd kexec_load kexec_file_load swapon swapoff nfsservctl pivot_root "
          "io_uring_setup io_uring_enter io_uring_register move_pages migrate_pages vmsplice",
}
libc = ctypes.CDLL(None, use_errno=True)


def mask_of(names):
    return sum(1 << CAPABILITIES.index(name) for name in names)


def must(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def syscall_numbers():
    text = subprocess.run(["cc", "-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"], capture_output=True,
                          text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", text, re.MULTILINE)}


def filter_of(names):
    """The seccomp program that refuses what the capabilities `names` do not have a default profile allow."""
    numbers = syscall_numbers()
    code = [struct.pack("<HBBI", 0x20, 0, 0, 0)]  # the system call's number
    for capability, calls in REFUSED.items():
        for call in calls.split() if capability not in names else ():
            if call in numbers:
                # clone3 as these profiles do, so that the C library falls back on clone.
                errno = ENOSYS if call == "clone3" else EPERM
                code += [struct.pack("<HBBI", 0x15, 0, 1, numbers[call]), struct.pack("<HBBI", 0x06, 0, 0, 0x50000 | errno)]
    return b"".join([*code, struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)])


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def mount_all(wanted):
    """The container's root, as a mount of its own: image, /proc of its process namespace, /sys, its volumes."""
    root = pathlib.Path(wanted["root"])
    mount("--make-rprivate", "/")
    mount("--bind", wanted["image"], root)
    for source, target in wanted["system"]:
        mount("--bind", "-o", "ro", source, f"{root}{target}")
    mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", root / "proc")
    mount("-t", "sysfs", "-o", "ro,nosuid,nodev,noexec", "sysfs", root / "sys")
    mount("-t", "tmpfs", "tmpfs", root / "tmp")
    for source, target, read_only in wanted["volumes"]:
        mount("--bind", source, f"{root}{target}")
        if read_only:
            mount("-o", "remount,bind,ro", f"{root}{target}")
    for path in ("proc/kcore", "proc/keys", "proc/timer_list"):  # as runtimes hide them
        if (root / path).exists():
            mount("--bind", "/dev/null", root / path)
    if wanted["read_only"]:
        mount("-o", "remount,bind,ro", root)


def enter_user_namespace():
    """One of its own, with our user as its only one."""
    uid, gid = os.geteuid(), os.getegid()
    must(libc.unshare(0x10000000), "a user namespace")  # CLONE_NEWUSER
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def give_up_rights(wanted):
    mask, uid = mask_of(wanted["capabilities"]), wanted["uid"]
    for number in range(len(CAPABILITIES)):
        if not mask >> number & 1:
            must(libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0), "bounding set")
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    if uid == 0:
        low, high = mask & 0xFFFFFFFF, mask >> 32
        must(libc.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", low, low, 0, high, high, 0)), "capset")
    if wanted["no_new_privileges"]:
        must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def enter(wanted):
    """Becomes wanted["command"]: in `root`, a folder to mount on, with `image` as its files and `system` and
    `volumes` on them; as `uid` with `capabilities`, `no_new_privileges`, and the default seccomp profile. Or, with
    `user_namespace`, as root of one."""
    code = filter_of(wanted["capabilities"])
    mount_all(wanted)
    if wanted.get("user_namespace"):
        enter_user_namespace()  # not from a chroot
    os.chroot(wanted["root"])
    os.chdir(wanted["directory"])
    if not wanted["no_new_privileges"]:  # then it is installed by who may do so without
        must(libc.prctl(PR_SET_SECCOMP, 2, filter_argument(code), 0, 0), "seccomp")
    if not wanted.get("user_namespace"):
        give_up_rights(wanted)
    if wanted["no_new_privileges"]:
        must(libc.prctl(PR_SET_SECCOMP, 2, filter_argument(code), 0, 0), "seccomp")
    os.execvpe(wanted["command"][0], wanted["command"], wanted["environment"])


def filter_argument(code, kept=[]):
    """struct sock_fprog; what it points to lives as long as the process."""
    kept.append(ctypes.create_string_buffer(code))
    kept.append(ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(kept[-1]))))
    return kept[-1]


if __name__ == "__main__":
    enter(json.loads(pathlib.Path(sys.argv[1]).read_text()))
