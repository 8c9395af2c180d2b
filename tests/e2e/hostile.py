# SPDX-License-Identifier: Apache-2.0
"""A hostile process: maps the shim's file, offers a forged memfd, fires the probes with whatever it likes.

    hostile.py SHIM FORGERY [ATTACK] [--victim FILE] [--image FILE]

Prints "ready" when all is in place, then waits for a line, attacks, prints "done", and waits for the end
of its input. Needs nothing but the standard library."""

import argparse
import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import re
import sys

STATUS_MAGIC = 0x31464F5250555047
F_ADD_SEALS, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 1033, 2, 4, 8
MEMFD_BYTES = 8192 + 8192 * 64
AT_FDCWD, OPEN_TREE_CLONE, SYS_OPEN_TREE = -100, 1, 428

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]


def status_page(pid, start_ticks, magic=STATUS_MAGIC):
    page = bytearray(4096)
    struct.pack_into("<QIIIIQ", page, 0, magic, 1, 0, pid, 2, start_ticks)
    return bytes(page)


def start_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[19])


def memfd(page, seals, size=MEMFD_BYTES):
    fd = os.memfd_create("gpu-profiled", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, page[:size], 0)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def dressed_up(directory, victim, how):
    """Opens `victim` so that its link in /proc reads "/memfd:gpu-profiled...": a clone of the folder's mount
    has the folder as its root."""
    disguise = os.path.join(directory, "memfd:gpu-profiled (deleted)")
    if how == "symlink":
        os.symlink(victim, disguise)
    elif how == "hardlink":
        os.link(victim, disguise)
    else:
        open(disguise, "w").close()
        subprocess.run(["mount", "--bind", victim, disguise], check=True)
    recursive = 0x8000
    tree = libc.syscall(SYS_OPEN_TREE, AT_FDCWD, directory.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC | recursive)
    if tree < 0:
        raise OSError(ctypes.get_errno(), "open_tree")
    return os.open("memfd:gpu-profiled (deleted)", os.O_RDONLY, dir_fd=tree)


def forge(kind, victim, directory):
    mine = status_page(os.getpid(), start_ticks(os.getpid()))
    if kind in ("bind", "hardlink", "symlink"):
        return dressed_up(directory, victim, kind)
    if kind == "bind-mapped":  # found through /proc/PID/map_files only
        fd = dressed_up(directory, victim, "bind")
        libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        os.close(fd)
        return None
    if kind == "no-seals":
        return memfd(mine, 0)
    if kind == "write-sealed":
        return memfd(mine, SEAL_SHRINK | SEAL_GROW | SEAL_WRITE)
    if kind == "shrunk":
        return memfd(mine, SEAL_SHRINK, 4096)
    if kind == "wrong-magic":
        return memfd(status_page(os.getpid(), start_ticks(os.getpid()), magic=42), SEAL_SHRINK)
    if kind == "other-owner":
        return memfd(status_page(os.getppid(), start_ticks(os.getppid())), SEAL_SHRINK)
    if kind == "half-written":
        page = bytearray(mine)
        struct.pack_into("<I", page, 12, 1)
        return memfd(bytes(page), SEAL_SHRINK)
    return memfd(mine, SEAL_SHRINK)  # a good one: this process may be profiled


class Probes:
    """Fires the sites of the shim's file, mapped executable: the sites are nops with a return behind."""

    def __init__(self, shim):
        notes = subprocess.run(["readelf", "-nW", shim], capture_output=True, text=True, check=True).stdout
        headers = subprocess.run(["readelf", "-lW", shim], capture_output=True, text=True, check=True).stdout
        offset, address, size = next(
            (int(m[1], 16), int(m[2], 16), int(m[3], 16)) for m in
            re.finditer(r"LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+) 0x\w+ R E", headers))
        page = mmap.PAGESIZE
        fd = os.open(shim, os.O_RDONLY)
        start = offset - offset % page
        base = libc.mmap(None, size + offset % page, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, start)
        shape = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
        self.sites = {name: shape(base + int(place, 16) - address + offset - start)
                      for name, place in re.findall(r"Name: (\w+)\s+Location: (0x\w+)", notes)}
        self.seq = dict.fromkeys(self.sites, 0)

    def fire(self, probe, records, count, seq=None):
        at = self.seq[probe] if seq is None else seq
        if seq is None:
            self.seq[probe] += count
        self.sites[probe](ctypes.cast(ctypes.create_string_buffer(records, len(records) + 1), ctypes.c_void_p),
                          count, at)

    def raw(self, probe, pointer, count, seq):
        self.sites[probe](pointer, count, seq)


def execution(i, name=1, context=1, graph=0, kind=1, start=10**9, end=10**9 + 1000, epoch=1):
    return struct.pack("<QQIIQIIIIIIQQ3I3IIIII", start, end, i & 0xFFFFFFFF, epoch, name, kind, 0, 0, context, 0, graph,
                       i if graph else 0, 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)


def launch(i, weight=1 << 32, kind=1, name=1):
    return struct.pack("<QIIQQIIIIII", 10**9, i & 0xFFFFFFFF, 1, name, weight, kind, 1, 1, 307, 0, 0)


def name(identity, text, total=None, offset=0):
    chunk = text[:224]
    return struct.pack("<QIIIIQ", identity, 1, len(text) if total is None else total, offset, len(chunk), 0) + \
        chunk.ljust(224, b"\0")


