# SPDX-License-Identifier: Apache-2.0
"""Reads a target's status page and drives its control page, as the daemon does (proto/memfd_layout.h).

For the arm/disarm cycles: hundreds of them in seconds, with no daemon start in between."""
import fcntl
import os
import struct
import time

STATES = ["invalid", "declined", "idle", "arming", "tracing", "tracing+pc", "disarming", "busy", "inert"]
CONTROL_OFFSET = 4096
CONTROL_MAGIC = 0x314C525443555047
STATUS_MAGIC = 0x31464F5250555047
ABI_VERSION = 1
TIER_OFF, TIER_TRACE, TIER_CONTINUOUS, TIER_SERIALIZED = 0, 1, 2, 3
PC_STATES = ["off", "waiting", "on", "refused"]
# By enum gpuprof_pc_reason and enum gpuprof_pc_counter.
PC_REASONS = ["none", "cupti-too-old", "missing-symbol", "gpu-too-old", "privilege", "mps", "mig", "vgpu", "confidential",
              "wsl", "counters-busy", "out-of-memory", "graph", "cooperative", "collective", "failed", "gpu-taken"]
PC_COUNTERS = ["samples", "windows", "drains", "enables", "disables", "healed", "contexts_refused", "graph_refused",
               "cooperative_refused", "collective_refused", "skipped_capture", "skipped_guard"]


class NoShim(Exception):
    pass


def named(names, number):
    return names[number] if number < len(names) else str(number)


def descendants(pid):
    """Process ids below `pid`, nearest first."""
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def is_sampled_below(pid):
    """Whether PC sampling is on in a process below `pid`."""
    for child in descendants(pid):
        try:
            target = Target(child)
        except (NoShim, OSError):
            continue
        try:
            if target.status()["pc_state"] == "on":
                return True
        except NoShim:
            pass
        finally:
            target.close()
    return False


