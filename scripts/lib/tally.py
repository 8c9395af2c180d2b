#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads ctest's JUnit file: prints what failed and why, then one line "PASSED FAILED SKIPPED".

usage: tally.py FILE allowed|forbidden    (whether a test may skip)

ctest reports a test whose program is missing as skipped; here it is a failure.
"""
import sys
import xml.etree.ElementTree as ElementTree

SHOWN_LINES = 60


def outcome(case: ElementTree.Element, may_skip: bool) -> str:
    status = case.get("status")
    skip = case.find("skipped")
    if status == "run":
        return "passed"
    if skip is not None and skip.get("message", "").startswith("SKIP_"):
        return "skipped" if may_skip else "failed"
    return "failed"


def main() -> int:
    path, skips = sys.argv[1:3]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        result = outcome(case, skips == "allowed")
        counts[result] += 1
        if result == "passed":
            continue
        output = (case.findtext("system-out") or "").strip().splitlines()
        if result == "failed":
            print(f"--- failed: {case.get('name')} (status {case.get('status')}, {case.get('time')} s)")
            print("\n".join(output[-SHOWN_LINES:]))
        else:
            print(f"skipped: {case.get('name')}: {output[-1] if output else 'no reason given'}")
    if sum(counts.values()) == 0:
        print("--- failed: no test was selected")
        counts["failed"] = 1
    print(counts["passed"], counts["failed"], counts["skipped"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
