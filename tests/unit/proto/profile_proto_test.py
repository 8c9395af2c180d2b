#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""proto/profile.proto against the format itself: a profile that Go's runtime/pprof wrote.

usage: profile_proto_test.py PROTOC GO ROOT

Every field of that file must be known to our description (protoc prints an unknown one by number),
and what we read must be what `go tool pprof -raw` reads."""
import gzip
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROTOC, GO, ROOT = sys.argv[1:4]
PROGRAM = """package main

import (
	"os"
	"runtime/pprof"
	"time"
)

func burnForTheProfile() (x float64) {
	for start := time.Now(); time.Since(start) < 400*time.Millisecond; {
		x++
	}
	return
}

func main() {
	file, _ := os.Create(os.Args[1])
	pprof.StartCPUProfile(file)
	burnForTheProfile()
	pprof.StopCPUProfile()
	file.Close()
}
"""


class ProfileProto(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        here = pathlib.Path(cls.directory.name)
        (here / "burn.go").write_text(PROGRAM)
        cls.file = here / "burn.pb.gz"
        env = {"HOME": str(here), "GOCACHE": str(here / "cache"), "GOFLAGS": "-mod=mod", "PATH": "/usr/bin:/bin",
               "GO111MODULE": "off", "GOTOOLCHAIN": "local"}
        subprocess.run([GO, "run", "burn.go", cls.file], cwd=here, env=env, check=True, timeout=300)
        raw = gzip.decompress(cls.file.read_bytes())
        cls.text = subprocess.run(
            [PROTOC, f"--proto_path={ROOT}", "--decode=perftools.profiles.Profile", "proto/profile.proto"],
            input=raw, capture_output=True, check=True, cwd=ROOT, timeout=60).stdout.decode()
        cls.go_text = subprocess.run([GO, "tool", "pprof", "-raw", cls.file], env=env, capture_output=True, check=True,
                                     text=True, timeout=120).stdout

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def blocks(self, name):
        return re.findall(rf"^{name} {{\n(.*?)^}}", self.text, re.MULTILINE | re.DOTALL)

    def strings(self):
        return re.findall(r'^string_table: "(.*)"$', self.text, re.MULTILINE)

    def value(self, block, key):
        match = re.search(rf"^\s+{key}: (-?\d+)$", block, re.MULTILINE)
        return int(match.group(1)) if match else 0

    def test_no_field_is_unknown(self):
        self.assertEqual(re.findall(r"^\s*\d+[:{ ].*$", self.text, re.MULTILINE), [])

    def test_sample_types(self):
        strings = self.strings()
        types = [(strings[self.value(b, "type")], strings[self.value(b, "unit")]) for b in self.blocks("sample_type")]
        self.assertEqual(types, [("samples", "count"), ("cpu", "nanoseconds")])

    def test_values_are_those_that_pprof_reads(self):
        ours = sorted(tuple(map(int, re.findall(r"^\s+value: (-?\d+)$", b, re.MULTILINE))) for b in self.blocks("sample"))
        theirs = sorted((int(a), int(b)) for a, b in re.findall(r"^\s+(\d+)\s+(\d+): [\d ]+$", self.go_text, re.MULTILINE))
        self.assertTrue(theirs)
        self.assertEqual(ours, theirs)

    def test_names_and_mapping(self):
        strings = self.strings()
        names = {strings[self.value(b, "name")] for b in self.blocks("function")}
        self.assertIn("main.burnForTheProfile", names)
        self.assertTrue(any(strings[self.value(b, "filename")].endswith("/burn.go") for b in self.blocks("function")))
        main = self.blocks("mapping")[0]
        self.assertIn(f"0x{self.value(main, 'memory_start'):x}/0x{self.value(main, 'memory_limit'):x}", self.go_text)
        self.assertTrue(all(self.value(b, "id") for b in self.blocks("location")))

    def test_period_and_times(self):
        self.assertIn(f"Period: {re.search(r'^period: (.*)$', self.text, re.MULTILINE).group(1)}\n", self.go_text)
        self.assertRegex(self.text, r"(?m)^time_nanos: \d{19}$")
        self.assertRegex(self.text, r"(?m)^duration_nanos: \d+$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
