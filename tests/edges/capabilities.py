# SPDX-License-Identifier: Apache-2.0
"""The capabilities that docker/ grants gpu-profiled are those that its code keeps, in every manifest and in the text.

usage: capabilities.py SOURCE_TREE"""
import pathlib
import re
import sys

WORD = re.compile(r"\bCAP_([A-Z_]+)\b")


def kept(tree):
    """What drop_capabilities() keeps for the rest of a run, and what it keeps besides on an older kernel."""
    code = (tree / "daemon/cli/capabilities.cc").read_text()
    always = re.search(r"kept = \{(.*?)\};", code, re.DOTALL)
    extra = re.search(r"if \(admin\) kept\.push_back\((\w+)\)", code)
    if not always or not extra:
        return None, None
    return set(WORD.findall(always.group(1))), set(WORD.findall(extra.group(1)))


def granted(text):
    """(line, capabilities) of each list that grants some."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:cap_)?add: \[([A-Z_, ]+)\]\s*$", line)
        if found:
            yield number, set(found.group(1).replace(" ", "").split(","))


def told(text):
    """The capabilities that docker/README.md's table explains."""
    return set(re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE))


def faults(tree):
    always, extra = kept(tree)
    if not always:
        return ["daemon/cli/capabilities.cc: the list of what is kept was not found"]
    found, lists = [], 0
    for path in sorted([*tree.glob("docker/*.yaml"), *tree.glob("docker/kubernetes/*.yaml")]):
        for number, names in granted(path.read_text()):
            lists += 1
            if names != always:
                found.append(f"{path.relative_to(tree)}:{number}: missing {sorted(always - names)}, too many {sorted(names - always)}")
    if lists < 3:
        found.append(f"docker/: {lists} lists of capabilities, fewer than the examples")
    explained = told((tree / "docker/README.md").read_text())
    if explained != always | extra:
        found.append(f"docker/README.md: explains {sorted(explained)}, the code keeps {sorted(always | extra)}")
    return found


def main():
    found = faults(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "the manifests grant what the code keeps")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
