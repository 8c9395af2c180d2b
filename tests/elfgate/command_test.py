#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""elfgate's command line: exit codes, one line an error, JSON.

usage: command_test.py ELFGATE
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ELFGATE = ""
POLICIES = pathlib.Path(__file__).resolve().parents[2] / "tools/elfgate/policies"


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([ELFGATE, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Command(unittest.TestCase):
    def test_a_file_that_passes(self):
        done = run("check", ELFGATE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_violation_is_one_line_and_exit_1(self):
        done = run("check", ELFGATE, "--kind", "library")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stdout.splitlines()), 1)
        self.assertRegex(done.stdout, r"^\S+elfgate: kind: is made as executable, not library \(.*\): .*; mend: .*\n$")

    def test_options_come_after_the_policy_and_are_its_keys(self):
        policy = str(POLICIES / "permissive.policy")
        self.assertEqual(run("check", ELFGATE, "--policy", policy, "--machine", "aarch64", "--machine", "any").returncode, 0)
        self.assertEqual(run("check", ELFGATE, "--max-version", "GLIBC 2.0").returncode, 1)
        self.assertEqual(run("check", ELFGATE, "--max-version", "GLIBC 2.0", "--off", "versions").returncode, 0)

    def test_an_option_may_be_one_word(self):
        policy = str(POLICIES / "permissive.policy")
        self.assertEqual(run("check", ELFGATE, f"--policy={policy}").returncode, 0)
        self.assertEqual(run("check", ELFGATE, "--max-version=GLIBC 2.0").stdout, run("check", ELFGATE, "--max-version", "GLIBC 2.0").stdout)
        self.assertEqual(run("check", ELFGATE, "--max-version=GLIBC 2.0").returncode, 1)

    def test_help_of_a_command(self):
        whole = run("--help")
        self.assertEqual(whole.returncode, 0)
        for arguments in (["check", "--help"], ["facts", "--help"], ["check", ELFGATE, "-h"], ["check", "--kind", "library", "--help"]):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, whole.stdout, ""), arguments)

    def test_json_tells_the_same(self):
        done = run("check", ELFGATE, "/dev/null", "--kind", "library", "--json")
        self.assertEqual(done.returncode, 2)
        first, second = map(json.loads, done.stdout.splitlines())
        self.assertEqual([violation["check"] for violation in first["violations"]], ["kind"])
        self.assertEqual(sorted(first["violations"][0]), ["check", "mend", "what", "where", "why"])
        self.assertEqual(second, {"file": "/dev/null", "error": "not a regular file"})

    def test_usage_errors_are_one_line_and_exit_2(self):
        for arguments in (["check"], ["check", ELFGATE, "--no-such-key", "x"], ["check", ELFGATE, "--kind"],
                          ["check", ELFGATE, "--kind", "tool"], ["check", ELFGATE, "--policy", "/dev/null/none"],
                          ["facts"], ["facts", ELFGATE, "--kind", "library"], ["check", ELFGATE, "--kind="],
                          ["check", ELFGATE, "--policy="], ["check", ELFGATE, "--json=x"], ["check", ELFGATE, "--=x"]):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, arguments)
            self.assertTrue(done.stderr.startswith("elfgate: "), arguments)
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("chek", ELFGATE).returncode, 2)

    def test_an_unreadable_file_is_one_line_and_does_not_hide_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.so"
            text.write_text("INPUT(-lx)\n")
            cut = pathlib.Path(folder) / "cut.so"
            cut.write_bytes(pathlib.Path(ELFGATE).read_bytes()[:5000])
            done = run("check", str(text), str(cut), "/nonexistent.so", folder, ELFGATE, "--kind", "library")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.splitlines()), 4)
        self.assertEqual(len(done.stdout.splitlines()), 1)

    def test_help_lists_every_key_of_our_policies(self):
        text = run("--help").stdout
        for policy in POLICIES.glob("*.policy"):
            for line in policy.read_text().splitlines():
                if line and not line.startswith("#"):
                    self.assertIn(f"\n  {line.split()[0]} ", text)

    def test_a_full_disk_is_no_pass(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([ELFGATE, "facts", ELFGATE], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (2, "elfgate: cannot write the result\n"))


if __name__ == "__main__":
    ELFGATE = sys.argv.pop(1)
    unittest.main()
