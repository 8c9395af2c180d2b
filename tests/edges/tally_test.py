#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/lib/tally.py: what counts as passed, failed and skipped in ctest's JUnit file."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TALLY = pathlib.Path(__file__).parents[2] / "scripts/lib/tally.py"
JUNIT = """<?xml version="1.0"?><testsuite>
<testcase name="good" status="run" time="0"><system-out>fine</system-out></testcase>
<testcase name="bad" status="fail" time="0"><failure message=""/><system-out>why it failed</system-out></testcase>
<testcase name="missing" status="notrun" time="0"><skipped message="Unable to find executable"/></testcase>
<testcase name="skips" status="notrun" time="0"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>no root</system-out></testcase>
<testcase name="disabled" status="disabled" time="0"/>
</testsuite>"""


def tally(skips: str, junit: str = JUNIT) -> list[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(junit)
        file.flush()
        return subprocess.run([sys.executable, TALLY, file.name, skips], check=True, text=True,
                              capture_output=True).stdout.splitlines()


class Tally(unittest.TestCase):
    def test_missing_and_disabled_tests_are_failures(self):
        lines = tally("allowed")
        self.assertEqual(lines[-1], "1 3 1")
        self.assertIn("why it failed", lines)
        self.assertIn("skipped: skips: no root", lines)

    def test_a_forbidden_skip_is_a_failure(self):
        self.assertEqual(tally("forbidden")[-1], "1 4 0")

    def test_nothing_selected_is_a_failure(self):
        self.assertEqual(tally("allowed", "<testsuite/>")[-1], "0 1 0")


if __name__ == "__main__":
    unittest.main()
