#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""elfgate's facts about every shared library of a folder are those that readelf and objdump print.

usage: truth_test.py ELFGATE FOLDER
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

BLOCK = 64  # files a command
TLS_RELOCATIONS = {"R_X86_64_TPOFF64": "initial_exec", "R_X86_64_TPOFF32": "initial_exec",
                   "R_X86_64_DTPMOD64": "module", "R_X86_64_TLSDESC": "descriptors",
                   "R_AARCH64_TLS_TPREL64": "initial_exec", "R_AARCH64_TLS_DTPMOD64": "module",
                   "R_AARCH64_TLSDESC": "descriptors", "R_AARCH64_TLS_TPREL": "initial_exec",
                   "R_AARCH64_TLS_DTPMOD": "module"}
# Name, version and its "(index)", which readelf writes after references.
SYMBOL = re.compile(r"^ +\d+: [0-9a-f]+ +\S+ +(\S+) +(\S+) +(\S+)(?: \[.*?\])? +(\S+)(?: (\S+))?(?: \(\d+\))?$")
TYPES = {"FUNC": "function", "OBJECT": "object", "TLS": "tls", "IFUNC": "ifunc", "UNIQUE": "ifunc"}
BINDINGS = {"GLOBAL": "global", "WEAK": "weak", "UNIQUE": "unique"}
X86_FEATURES = {"IBT": 1, "SHSTK": 2}
X86_LEVELS = {"x86-64-baseline": 1, "x86-64-v2": 2, "x86-64-v3": 4, "x86-64-v4": 8}


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace",
                          env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}, check=False)
    return done.stdout


def libraries(folder: pathlib.Path) -> list[str]:
    found = [path for path in sorted(folder.rglob("*.so*")) if path.is_file() and not path.is_symlink()]
    return [str(path) for path in found if path.open("rb").read(4) == b"\x7fELF"]


def dynamic_facts(text: str) -> dict:
    """What `readelf -dlnW` says of one file."""
    dynamic = re.findall(r"^ 0x[0-9a-f]+ \((\w+)\) +(.*)$", text, re.MULTILINE)
    values = collections.defaultdict(list)
    for tag, value in dynamic:
        values[tag].append(value)

    def names(tag):
        return [re.search(r"\[(.*)\]$", value).group(1) for value in values[tag]]

    flags = " ".join(values["FLAGS"])
    flags_1 = " ".join(values["FLAGS_1"])
    segments = dict(re.findall(r"^  (TLS|GNU_STACK|GNU_RELRO) +0x\S+ 0x\S+ 0x\S+ 0x\S+ (0x\S+ .{3})", text, re.MULTILINE))
    now = "BIND_NOW" in values or "BIND_NOW" in flags or re.search(r"\bNOW\b", flags_1)
    stack = segments.get("GNU_STACK")
    build_id = re.search(r"Build ID: ([0-9a-f]+)", text)
    features = re.search(r"x86 feature: (.*)$", text, re.MULTILINE)
    isa = re.search(r"x86 ISA needed: (.*)$", text, re.MULTILINE)
    aligns = re.findall(r"^  LOAD .* (0x[0-9a-f]+)$", text, re.MULTILINE)
    return {
        "soname": (names("SONAME") or [None])[0],
        "needed": names("NEEDED"),
        "filtees": [(tag, name) for tag in ("FILTER", "AUXILIARY") for name in names(tag)],
        "rpath": (names("RPATH") or [None])[0],
        "runpath": (names("RUNPATH") or [None])[0],
        "static": "STATIC_TLS" in flags,
        "tls_size_bytes": int(segments["TLS"].split()[0], 16) if "TLS" in segments else 0,
        "textrel": "TEXTREL" in values or "TEXTREL" in flags,
        "nodelete": "NODELETE" in flags_1,
        "gnu_hash": "GNU_HASH" in values,
        "sysv_hash": "HASH" in values,
        "stack": "no-header" if stack is None else "executable" if "E" in stack else "plain",
        "relro": "none" if "GNU_RELRO" not in segments else "full" if now else "partial",
        "build_id": build_id.group(1) if build_id else "",
        "load_align_bytes": min((int(align, 16) for align in aligns), default=0),
        "x86_features": sorted(name for name in X86_FEATURES if features and name in features.group(1)),
        "x86_isa_needed": sorted(name for name in X86_LEVELS if isa and name in isa.group(1).split(", ")),
        "probes": re.findall(r"Provider: (\S+)\n +Name: (\S+)\n", text),
    }


def symbol_facts(text: str) -> dict:
    """What `readelf --dyn-syms -rW` says of one file."""
    exports, imports, unversioned, tls = [], [], [], collections.Counter()
    # Binding UNIQUE and type IFUNC, both 10, where the OS ABI is not GNU's: glibc does not ask for that.
    text = text.replace("<OS specific>: 10", "UNIQUE")
    is_table = False
    for line in text.splitlines():
        if line.startswith("Symbol table"):
            is_table = True
        elif is_table and (match := SYMBOL.match(line)):
            kind, binding, visibility, index, name = match.groups()
            if index == "UND":
                if name:
                    imports.append(name)
                if name and "@" not in name and binding == "GLOBAL":
                    unversioned.append(name)
            elif binding in BINDINGS and visibility in ("DEFAULT", "PROTECTED"):
                exports.append((name, BINDINGS[binding], TYPES.get(kind, "other")))
        elif not is_table and (fields := line.split()) and len(fields) > 2 and fields[2] in TLS_RELOCATIONS:
            tls[TLS_RELOCATIONS[fields[2]]] += 1
    return {"exports": exports, "imports": imports, "unversioned_imports": unversioned, **{key: tls[key] for key in ("initial_exec", "module", "descriptors")}}


