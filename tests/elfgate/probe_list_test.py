#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The probes of the shim's policies are those of proto/usdt_abi.h: provider, names, argument formats.

usage: probe_list_test.py ROOT
"""
import pathlib
import re
import sys

# How the header's comment calls a machine, and the policy's file.
MACHINES = {"x86-64": "shim-build-x86_64.policy", "aarch64": "shim-build-aarch64.policy"}


def abi(header: str) -> dict[str, list[tuple[str, str, str]]]:
    """machine -> (provider, name, arguments), in the order of enum gpuprof_probe."""
    provider = re.search(r'#define GPUPROF_USDT_PROVIDER "(\w+)"', header).group(1)
    names = re.findall(r"GPUPROF_PROBE_\w+ = \d+, +/\* (\w+) ", header)
    arguments = {machine: re.search(rf"\b{machine} +((?:\d@\S+ ?){{3}})", header).group(1).strip() for machine in MACHINES}
    return {machine: [(provider, name, text) for name in names] for machine, text in arguments.items()}


def listed(policy: str) -> list[tuple[str, str, str]]:
    return re.findall(r"^usdt-probe (\S+) (\S+) (.*)$", policy, re.MULTILINE)


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    header = (root / "proto/usdt_abi.h").read_text()
    count = int(re.search(r"GPUPROF_PROBE_COUNT = (\d+)", header).group(1))
    problems = []
    for machine, probes in abi(header).items():
        policy = root / "tools/elfgate/policies" / MACHINES[machine]
        if len(probes) != count - 1:
            problems.append(f"usdt_abi.h has {count - 1} probes, {len(probes)} could be read")
        problems += [f"{policy.name} lacks: usdt-probe {' '.join(probe)}" for probe in probes if probe not in listed(policy.read_text())]
        problems += [f"{policy.name}, not in usdt_abi.h: {' '.join(probe)}" for probe in listed(policy.read_text()) if probe not in probes]
        if len(set(listed(policy.read_text()))) != len(listed(policy.read_text())):
            problems.append(f"{policy.name} lists a probe twice")
    print("\n".join(problems) if problems else f"{count - 1} probes, the same in both policies")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