class Target:
    """The shim of one process. Not thread safe."""

    def __init__(self, pid):
        self.pid = pid
        self.fd = os.open(f"/proc/{pid}/fd/{self._find(pid)}", os.O_RDWR | os.O_CLOEXEC)
        self.lease_serial = time.monotonic_ns()
        self.cycles_done = 0

    @staticmethod
    def _find(pid):
        directory = f"/proc/{pid}/fd"
        try:
            for number in os.listdir(directory):
                if os.readlink(f"{directory}/{number}").startswith("/memfd:gpu-profiled"):
                    return number
        except FileNotFoundError:
            pass
        raise NoShim(f"process {pid} has no memfd of the shim")

    @classmethod
    def wait_for(cls, pid, timeout=30.0):
        """The shim of a process, once its status page is written."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = cls(pid)
                found.status()
                return found
            except NoShim:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self):
        """Gives the control page back."""
        os.close(self.fd)

    def status(self):
        page = os.pread(self.fd, 4096, 0)
        if len(page) < 4096 or struct.unpack_from("<Q", page, 0)[0] != STATUS_MAGIC:
            raise NoShim("the status page is not written")
        state, = struct.unpack_from("<I", page, 20)
        reason, epoch = struct.unpack_from("<II", page, 32)
        cupti, driver, _, tier, arms, disarms = struct.unpack_from("<IIIIII", page, 48)
        outstanding, = struct.unpack_from("<I", page, 100)
        text = page[1608:1608 + 1024].split(b"\0")[0].decode(errors="replace")
        path = page[584:584 + 512].split(b"\0")[0].decode(errors="replace")
        pc_state, pc_reason, pc_period, pc_contexts = struct.unpack_from("<IIII", page, 2888)
        counters = struct.unpack_from("<16Q", page, 2904)
        pc_text = page[3032:3032 + 512].split(b"\0")[0].decode(errors="replace")
        return {"state": named(STATES, state), "reason": reason, "epoch": epoch,
                "cupti": cupti, "driver": driver, "tier": tier, "arms": arms, "disarms": disarms,
                "outstanding": outstanding, "text": text, "cupti_path": path,
                "pc_state": named(PC_STATES, pc_state), "pc_reason": named(PC_REASONS, pc_reason),
                "pc_period": pc_period, "pc_contexts": pc_contexts, "pc_text": pc_text,
                "pc": dict(zip(PC_COUNTERS, counters))}

    def lock(self):
        """The controller's OFD lock; released with the descriptor."""
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK,
                    struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, CONTROL_OFFSET, 4096, 0))

    def request(self, tier, lease_ms=10_000, pc_period=0):
        seq, = struct.unpack("<I", os.pread(self.fd, 4, CONTROL_OFFSET + 12))
        seq |= 1
        self.lease_serial += 1
        self._write_seq(seq)
        body = struct.pack("<IIIIQQII", tier, pc_period, 0, 0, 0, self.lease_serial, lease_ms, os.getpid())
        os.pwrite(self.fd, body, CONTROL_OFFSET + 16)
        os.pwrite(self.fd, b"hardware-check".ljust(64, b"\0"), CONTROL_OFFSET + 64)
        self._write_seq(seq + 1)

    def _write_seq(self, seq):
        os.pwrite(self.fd, struct.pack("<QII", CONTROL_MAGIC, ABI_VERSION, seq & 0xFFFFFFFF), CONTROL_OFFSET)

    def wait_state(self, wanted, timeout=10.0):
        """The status once its state is one of `wanted`; TimeoutError with the last state otherwise."""
        return self.wait_until(lambda status: status["state"] in wanted, timeout, " or ".join(wanted))

    def wait_until(self, good, timeout=10.0, what="what was waited for"):
        """The status once `good` is true of it; TimeoutError with the last one otherwise."""
        deadline = time.monotonic() + timeout
        while True:
            status = self.status()
            if good(status):
                return status
            if time.monotonic() > deadline:
                pc = f", PC sampling {status['pc_state']}" + \
                    (f" ({status['pc_reason']}: {status['pc_text']})" if status["pc_state"] == "refused" else "")
                raise TimeoutError(f"state {status['state']} ({status['text']}, {status['outstanding']} buffers out{pc}) "
                                   f"instead of {what}")
            time.sleep(0.002)

    def pc_cycles(self, count, tier, base=TIER_OFF, armed_seconds=0.02, timeout=15.0, deadline=None, window_every=1,
                  drain_every=10):
        """PC sampling on in `tier` and off again `count` times, from `base` and back to it. Each `window_every`-th, the
        first too, lasts until a window was opened, each `drain_every`-th for three drains (without a daemon there
        is no other sign of sampling). Returns early at the deadline; TimeoutError where a step does not come.
        `cycles_done` counts meanwhile."""
        self.lock()
        self.cycles_done = 0
        rest = "idle" if base == TIER_OFF else "tracing"
        self.request(base)
        self.wait_state((rest,), timeout)
        lease_ms = int(2000 * timeout)
        for cycle in range(count):
            if deadline is not None and time.monotonic() > deadline:
                break
            before = self.status()["pc"]
            windows = 1 if cycle % window_every == 0 else 0
            drains = 3 if cycle % drain_every == 0 else 0
            self.request(tier, lease_ms)
            self.wait_until(lambda status: status["pc_state"] == "on" and
                            status["pc"]["windows"] >= before["windows"] + windows and
                            status["pc"]["drains"] >= before["drains"] + drains,
                            timeout, f"PC sampling on with {windows} windows and {drains} drains more")
            time.sleep(armed_seconds)
            self.request(base, lease_ms)
            self.wait_until(lambda status: status["state"] == rest and status["pc_contexts"] == 0, timeout, rest)
            self.cycles_done += 1
        return self.cycles_done

    def cycles(self, count, armed_seconds=0.015, timeout=10.0, deadline=None):
        """Arms and disarms `count` times; how many were done by the deadline (time.monotonic())."""
        self.lock()
        for done in range(count):
            if deadline is not None and time.monotonic() > deadline:
                return done
            self.request(TIER_TRACE)
            self.wait_state(("tracing",), timeout)
            time.sleep(armed_seconds)
            self.request(TIER_OFF)
            self.wait_state(("idle",), timeout)
        return count
