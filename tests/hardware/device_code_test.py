#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the PC sampling checks conclude from profiles made up here: right ones pass, wrong ones do not."""
import collections
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import device_code as code  # noqa: E402
import pc_checks  # noqa: E402
import pprof_reader  # noqa: E402
import section_pc  # noqa: E402
import section_pccost  # noqa: E402
import section_pctorch  # noqa: E402
import truth  # noqa: E402
from harness import Report  # noqa: E402
from made_profile import Line, MadeProfile, Place  # noqa: E402

SOURCE = """\
__device__ __forceinline__ float inner(float x, int n) {
  for (int i = 0; i < n; ++i)
    x = x * 2;  // hot: busy
  return x;
}
__device__ float outer(float x) { return inner(x, 3); }

__global__ void busy(float* out) {
  out[0] = outer(out[0]);
}
__global__ void empty() {}
"""
CUBIN = "[cubin sm_90 0123456789ab]"


def place(file, line, address=16, outermost="_Z4busyPf"):
    return Place(CUBIN, address, (Line("_Z5innerfi", file, line), Line("_Z5outerf", file, 6), Line(outermost, file, 9)))


CPU = (Place("/bin/program", 32, (Line("launch_busy(float*)", "/a.cc", 7),)), Place("/bin/program", 48, (Line("main"),)))
PLAIN = Place("[cuda]", 0, (Line("_Z5emptyv"),))
GRAPH = Place("[cuda]", 4096, (Line("[cuda graph]"),))
LOST = Place("[cuda]", 8192, (Line("[unattributed]"),))


class FakeBench:
    """As much of Bench as a check needs."""

    def __init__(self, folder):
        self.out = pathlib.Path(folder)
        self.report = Report(self.out / "results.json")
        self.part = ""

    def status(self, part):
        found = [row["status"] for row in self.report.rows if part in row["check"]]
        assert len(found) == 1, f"{part}: {[row['check'] for row in self.report.rows]}"
        return found[0]


