#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""load_proof.py tells what was not proved: a shim that tried nothing, a state that this kernel has not."""
import pathlib
import tempfile
import unittest
from unittest import mock

import load_proof

# The line's fixed text; what was tried follows.
LINE = ("gpu-profiled[7]: this process runs unprofiled: no usable libcupti (CUPTI comes with the CUDA toolkit or pip, not with "
        "the driver, and the container toolkit does not inject it); tried ")
EACH = "libcupti.so.13, libcupti.so.12, libcupti.so.11.8, /usr/local/cuda, /opt/cuda: not found"


def every_case():
    return [*load_proof.cases(), load_proof.WITH_PROC, load_proof.READ_ONLY, load_proof.NO_EXEC]


class Judge(unittest.TestCase):
    def test_the_fixed_text_alone_proves_nothing(self):
        for name, _, wanted in every_case():
            self.assertIn("says: ", load_proof.judge((0, "went on after 1\n", LINE + "nothing\n"), wanted), name)

    def test_a_line_that_names_what_was_tried(self):
        for name, _, wanted in every_case():
            if wanted == load_proof.TRIED:
                self.assertEqual(load_proof.judge((0, "went on after 1\n", LINE + EACH + "\n"), wanted), "", name)

    def test_a_limit_that_root_does_not_have_is_another_users(self):
        for name, options, _ in load_proof.cases():
            if "--no-memlock" in options:
                self.assertIn("--uid", options, name)


class Native(unittest.TestCase):
    def rows(self, has_file):
        done = (0, "went on after 1\n", LINE + EACH + "\n")
        with tempfile.TemporaryDirectory() as root, mock.patch.object(load_proof, "run_in", return_value=done), \
                mock.patch.object(load_proof, "copy_all"), mock.patch.object(load_proof.os.path, "exists", return_value=has_file):
            return dict(load_proof.native(pathlib.Path(root), "shim", "host", "fixtures"))

    def test_a_state_that_cannot_be_is_told(self):
        self.assertEqual(self.rows(True)["vm.memfd_noexec 2"], "")
        self.assertTrue(self.rows(False)["vm.memfd_noexec 2"].startswith("cannot be: this kernel has no vm.memfd_noexec"))
        self.assertEqual(list(self.rows(True)), list(self.rows(False)))


if __name__ == "__main__":
    unittest.main()
