# SPDX-License-Identifier: Apache-2.0
"""The gate is whole: no number is missing, each assertion has its halves, and every case it names exists."""
import json
import pathlib
import subprocess
import sys
import unittest

from assertions import ASSERTIONS, GPU_ONLY, ROOT_HALVES
import halves

BUILD = pathlib.Path(sys.argv.pop()).resolve()


class Gate(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual([a.number for a in ASSERTIONS], list(range(1, 17)))
        self.assertEqual([*ROOT_HALVES, *GPU_ONLY], list(range(1, 17)))

    def test_halves(self):
        for assertion in ASSERTIONS:
            with self.subTest(assertion.name):
                self.assertGreater(len(assertion.sentence), 40)
                self.assertEqual(bool(assertion.unit), assertion.number in ROOT_HALVES)
                self.assertEqual(bool(assertion.end_to_end), assertion.number in ROOT_HALVES)
                self.assertEqual(bool(assertion.hardware and assertion.rows), assertion.number in GPU_ONLY)

    def test_cases_exist(self):
        programs, lists = halves.binaries(BUILD), {}
        for assertion in ASSERTIONS:
            for name, patterns in assertion.unit.items():
                with self.subTest(f"{assertion.name} {name}"):
                    self.assertIn(name, programs)
                    every = lists.setdefault(name, halves.listed(programs[name]))
                    for pattern in patterns:
                        self.assertTrue(halves.matching(every, pattern), f"{name} has no case {pattern}")

    def test_end_to_end_halves_exist(self):
        for assertion in ASSERTIONS:
            if assertion.end_to_end:
                with self.subTest(assertion.name):
                    self.assertTrue(callable(halves.end_to_end(assertion)))

    def test_ctest_has_each_half(self):
        out = subprocess.run(["ctest", "--test-dir", BUILD, "-L", "gate", "--show-only=json-v1"], capture_output=True,
                             text=True, check=True).stdout
        names = {test["name"] for test in json.loads(out)["tests"]}
        for number in ROOT_HALVES:
            for half in ("unit", "e2e"):
                self.assertIn(f"Gate{number:02}.{half}", names)

    def test_hardware_sections_exist(self):
        sections = (pathlib.Path(__file__).resolve().parents[1] / "hardware/main.py").read_text()
        parts = (pathlib.Path(__file__).resolve().parents[1] / "hardware/section_pc.py").read_text()
        for assertion in ASSERTIONS:
            for section in assertion.hardware:
                name, _, part = section.partition(":")
                self.assertIn(f'"{name}": section_', sections)
                self.assertIn(f'"{part}' if part else "", parts)


if __name__ == "__main__":
    unittest.main()