def bad_calls(probes):
    """Counts, sizes and pointers that no shim would give."""
    good = execution(1) * 4
    for probe in probes.sites:
        for count in (0, 1, 257, 65536, 2**31, 2**32 - 1):
            for pointer in (0, 8, 2**47 - 8, 2**63, 2**64 - 64):
                probes.raw(probe, pointer, count, 0)
        for seq in (0, 2**63, 2**64 - 1):
            probes.fire(probe, good, 2, seq)


def bad_records(probes):
    """Records whose fields lie, and plain noise."""
    for i in range(200):
        probes.fire("exec_v1", execution(i, start=0) + execution(i, kind=99) + execution(i, start=9, end=3), 3)
        probes.fire("exec_v1", execution(i, end=2**64 - 1), 1)
        probes.fire("launch_v1", launch(i, weight=0), 1)
        probes.fire("launch_v1", launch(i, weight=2**64 - 1), 1)
        probes.fire("name_v1", name(i, b"\x1b[31m\xff\xfe\0%n" * 9, total=2**32 - 1, offset=224 * i), 1)
    for probe in probes.sites:
        for _ in range(100):
            probes.fire(probe, os.urandom(8192), 16)
    for pid in (0, 1, 2**31, os.getppid()):
        probes.fire("process_v1", struct.pack("<IIQiIQ24x", 1, pid, 5, 3, 2, 10**9), 1)
    for kind in range(40):
        probes.fire("drop_v1", struct.pack("<IIQQ", kind, kind, 2**64 - 1, 0), 1)


def flood(probes, seconds_of_it=6):
    """Everything that the daemon keeps a table of, with a new key each time."""
    import time
    end = time.monotonic() + seconds_of_it
    i = 0
    while time.monotonic() < end:
        batch = range(i, i + 256)
        probes.fire("exec_v1", b"".join(execution(k, name=k, context=k, graph=k % 7 * k, epoch=k) for k in batch), 256)
        probes.fire("name_v1", b"".join(name(k, b"n%d" % k + b"x" * 200) for k in batch[:128]), 128)
        probes.fire("name_v1", b"".join(name(k, b"y" * 224, total=16384) for k in batch[128:]), 128)
        for k in batch[:64]:
            probes.fire("launch_v1", launch(k, name=k), 1)
            probes.fire("device_v1", struct.pack("<IIIIQQ16sIIII96s", k, 1, 9, 0, 1, 1, b"", 0, 0, 0, 0, b"d" * 96), 1)
        i += 256
    print(i, file=sys.stderr)


MODULES_AT, MODULE_COUNT_AT = 8192, 76  # memfd_layout.h
PRESENT, COPIED = 1, 2
KEPT = []


def module_entry(key, address, size, state=PRESENT, copy=0):
    return struct.pack("<QQQQQII", key, address & (2**64 - 1), size, 0, copy, state, 0)


def forged_modules(probes, fd, image):
    """A module table that lies in every field, one after the other, an image that changes while it is read, one that is
    right, and a PC sample of each."""
    import threading
    xxh3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
    good = ctypes.create_string_buffer(image, len(image))
    # Large: no reader is done before the next byte changes.
    changing = ctypes.create_string_buffer(image + bytes(32 << 20), len(image) + (32 << 20))
    at, size = ctypes.addressof(good), len(image)
    key = xxh3(at, size)
    changing_key = xxh3(ctypes.addressof(changing), len(changing))
    KEPT.extend((good, changing))  # the daemon reads them later
    entries = [module_entry(1, 0xdead0000, size), module_entry(2, -4096, 8192), module_entry(3, 0xffffffff81000000, size),
               module_entry(4, at, 1 << 40), module_entry(5, at, 0), module_entry(6, at, size),
               module_entry(7, at, size, COPIED, 1 << 50), module_entry(changing_key, ctypes.addressof(changing), len(changing)),
               module_entry(key, at, size)]
    os.pwrite(fd, b"".join(entries), MODULES_AT)
    os.pwrite(fd, struct.pack("<I", len(entries)), MODULE_COUNT_AT)

    def change():
        while True:
            for place in range(len(image), len(changing), 1 << 20):
                changing[place] = bytes([changing[place][0] + 1 & 255])

    threading.Thread(target=change, daemon=True).start()
    probes.fire("name_v1", name(5, b"chain"), 1)
    stall = b"smsp__pcsamp_warps_issue_stalled_wait"
    probes.fire("name_v1", struct.pack("<QIIIIQ", 0, 2, len(stall), 0, len(stall), 0) + stall.ljust(224, b"\0"), 1)
    probes.fire("device_v1", struct.pack("<IIIIQQ16sIIII96s", 0, 1, 9, 0, 1, 1, b"", 0, 0, 0, 0, b"d"), 1)
    probes.fire("exec_v1", execution(1, name=5), 1)
    for entry in entries:
        probes.fire("pc_sample_v1", entry[:8] + struct.pack("<QQIIIIIIII", 5, 1, 0x190, 0, 10, 0, 0, 0, 1, 0), 1)


ATTACKS = {"calls": bad_calls, "records": bad_records, "flood": flood, "none": lambda probes: None}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("forgery")
    parser.add_argument("attack", nargs="?", default="none", choices=[*sorted(ATTACKS), "modules"])
    parser.add_argument("--image")
    parser.add_argument("--victim")
    parser.add_argument("--directory")
    options = parser.parse_args()
    fd = None if options.forgery == "nothing" else forge(options.forgery, options.victim, options.directory)
    probes = Probes(options.shim)
    print("ready", fd, flush=True)
    sys.stdin.readline()
    if options.attack == "modules":
        with open(options.image, "rb") as file:
            forged_modules(probes, fd, file.read())
    else:
        ATTACKS[options.attack](probes)
    print("done", flush=True)
    sys.stdin.readline()


main()
