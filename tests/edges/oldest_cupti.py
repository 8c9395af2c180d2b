#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The oldest CUPTI is written down in shim/cupti/oldest_version.h: CMake refuses older headers, and what else names it agrees.

usage: oldest_cupti.py ROOT CMAKE"""
import pathlib
import re
import subprocess
import sys
import tempfile

PROJECT = """cmake_minimum_required(VERSION 3.22)
project(headers NONE)
set(PROJECT_SOURCE_DIR {root})
include({root}/cmake/FindCuptiHeaders.cmake)
"""


def configured(root: pathlib.Path, cmake: str, version_text: str | None) -> tuple[int, str]:
    """Exit status and output of a project that looks for CUPTI's headers, of a release that says `version_text`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        headers = folder / "include"
        (headers / "crt").mkdir(parents=True)
        for header in ("cupti.h", "cuda.h", "crt/host_defines.h"):
            (headers / header).touch()
        if version_text is not None:
            (headers / "cupti_version.h").write_text(version_text)
        (folder / "CMakeLists.txt").write_text(PROJECT.format(root=root))
        done = subprocess.run([cmake, "-S", folder, "-B", folder / "build", f"-DCUPTI_INCLUDE_DIR={headers}"],
                              capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


def main() -> int:
    root, cmake = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    text = (root / "shim/cupti/oldest_version.h").read_text()
    numbers = {name: value.strip('"') for name, value in re.findall(r"#define GPUPROF_OLDEST_CUPTI_(\w+) (\S+)", text)}
    api, cuda = int(numbers["API"]), numbers["CUDA"]
    problems = []
    if cuda != f"{numbers['MAJOR']}.{numbers['MINOR']}":
        problems.append(f"oldest_version.h: {cuda} is not {numbers['MAJOR']}.{numbers['MINOR']}")
    for file, part in (("scripts/header-matrix", f"versions=({cuda} "), ("README.md", f"CUPTI {cuda} or newer")):
        if part not in (root / file).read_text():
            problems.append(f"{file} does not say '{part}'")

    define = "/* CUPTI_API_VERSION */\n#define CUPTI_API_VERSION {}\n"
    status, said = configured(root, cmake, define.format(api - 1))
    if status == 0 or f"have API version {api - 1}; the oldest that the shim builds with is {api}, CUDA {cuda}" not in said:
        problems.append(f"headers of API version {api - 1}: status {status}: {said}")
    status, said = configured(root, cmake, None)
    if status == 0 or "says no CUPTI_API_VERSION" not in said:
        problems.append(f"headers without a version: status {status}: {said}")
    for version in (api, 28, 130001):
        status, said = configured(root, cmake, define.format(version))
        if status != 0:
            problems.append(f"headers of API version {version}: {said}")
    print("\n".join(problems) or f"CUPTI {cuda}, API version {api}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
