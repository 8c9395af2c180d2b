#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hardware check's own parts, on data made here: reader, comparison, statistics, control page."""
import os
import pathlib
import re
import statistics
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import bootstrap  # noqa: E402
import pprof_reader  # noqa: E402
import shim_control  # noqa: E402
import truth  # noqa: E402
from made_profile import TYPES, Line, MadeProfile, Place  # noqa: E402


def profile_bytes(samples):
    """samples: [(function names leaf first, gpu_time, gpu_executions)]"""
    made = MadeProfile(TYPES[:2])
    for stack, time, count in samples:
        made.add([Place("[cuda]" if i == 0 else "/bin/a", 16, (Line(name, "", 7),))
                  for i, name in enumerate(stack)], {"gpu_time": time, "gpu_executions": count})
    return made.bytes()


STACKS = [(["_Z4tinyv", "launch_tiny(int)", "main"], 100, 10), (["_Z4tinyv", "launch_driver(int)", "main"], 10, 1),
          (["[memset]", "prepare", "main"], 5, 1), (["_Z7computePfii", "somewhere"], 885, 2)]


class Readers(unittest.TestCase):
    def setUp(self):
        self.profile = pprof_reader.parse(profile_bytes(STACKS))

    def test_reads_stacks_and_values(self):
        self.assertEqual([s.names() for s in self.profile.samples], [s[0] for s in STACKS])
        self.assertEqual(self.profile.total("gpu_time"), 1000)
        self.assertEqual(self.profile.samples[0].frames[0].line, 7)

    def test_negative_values_and_truncated_input(self):
        self.assertEqual(pprof_reader.parse(profile_bytes([(["a"], -3, 1)])).total("gpu_time"), -3)
        with self.assertRaises((ValueError, IndexError)):
            pprof_reader.parse(profile_bytes(STACKS)[:-3])

    def test_counts_must_be_equal_by_name(self):
        listener = {"names": {"_Z4tinyv": 11, "_Z7computePfii": 2}, "memcpys": 0, "peer_memcpys": 0, "memsets": 1}
        self.assertTrue(truth.compare_counts(self.profile, listener)[0])
        listener["names"]["_Z4tinyv"] = 12
        self.assertFalse(truth.compare_counts(self.profile, listener)[0])
        # Right in sum, wrong by name.
        listener["names"] = {"_Z4tinyv": 12, "_Z7computePfii": 1}
        self.assertFalse(truth.compare_counts(self.profile, listener)[0])

    def test_share_on_stacks_that_reach_main(self):
        self.assertAlmostEqual(truth.share_at_root(self.profile), 0.115)

    def test_launching_functions(self):
        self.assertEqual(truth.wrong_launchers(self.profile, {"[memset]": "prepare"}), [])
        self.assertEqual(len(truth.wrong_launchers(self.profile, {"tiny": "launch_tiny"})), 1)
        self.assertEqual(len(truth.wrong_launchers(self.profile, {"absent": "launch_tiny"})), 1)

    def test_short_names(self):
        self.assertEqual(truth.short_name("_Z4tinyv"), "tiny")
        self.assertEqual(truth.short_name("ampere_sgemm"), "ampere_sgemm")


class Bootstrap(unittest.TestCase):
    def test_interval_holds_the_median_and_narrows(self):
        few = bootstrap.interval([1.0, 1.1, 0.9, 1.05, 0.95] * 2)
        many = bootstrap.interval([1.0, 1.1, 0.9, 1.05, 0.95] * 40)
        self.assertLessEqual(few[1], few[0])
        self.assertLessEqual(few[0], few[2])
        self.assertLessEqual(many[2] - many[1], few[2] - few[1])
        self.assertEqual(many[0], statistics.median([1.0, 1.1, 0.9, 1.05, 0.95]))

    def test_pairs_cancel_drift(self):
        drift = [1.0, 2.0, 3.0, 1.5, 2.5] * 3
        self.assertEqual(bootstrap.paired([1.02 * d for d in drift], drift, lambda a, b: round(a / b, 6)), (1.02,) * 3)

    def test_unequal_arms_are_an_error(self):
        with self.assertRaises(ValueError):
            bootstrap.paired([1.0], [1.0, 2.0], lambda a, b: a - b)


class Control(unittest.TestCase):
    def test_pages_are_those_of_the_layout(self):
        fd = os.memfd_create("gpu-profiled")
        os.ftruncate(fd, 16384)
        page = bytearray(4096)
        page[0:8] = shim_control.STATUS_MAGIC.to_bytes(8, "little")
        page[20] = shim_control.STATES.index("tracing")
        page[64] = 3  # arms
        page[1608:1608 + 4] = b"text"
        page[2888], page[2892], page[2896], page[2900] = 3, 12, 18, 1  # pc_state, pc_reason, pc_period, pc_contexts
        page[2904 + 8 * 7] = 5  # pc_counters[GRAPH_REFUSED]
        page[3032:3032 + 7] = b"a graph"
        os.pwrite(fd, page, 0)
        target = shim_control.Target(os.getpid())
        status = target.status()
        self.assertEqual((status["state"], status["arms"], status["text"]), ("tracing", 3, "text"))
        self.assertEqual((status["pc_state"], status["pc_reason"], status["pc_text"]), ("refused", "graph", "a graph"))
        self.assertEqual((status["pc_period"], status["pc_contexts"], status["pc"]["graph_refused"]), (18, 1, 5))
        with self.assertRaisesRegex(TimeoutError, "refused .graph: a graph"):
            target.wait_until(lambda found: found["state"] == "idle", 0)
        target.lock()
        target.request(shim_control.TIER_CONTINUOUS, 500, pc_period=12)
        self.assertEqual(int.from_bytes(os.pread(fd, 4, 4096 + 20), "little"), 12)
        target.request(shim_control.TIER_TRACE, 500)
        control = os.pread(fd, 128, 4096)
        self.assertEqual(int.from_bytes(control[0:8], "little"), shim_control.CONTROL_MAGIC)
        self.assertEqual(int.from_bytes(control[12:16], "little") % 2, 0)
        self.assertEqual(int.from_bytes(control[16:20], "little"), shim_control.TIER_TRACE)
        self.assertEqual(int.from_bytes(control[48:52], "little"), 500)
        self.assertEqual(control[64:78], b"hardware-check")
        os.close(target.fd)
        os.close(fd)

    def test_names_are_those_of_the_layout(self):
        header = (pathlib.Path(__file__).parents[2] / "proto/memfd_layout.h").read_text()

        def enumerators(prefix):
            return [name for name, _ in sorted(re.findall(rf"{prefix}(\w+) = (\d+)", header), key=lambda e: int(e[1]))
                    if name != "COUNT"]

        for prefix, names, dash in (("GPUPROF_PC_REASON_", shim_control.PC_REASONS, "-"),
                                    ("GPUPROF_PC_COUNT_", shim_control.PC_COUNTERS, "_")):
            self.assertEqual([name.lower().replace("_", dash) for name in enumerators(prefix)], names)
        for number, name in enumerate(shim_control.PC_STATES):
            self.assertIn(f"GPUPROF_PC_{name.upper()} = {number},", header)

    def test_no_shim(self):
        with tempfile.TemporaryDirectory(), self.assertRaises(shim_control.NoShim):
            shim_control.Target(os.getpid())


if __name__ == "__main__":
    unittest.main()
