# SPDX-License-Identifier: Apache-2.0
"""Control groups of a test's own, named as container engines name theirs."""

import os
import pathlib
import subprocess
import time

from bench import check

HEX = "0123456789abcdef"


def container_id(number):
    """64 hex digits, different ones for each number."""
    return "".join(HEX[(number * 7 + i * 5) % 16] for i in range(60)) + f"{number:04x}"


def pod_uid(number):
    digits = container_id(number + 1000)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:28] + f"{number:04x}"))


class Cgroups:
    """Below one directory of the v2 hierarchy, which is mounted in `folder` (beside v1 it is there, too)."""

    def __init__(self, folder):
        self.mount = pathlib.Path(folder) / "cgroup2"
        self.mount.mkdir()
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(self.mount)], check=True)
        # At the hierarchy's root: where the tests run in a container, that one's name is not above ours.
        self.root = self.mount / f"gpuprof-e2e-{os.getpid()}"
        self.made = []
        self.make("")

    def make(self, path):
        """The directory of a cgroup; what is written to its cgroup.procs moves there."""
        folder = self.root
        for name in ("", *path.split("/")):
            folder = folder / name
            if not folder.exists():
                folder.mkdir()
                self.made.append(folder)
        return folder

    def enter(self, path):
        """The beginning of a command whose process is to run in that cgroup."""
        return ["sh", "-ec", f'echo $$ > {self.make(path)}/cgroup.procs; exec "$@"', "sh"]

    def close(self):
        """Once its processes have ended."""
        deadline = time.monotonic() + 20
        for folder in reversed(self.made):
            while True:
                try:
                    folder.rmdir()
                    break
                except OSError as error:
                    check(time.monotonic() < deadline, f"{folder}: {error}: {(folder / 'cgroup.procs').read_text().split()}")
                    time.sleep(0.02)
        subprocess.run(["umount", str(self.mount)], check=True)
