#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rule of include_edges.py reports a tree that breaks it, and none a tree that does not."""
import pathlib
import tempfile
import unittest

import include_edges


def problems_of(files: dict[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return include_edges.check_tree(root)[0]


class IncludeEdges(unittest.TestCase):
    def test_allowed_edges_pass(self):
        self.assertEqual(problems_of({
            "daemon/cli/a.cc": '#include "daemon/join/joiner.h"\n#include <string>\n',
            "daemon/pprof/b.cc": '#include "daemon/join/model.h"\n#include "profile.pb.h"\n',
            "shim/cupti/c.cc": '#include <cupti.h>\n#include "shim/core/probes.h"\n#include "proto/usdt_abi.h"\n',
            "bpf/d.bpf.c": '#include <bpf/bpf_helpers.h>\n#include "proto/ring_abi.h"\n',
        }), [])

    def test_shim_includes_nothing_of_the_daemon(self):
        self.assertEqual(len(problems_of({"shim/core/a.cc": '#include "daemon/base/result.h"\n'})), 1)

    def test_core_knows_no_vendor_adapter(self):
        self.assertEqual(len(problems_of({"shim/core/a.cc": '#include "shim/cupti/loader.h"\n'})), 1)

    def test_daemon_includes_nothing_of_the_shim(self):
        self.assertEqual(len(problems_of({"daemon/cli/a.cc": '#include "shim/core/knobs.h"\n'})), 1)

    def test_pprof_sees_only_the_joined_model(self):
        self.assertEqual(len(problems_of({"daemon/pprof/a.cc": '#include "daemon/join/joiner.h"\n'})), 1)

    def test_inner_libraries_do_not_look_up(self):
        self.assertEqual(len(problems_of({"daemon/unwind/a.h": '#include "daemon/symbolize/symbol.h"\n'})), 1)

    def test_elfgate_knows_nothing_of_ours(self):
        for name in ("daemon/base/result.h", "proto/usdt_abi.h", "shim/core/probes.h"):
            self.assertEqual(len(problems_of({"tools/elfgate/a.cc": f'#include "{name}"\n'})), 1)
        self.assertEqual(problems_of({"tools/elfgate/a.cc": '#include "tools/elfgate/facts.h"\n'}), [])

    def test_guest_rules(self):
        self.assertEqual(len(problems_of({"shim/core/a.cc": "#include <iostream>\n#include <string>\n"})), 2)

    def test_own_headers_in_angle_brackets(self):
        self.assertEqual(len(problems_of({"daemon/cli/a.cc": "#include <daemon/base/result.h>\n"})), 1)

    def test_relative_include(self):
        self.assertEqual(len(problems_of({"daemon/cli/a.cc": '#include "recorder.h"\n'})), 1)

    def test_unknown_folder(self):
        self.assertEqual(len(problems_of({"helpers/a.cc": "\n"})), 1)

    def test_table_has_no_cycle(self):
        self.assertEqual(include_edges.cycles(), [])
        include_edges.ALLOWED["daemon/base"].append("daemon/cli")
        try:
            self.assertIn("daemon/base", include_edges.cycles())
        finally:
            include_edges.ALLOWED["daemon/base"].remove("daemon/cli")


if __name__ == "__main__":
    unittest.main()