def version_facts(text: str) -> dict:
    """What `objdump -p` says of one file."""
    needs, definitions, file = [], [], None
    for line in text.splitlines():
        if match := re.match(r"  required from (.*):$", line):
            file = match.group(1)
        elif file is not None and (match := re.match(r"    0x[0-9a-f]+ 0x([0-9a-f]{2}) \d+ (.*)$", line)):
            needs.append((file, match.group(2), int(match.group(1), 16) & 2 != 0))
        elif match := re.match(r"\d+ 0x([0-9a-f]{2}) 0x[0-9a-f]{8} (.*)$", line):
            if int(match.group(1), 16) & 1 == 0:
                definitions.append(match.group(2))
    return {"version_needs": needs, "version_definitions": definitions}


def by_file(text: str, heading: re.Pattern) -> dict[str, str]:
    """The part of a command's output that follows each file's heading."""
    found = list(heading.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return {match.group(1): text[match.end():end] for match, end in zip(found, ends)}


def truth(files: list[str]) -> dict[str, dict]:
    readelf_file = re.compile(r"^File: (.*)$", re.MULTILINE)
    objdump_file = re.compile(r"^(\S.*): +file format .*$", re.MULTILINE)
    facts = {}
    for start in range(0, len(files), BLOCK):
        # Never one alone: readelf then leaves the heading out.
        block = (files[start:start + BLOCK] * 2)[:max(2, len(files[start:start + BLOCK]))]
        parts = [(by_file(output_of("readelf", "-dlnW", *block), readelf_file), dynamic_facts),
                 (by_file(output_of("readelf", "--dyn-syms", "-rW", *block), readelf_file), symbol_facts),
                 (by_file(output_of("objdump", "-p", *block), objdump_file), version_facts)]
        for file in block:
            facts[file] = {}
            for texts, read in parts:
                facts[file].update(read(texts[file]))
    return facts


def bits(facts: dict, key: str, names: dict[str, int]) -> list[str]:
    return sorted(name for name, bit in names.items() if facts["machine"] == "x86-64" and facts[key] & bit)


def told(facts: dict) -> dict:
    """elfgate's facts in the form of `truth`."""
    same = {key: facts[key] for key in ("soname", "needed", "rpath", "runpath", "textrel", "nodelete", "gnu_hash",
                                        "sysv_hash", "stack", "relro", "build_id", "load_align_bytes",
                                        "version_definitions", "imports", "unversioned_imports")}
    tls = {key: facts["tls"][key] for key in ("static", "initial_exec", "module", "descriptors")}
    return {**same, **tls, "filtees": [(filtee["tag"].removeprefix("DT_"), filtee["name"]) for filtee in facts["filtees"]],
            "tls_size_bytes": facts["tls"]["size_bytes"],
            "exports": [(e["name"], e["binding"], e["type"]) for e in facts["exports"]],
            "version_needs": [(need["file"], need["name"], need["weak"]) for need in facts["version_needs"]],
            "x86_features": bits(facts, "machine_features", X86_FEATURES),
            "x86_isa_needed": bits(facts, "x86_isa_needed", X86_LEVELS),
            "probes": [(probe["provider"], probe["name"]) for probe in facts["probes"]]}


def difference(key: str, ours, theirs) -> str:
    if isinstance(ours, list):
        only_ours = sorted(set(ours) - set(theirs))[:3]
        only_theirs = sorted(set(theirs) - set(ours))[:3]
        return f"{key}: {len(ours)} and {len(theirs)}; only elfgate {only_ours}, only binutils {only_theirs}"
    return f"{key}: {ours!r}, binutils {theirs!r}"


def main() -> int:
    elfgate, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    files = libraries(folder)
    lines = output_of(elfgate, "facts", *files).splitlines()
    ours = {facts["file"]: told(facts) for facts in map(json.loads, lines)}
    theirs = truth(files)
    problems = [f"{file}: elfgate could not read it" for file in files if file not in ours]
    compared = 0
    for file in files:
        for key, value in ours.get(file, {}).items():
            compared += 1
            if value != theirs[file][key]:
                problems.append(f"{file}: {difference(key, value, theirs[file][key])}")
    # A reader that finds nothing would agree with one that finds nothing.
    totals = {key: sum(len(facts[key]) for facts in ours.values())
              for key in ("needed", "version_needs", "exports", "imports")}
    totals["static TLS"] = sum(facts["static"] for facts in ours.values())
    problems += [f"no {key} in any file" for key, count in totals.items() if count == 0]
    print("\n".join(problems[:40]))
    print(f"{len(files)} files, {compared} facts compared ({totals}), {len(problems)} differences")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