class WithSource(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.source = str(pathlib.Path(self.folder.name, "a.cu"))
        pathlib.Path(self.source).write_text(SOURCE)
        self.bench = FakeBench(self.folder.name)
        for cache in (code.source_lines, code.function_ranges):
            cache.cache_clear()

    def tearDown(self):
        self.folder.cleanup()

    def profile(self, *samples):
        """samples: (places, values, labels)"""
        made = MadeProfile()
        for sample in samples:
            made.add(*sample)
        return pprof_reader.parse(made.bytes())

    def sampled(self, line=3, pc=90, time=900, executions=9, status="resolved", attrib="kernel", stall="wait", **named):
        return ((place(self.source, line, 16 * line, **named), *CPU),
                {"gpu_time": time, "gpu_executions": executions, "gpu_pc_samples": pc},
                {"gpu_src_status": status, "gpu_pc_attrib": attrib, "gpu_stall": stall})


class Reading(WithSource):
    def test_locations_mappings_and_labels(self):
        made = MadeProfile()
        made.add((place(self.source, 3), *CPU), {"gpu_time": 5}, {"gpu_stall": "wait", "pid": 7})
        profile = pprof_reader.parse(made.bytes())
        sample = profile.samples[0]
        self.assertEqual([len(l.frames) for l in sample.locations], [3, 1, 1])
        self.assertEqual([l.mapping.file for l in sample.locations], [CUBIN, "/bin/program", "/bin/program"])
        self.assertTrue(sample.locations[0].mapping.has_line_numbers)
        self.assertEqual(sample.locations[0].address, 16)
        self.assertEqual(sample.labels, {"gpu_stall": "wait", "pid": 7})
        self.assertEqual(len(profile.locations), 3)

    def test_kernel_below_inlined_calls_graphs_and_nothing(self):
        profile = self.profile(self.sampled(), ((PLAIN, GRAPH, *CPU), {"gpu_executions": 4}),
                               ((place(self.source, 3), LOST), {"gpu_pc_samples": 1}))
        self.assertEqual([code.kernel_name(s) for s in profile.samples], ["_Z4busyPf", "_Z5emptyv", "_Z4busyPf"])
        self.assertEqual([len(code.device_frames(s)) for s in profile.samples], [3, 1, 3])
        self.assertEqual(truth.executions_by_kernel(profile), {"_Z4busyPf": 9, "_Z5emptyv": 4})
        self.assertEqual(truth.wrong_launchers(profile, {"busy": "launch_busy"}), [])

    def test_kernel_above_a_function_with_code_of_its_own(self):
        alone = Place(CUBIN, 64, (Line("_Z5outerf", self.source, 6),))
        profile = self.profile(((alone, PLAIN, *CPU), {"gpu_time": 1}))
        self.assertEqual(code.kernel_name(profile.samples[0]), "_Z5emptyv")


class Lines(WithSource):
    def wrong(self, *samples):
        return tuple(sum(found.values()) for found in code.wrong_lines(self.profile(*samples).samples, [self.source]))

    def test_ranges(self):
        self.assertEqual(code.function_ranges(self.source),
                         {"inner": [(1, 5)], "outer": [(6, 6)], "busy": [(8, 10)], "empty": [(11, 11)]})
        self.assertEqual(code.python_ranges("@a\ndef f(x):\n  y = 1\n  return y\n"), {"f": [(2, 4)]})

    def test_right_ones(self):
        self.assertEqual(self.wrong(self.sampled(), self.sampled(line=2)), (0, 0))

    def test_wrong_ones(self):
        self.assertEqual(self.wrong(self.sampled(line=9, pc=5)), (0, 5))  # in another function
        self.assertEqual(self.wrong(self.sampled(outermost="_Z5othern", pc=5)), (0, 5))
        self.assertEqual(self.wrong(self.sampled(line=7, pc=5)), (5, 0))  # an empty line
        self.assertEqual(self.wrong(self.sampled(line=99, pc=5)), (5, 0))
        self.assertEqual(self.wrong(((place("/no/such.cu", 3),), {"gpu_pc_samples": 2}, {"gpu_src_status": "resolved"})),
                         (6, 0))  # in each of the three frames
        none = Place(CUBIN, 16, (Line("_Z4busyPf"),))
        self.assertEqual(self.wrong(((none,), {"gpu_pc_samples": 1}, {"gpu_src_status": "resolved"})), (1, 0))
        self.assertEqual(self.wrong(((none,), {"gpu_pc_samples": 1}, {"gpu_src_status": "no-lineinfo"})), (0, 0))

    def test_a_function_without_lines_is_at_its_call(self):
        helper = Place(CUBIN, 80, (Line("__cuda_sm20_sqrt_rn_f32_slowpath"), Line("_Z4busyPf", self.source, 9)))
        sample = ((helper, *CPU), {"gpu_pc_samples": 3}, {"gpu_src_status": "resolved"})
        self.assertEqual(self.wrong(sample), (0, 0))
        hot, = code.hot_lines(self.profile(sample).samples)["busy"]
        self.assertEqual((hot.file, hot.line, hot.samples), (self.source, 9, 3))

    def test_few_lines_may_be_displaced_and_none_impossible(self):
        for name, wrong, want in (("few", self.sampled(line=9, pc=1), "met"), ("many", self.sampled(line=9, pc=2), "not met"),
                                  ("impossible", self.sampled(line=99, pc=1), "not met")):
            samples = self.profile(self.sampled(pc=100), wrong).samples
            pc_checks.check_lines(self.bench, name, samples, [self.source])
            self.assertEqual(self.bench.status(f"{name}: lines"), want)

    def test_every_function_of_the_workloads_is_found(self):
        here = pathlib.Path(__file__).parent
        for kernel, chain in section_pc.chains().items():
            for name in chain:
                self.assertIn(name, code.function_ranges(str(here / "hot_loops.cu")), kernel)
            self.assertIn(kernel, code.marked_lines(here / "hot_loops.cu"))
        for name in (*section_pc.W2_KERNELS, "iterate"):
            self.assertIn(name, code.function_ranges(str(here / "w2.cu")))
        for name in ("triton_softmax", "triton_horner", "shifted"):
            self.assertIn(name, code.function_ranges(str(here / "pc_torch.py")))


class Checks(WithSource):
    def check_hot(self, *samples):
        pc_checks.check_hot_lines(self.bench, "x", self.profile(*samples).samples, self.source,
                                  {"busy": ["inner", "outer", "busy"]})
        return self.bench.status("hottest"), self.bench.status("inline chain")

    def test_hot_lines(self):
        self.assertEqual(self.check_hot(self.sampled(pc=60), self.sampled(line=2, pc=40)), ("met", "met"))
        text = (self.bench.out / "hot_lines.txt").read_text()
        self.assertIn("x = x * 2;  // hot: busy", text)
        self.assertIn("60.0 %", text)

    def test_hot_lines_elsewhere(self):
        self.assertEqual(self.check_hot(self.sampled(pc=40), self.sampled(line=2, pc=60)), ("not met", "met"))

    def test_another_chain(self):
        flat = Place(CUBIN, 16, (Line("_Z5innerfi", self.source, 3), Line("_Z4busyPf", self.source, 9)))
        self.assertEqual(self.check_hot(((flat, *CPU), {"gpu_pc_samples": 5}, {"gpu_src_status": "resolved"})),
                         ("met", "not met"))

    def test_no_samples_is_never_met(self):
        pc_checks.check_resolved(self.bench, "a", [])
        pc_checks.check_lines(self.bench, "b", [], [self.source])
        pc_checks.check_attribution(self.bench, "c", [], "serialized")
        self.assertEqual({row["status"] for row in self.bench.report.rows}, {"not met"})
        self.assertEqual(self.check_hot(), ("not met", "not met"))

    def test_resolved_share(self):
        good = self.profile(self.sampled(pc=99), self.sampled(line=2, pc=1, status="no-module")).samples
        bad = self.profile(self.sampled(pc=98), self.sampled(line=2, pc=2, status="unmapped")).samples
        self.assertEqual(pc_checks.check_resolved(self.bench, "good", good), 0.99)
        pc_checks.check_resolved(self.bench, "bad", bad)
        self.assertEqual((self.bench.status("good"), self.bench.status("bad")), ("met", "not met"))

    def test_attribution(self):
        def status(name, tier, *attribs):
            samples = [self.sampled(line=2 + i % 2, pc=pc, attrib=a, stall=str(i)) for i, (a, pc) in enumerate(attribs)]
            pc_checks.check_attribution(self.bench, name, self.profile(*samples).samples, tier)
            return self.bench.status(f"{name}: ")

        self.assertEqual(status("a", "serialized", ("exact", 99), ("unattributed", 1)), "met")
        self.assertEqual(status("b", "serialized", ("exact", 98), ("unattributed", 2)), "not met")
        self.assertEqual(status("c", "serialized", ("exact", 999), ("graph-refused", 1)), "not met")
        self.assertEqual(status("d", "continuous", ("kernel", 500), ("kernel-ambiguous", 500)), "met")
        self.assertEqual(status("e", "continuous", ("kernel", 999), ("exact", 1)), "not met")
        self.assertEqual(status("f", "continuous", ("kernel", 90), ("unattributed", 10)), "not met")

    def summary(self, received=900, samples=90, **shim):
        return {"total": {"gpu_time_ns": {"received": received, "evicted": 0, "pending": 0}},
                "targets": [{"pc_sampling": {"asked": "continuous", "state": "on", "reason": "none", "period_log2_cycles": 18,
                                             "shim": {"samples": samples, "windows": 1, "graph_refused": 0, **shim}},
                             "devices": [{"sm_count": 100}]},
                            {"pid": 9}]}

    def test_conserved(self):
        for name, summary, want in (("a", self.summary(), ("met", "met")), ("b", self.summary(901), ("not met", "met")),
                                    ("c", self.summary(samples=91), ("met", "not met"))):
            pc_checks.check_conserved(self.bench, name, self.profile(self.sampled()), summary)
            self.assertEqual((self.bench.status(f"{name}: gpu_time"), self.bench.status(f"{name}: PC samples")), want)

    def test_refused(self):
        summary = self.summary(graph_refused=1, windows=0)
        summary["targets"][0]["pc_sampling"].update(state="refused", reason="graph", text="a graph ran")
        section_pc.check_refused(self.bench, "a", None, summary, "graph", at_most_windows=0)
        section_pc.check_refused(self.bench, "b", None, summary, "graph", at_least_windows=1)
        section_pc.check_refused(self.bench, "c", None, summary, "collective")
        section_pc.check_refused(self.bench, "d", None, self.summary(), "graph")
        section_pc.check_refused(self.bench, "e", None, None, "graph")
        self.assertEqual([self.bench.status(f"{n}: refused") for n in "abcde"], ["met"] + ["not met"] * 4)

    def test_late_attach_is_as_good(self):
        for name, late, start in (("a", 0.99, 0.992), ("b", 0.98, 0.992), ("c", None, 1.0)):
            pc_checks.check_as_good(self.bench, name, late, start)
        self.assertEqual([self.bench.status(f"{n}: late") for n in "abc"], ["met", "not met", "not run"])

    def test_samples_a_second_and_sm(self):
        compute = Place(CUBIN, 16, (Line("_Z7computePfii", self.source, 3),))
        for name, pc, want in (("few", 100_000 - 1, "not met"), ("enough", 100_000, "met")):
            self.bench.report.rows.clear()
            profile = self.profile(((compute, *CPU), {"gpu_time": 10**9, "gpu_pc_samples": pc}))
            section_pccost.samples_per_sm(self.bench, profile, self.summary())
            self.assertEqual(self.bench.status("samples a second"), want, name)


class Torch(WithSource):
    def setUp(self):
        super().setUp()
        self.source = str(pathlib.Path(self.folder.name, "a.py"))
        pathlib.Path(self.source).write_text("def triton_a():\n  x = 1\n\ny = 2\ndef inlined():\n  return 1\n")

    def check(self, *samples):
        self.bench.source = lambda name: pathlib.Path(self.source)
        section_pc.check_torch(self.bench, "t", self.profile(*samples), None)
        return [self.bench.status(part) for part in ("Triton: PC samples", "Triton's lines", "Triton: lines", "cuBLAS")]

    def triton(self, file=None, line=2, status="resolved", name="triton_a"):
        return ((Place(CUBIN, 16 + line, (Line(name, file or self.source, line),)), *CPU), {"gpu_pc_samples": 100},
                {"gpu_src_status": status, "gpu_pc_attrib": "kernel"})

    def vendor(self, status="no-lineinfo"):
        return ((Place("[cubin sm_80 77]", 16, (Line("_ZN7cutlass6KernelIXEEvT_"),)), *CPU), {"gpu_pc_samples": 100},
                {"gpu_src_status": status, "gpu_pc_attrib": "kernel"})

    def test_right(self):
        self.assertEqual(self.check(self.triton(), self.vendor()), ["met"] * 4)

    def inlined(self, line):
        """Triton names an inlined function after the kernel."""
        where = Place(CUBIN, 16, (Line("triton_a", self.source, line), Line("triton_a", self.source, 2)))
        return (where, *CPU), {"gpu_pc_samples": 100}, {"gpu_src_status": "resolved", "gpu_pc_attrib": "kernel"}

    def test_inlined(self):
        self.assertEqual(self.check(self.inlined(6), self.vendor()), ["met"] * 4)

    def test_inlined_from_nowhere(self):
        self.assertEqual(self.check(self.inlined(4), self.vendor())[2], "not met")

    def test_triton_without_lines(self):
        self.assertEqual(self.check(self.triton(status="no-lineinfo"), self.vendor())[0], "not met")

    def test_triton_outside_of_its_function(self):
        self.assertEqual(self.check(self.triton(line=4), self.vendor())[2], "not met")

    def test_triton_library_more_than_the_source(self):
        library = pathlib.Path(self.folder.name, "standard.py")
        library.write_text("def zeros():\n  return 0\n")
        self.assertEqual(self.check(self.triton(), self.triton(str(library)), self.vendor()), ["met"] * 4)
        self.bench.report.rows.clear()
        self.assertEqual(self.check(self.triton(), self.triton(str(library)), self.triton(str(library), 1),
                                    self.vendor())[1], "not met")

    def test_vendor_code_with_a_line(self):
        self.assertEqual(self.check(self.triton(), self.vendor(), self.vendor("resolved"))[3], "not met")

    def test_vendor_code_missing(self):
        self.assertEqual(self.check(self.triton())[3], "not met")


class Table(unittest.TestCase):
    def test_each_period_is_measured_and_the_judged_ones_always(self):
        seen = collections.Counter()
        for index in range(section_pccost.TRAINING_ROUNDS):
            seen.update(section_pccost.training_ways(index).keys())
        self.assertEqual(seen["tracing"], section_pccost.TRAINING_ROUNDS)
        self.assertEqual(seen["serialized, 4 % duty"], section_pccost.TRAINING_ROUNDS)
        self.assertGreaterEqual(min(seen.values()), 1)
        self.assertEqual(len(seen), 3 + len(section_pccost.PERIODS))

    def test_table(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = FakeBench(folder)
            rounds = [{"tracing": 10 + i, "serialized, 4 % duty": (10 + i) * 1.04, "continuous, 2^12": (10 + i) * 1.5}
                      for i in range(10)]
            names = ["tracing", "continuous, 2^12", "continuous, 2^14", "serialized, 4 % duty"]
            limits = {"serialized, 4 % duty": 0.05}
            section_pccost.table(bench, rounds, names, limits)
            self.assertEqual(bench.status("serialized"), "met")
            self.assertEqual(bench.status("2^12"), "measured")
            self.assertEqual(bench.status("2^14"), "not run")
            bench.report.rows.clear()
            section_pccost.table(bench, rounds[:5], names, limits)
            self.assertEqual(bench.status("serialized"), "not shown")
            bench.report.rows.clear()
            section_pccost.table(bench, [{**r, "serialized, 4 % duty": r["tracing"] * 1.06} for r in rounds], names, limits)
            self.assertEqual(bench.status("serialized"), "not shown")


class Budget(unittest.TestCase):
    def test_what_is_not_afforded_is_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = FakeBench(folder)
            bench.left = lambda: 5
            self.assertFalse(section_pc.affords(bench, "x", 6))
            self.assertTrue(section_pc.affords(bench, "y", 4))
            self.assertEqual([(r["check"], r["status"]) for r in bench.report.rows], [("x", "not run")])
            bench.report.rows.clear()
            for section in (section_pc, section_pctorch, section_pccost):
                section.run(bench)
            self.assertEqual({r["status"] for r in bench.report.rows}, {"not run"})
            self.assertEqual(len(bench.report.rows), 15 + len(section_pccost.FLOORS))
            bench.report.rows.clear()
            bench.part = "listener"
            section_pccost.run(bench)
            self.assertEqual([r["check"] for r in bench.report.rows],
                             [f"bare listener, {name}: launch rate lost by sampling" for name in section_pccost.FLOORS])


if __name__ == "__main__":
    unittest.main()
