# SPDX-License-Identifier: Apache-2.0
"""A profile as `go tool pprof` reads it: the end-to-end tests assert through pprof, not our reader.

load() runs `go tool pprof -raw` and parses its text. Any word on pprof's stderr is an error: a
profile of ours must need no warning, with or without the binaries at hand.
"""

import collections
import dataclasses
import html
import os
import re
import signal
import subprocess
import urllib.request

PPROF_ENV = {"PPROF_BINARY_PATH": "/nonexistent", "PPROF_TMPDIR": "/tmp", "HOME": "/nonexistent"}


def pprof(*args, path):
    """Runs `go tool pprof ARGS PATH`; returns stdout, raises if it warns or fails."""
    env = dict(os.environ, **PPROF_ENV, GOFLAGS="-mod=mod", GOCACHE="/tmp/gocache")
    done = subprocess.run(
        ["go", "tool", "pprof", *args, path],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
        check=False,
    )
    noise = [
        line
        for line in done.stderr.splitlines()
        # Not about the profile: where pprof says which file it writes a report to.
        if line and not line.startswith("Generating report in")
    ]
    if done.returncode or noise:
        raise AssertionError(f"pprof {args}: exit {done.returncode}, stderr: {done.stderr}")
    return done.stdout


def weblist(regex, path):
    """{function: (flat ns, cumulative ns)} of the page that -weblist makes. A page has a heading for each
    stretch of lines of one function, and its sums below it."""
    page = f"{path}.html"
    pprof("-unit=ns", f"-weblist={regex}", f"-output={page}", path=path)
    with open(page) as file:
        text = html.unescape(file.read())
    found = {}
    for name, flat, cumulative in re.findall(
            r"<h2>(.*?)</h2>.*?Total:\s+(\S+)\s+(\S+) \(flat, cum\)", text, re.DOTALL):
        numbers = [int(number.removesuffix("ns")) if number != "." else 0 for number in (flat, cumulative)]
        if name in found:
            raise AssertionError(f"-weblist has two stretches of {name}")
        found[name] = tuple(numbers)
    return found


def web_page(page, *args, path):
    """A page of the web UI, as `go tool pprof -http` serves it: page is "source?f=inner" or the like."""
    env = dict(os.environ, **PPROF_ENV, GOFLAGS="-mod=mod", GOCACHE="/tmp/gocache")
    server = subprocess.Popen(["go", "tool", "pprof", "-http=localhost:", "-no_browser", *args, path], stderr=subprocess.PIPE,
                              text=True, env=env, start_new_session=True)
    try:
        # "Serving web UI on http://localhost:N"; anything before it would be a warning.
        said = server.stderr.readline()
        found = re.fullmatch(r"Serving web UI on (http://\S+)\n", said)
        if not found:
            raise AssertionError(f"pprof -http said {said!r}")
        with urllib.request.urlopen(f"{found.group(1)}/ui/{page}", timeout=60) as answer:
            return answer.read().decode()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@dataclasses.dataclass
class Frame:
    function: str
    file: str
    line: int
    mapping: int
    system_name: str = ""


@dataclasses.dataclass
class Sample:
    values: dict
    frames: list  # root first, inlined frames expanded
    labels: dict

    @property
    def functions(self):
        return [f.function for f in self.frames]


@dataclasses.dataclass
class Profile:
    sample_types: list
    samples: list
    mappings: dict
    default: str

    def total(self, sample_type="gpu_time"):
        return sum(s.values[sample_type] for s in self.samples)

    def by(self, key, sample_type="gpu_time"):
        out = collections.Counter()
        for s in self.samples:
            out[key(s)] += s.values[sample_type]
        return out


_LOCATION = re.compile(r"^\s*(\d+): 0x([0-9a-f]+) (?:M=(\d+) )?(.*)$")
_FRAME = re.compile(r"^(.*?) (\S*):(\d+):(\d+) s=(\d+)(?:\((.*)\))?$")
_MAPPING = re.compile(r"^(\d+): 0x([0-9a-f]+)/0x([0-9a-f]+)/0x([0-9a-f]+) (.*)$")


def _frame(text, mapping):
    text = text.replace("[F] ", "", 1) if text.startswith("[F] ") else text
    found = _FRAME.match(text)
    if not found:
        return Frame(text.strip(), "", 0, mapping)
    system_name = found.group(6) or found.group(1)
    return Frame(found.group(1), found.group(2), int(found.group(3)), mapping, system_name)


def load(path):
    """Reads PATH through pprof -raw -symbolize=none."""
    text = pprof("-raw", "-symbolize=none", path=path)
    section = None
    types, default = [], ""
    rows, locations, mappings = [], {}, {}
    current = None
    for line in text.splitlines():
        if line in ("Samples:", "Locations", "Mappings"):
            section = line
            continue
        if section == "Samples:":
            if not types:
                for word in line.split():
                    name = word.split("/")[0]
                    types.append(name)
                    if word.endswith("[dflt]"):
                        default = name
                continue
            head = re.match(r"^\s*((?:-?\d+\s+)*-?\d+): ([\d ]*)$", line)
            if head:
                values = [int(v) for v in head.group(1).split()]
                rows.append((values, [int(v) for v in head.group(2).split()], {}))
            else:
                for key, value in re.findall(r"(\S+?):\[([^\]]*(?:\][^ ][^\]]*)*)\]", line):
                    rows[-1][2][key] = value
        elif section == "Locations":
            found = _LOCATION.match(line)
            if found:
                current = int(found.group(1))
                mapping = int(found.group(3) or 0)
                locations[current] = (mapping, [_frame(found.group(4), mapping)])
            elif line.strip():
                mapping, frames = locations[current]
                frames.append(_frame(line.strip(), mapping))
        elif section == "Mappings":
            found = _MAPPING.match(line)
            if found:
                mappings[int(found.group(1))] = (
                    int(found.group(2), 16),
                    int(found.group(3), 16),
                    found.group(5),
                )
    samples = []
    for values, ids, labels in rows:
        frames = []
        for one in reversed(ids):
            frames.extend(reversed(locations[one][1]))
        samples.append(Sample(dict(zip(types, values)), frames, labels))
    return Profile(types, samples, mappings, default)
