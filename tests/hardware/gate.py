# SPDX-License-Identifier: Apache-2.0
"""The workload's side of gate.h, for Python workloads; no directory: no gate."""
import os
import time


class Gate:
    def __init__(self, directory):
        self.directory = directory

    def _touch(self, name):
        open(os.path.join(self.directory, name), "w").close()

    def _beat_until(self, name, beat):
        while not os.path.exists(os.path.join(self.directory, name)):
            beat()
            time.sleep(0.005)

    def open(self, beat):
        if self.directory:
            self._touch("ready")
            self._beat_until("go", beat)

    def close(self, beat):
        if self.directory:
            self._touch("done")
            self._beat_until("stop", beat)
