# SPDX-License-Identifier: Apache-2.0
"""The same frames by the shipped binary, whatever became of the debug information of programs and libraries, in
every way that these come into a process. Run by ctest in a mount namespace of its own: symbols.py CASE --build DIR.

A case is a form of debug information. Each has one daemon attached to a process of each shape (SHAPES)."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import pprof_raw
from bench import Bench, check, equal, run_named_case, wait_for, wait_for_memfd, wait_for_state, emitted, STATE_TRACING

DEBUG = pathlib.Path("/usr/lib/debug")
SOURCE = "tests/e2e/workload/named_code.cc"
SIGNATURE = "(void (*)(void*), void*)"
# Root first: the function, and the mark of its line.
CHAIN = (("named_entry", "named_entry"), (f"named::Runner<unsigned int>::run{SIGNATURE}", "run"),
         (f"named::inlined_once{SIGNATURE}", "inlined_once"), (f"named::inlined_twice{SIGNATURE}", "inlined_twice"))
# How the code comes into its process.
SHAPES = ("pie", "fixed", "dlopened", "upgraded", "deleted", "namespace")


def sh(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{command}: {done.stderr}")
    return done.stdout


def build_id(path):
    return re.search(r"Build ID: ([0-9a-f]{40})\n", sh("readelf", "-n", path)).group(1)


def give_id(path, shape):
    """A build id of its own: the same code in two shapes is two builds."""
    old = bytes.fromhex(build_id(path))
    data = path.read_bytes()
    equal(data.count(old), 1, "places of the build id")
    path.write_bytes(data.replace(old, bytes([SHAPES.index(shape)]) + old[1:]))


def by_build_id(path, root=DEBUG):
    own = build_id(path)
    found = root / ".build-id" / own[:2] / f"{own[2:]}.debug"
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def only_debug(path, into):
    into.parent.mkdir(parents=True, exist_ok=True)
    sh("objcopy", "--only-keep-debug", path, into)
    return into


# Each takes the debug information out of `path`; `debug` stands for the target's /usr/lib/debug.
def plain(path, debug):
    """In the file."""


def zstd(path, debug):
    sh("objcopy", "--compress-debug-sections=zstd", path)


def mini_debug(path, debug):
    """As Fedora makes it: the functions alone."""
    names = path.with_suffix(".names")
    names.write_text("\n".join(line.split()[0] for line in sh("nm", "--format=posix", "--defined-only", path).splitlines()
                               if line.split()[1] in "tTwW"))
    mini = only_debug(path, path.with_suffix(".mini"))
    sh("objcopy", "-S", "--remove-section", ".comment", f"--keep-symbols={names}", mini)
    sh("xz", "-f", mini)
    sh("strip", path)
    sh("objcopy", "--add-section", f".gnu_debugdata={mini}.xz", path)


def with_build_id(path, debug):
    only_debug(path, by_build_id(path, debug))
    sh("strip", path)


def with_link(path, debug):
    """Beside the file, in .debug; without a build id, so that the checksum decides."""
    sh("objcopy", "--remove-section", ".note.gnu.build-id", path)
    link = only_debug(path, path.parent / ".debug" / f"{path.name}.debug")
    sh("strip", path)
    sh("objcopy", f"--add-gnu-debuglink={link}", path)


def with_wrong_link(path, debug):
    """The debug file is of a later build."""
    with_link(path, debug)
    with open(path.parent / ".debug" / f"{path.name}.debug", "ab") as file:
        file.write(b"later")


def shared_by_dwz(first, common, name):
    """Moves what two builds of a file have in common to `common`, which both call `name`."""
    second = first.with_name(f"{first.name}.second")
    shutil.copy2(first, second)
    common.parent.mkdir(parents=True, exist_ok=True)
    sh("dwz", "-m", common, "-M", name, first, second)
    check(".gnu_debugaltlink" in sh("readelf", "-SW", first), f"dwz found nothing to share in {first}")
    second.unlink()


def dwz(path, debug):
    shared_by_dwz(path, path.with_suffix(".dwz"), path.with_suffix(".dwz"))


def dwz_lost(path, debug):
    dwz(path, debug)
    path.with_suffix(".dwz").unlink()


def dwz_separate(path, debug):
    """As Fedora lays it out: the build id is a link, and the alternate's name starts at the file itself."""
    file = only_debug(path, debug / "bin" / path.parent.name / f"{path.name}.debug")
    link = by_build_id(path, debug)
    link.symlink_to(os.path.relpath(file, link.parent))
    shared_by_dwz(file, debug / ".dwz" / path.parent.name, f"../../.dwz/{path.parent.name}")
    sh("strip", path)


SERVED = pathlib.Path(tempfile.gettempdir()) / f"gpuprof-debuginfod-{os.getpid()}"


def on_server(path, debug):
    """A debuginfod server has it (Server)."""
    only_debug(path, SERVED / build_id(path))
    sh("strip", path)


class Server:
    """What a debuginfod server answers; or one that takes every connection, and answers none."""

    def __init__(self, answers):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        if answers:
            threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                asked = re.match(rb"GET /buildid/([0-9a-f]+)/debuginfo ", connection.recv(65536))
                file = SERVED / asked.group(1).decode() if asked else SERVED / "none"
                if file.exists():
                    body = file.read_bytes()
                    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                else:
                    connection.sendall(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def children(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def fetcher_of(daemon):
    found = [pid for pid in children(daemon.pid) if pathlib.Path(f"/proc/{pid}/comm").read_text() == "gpu-prof-fetch\n"]
    equal(len(found), 1, "processes that fetch")
    return found[0]


class Expected:
    """What a form leaves: lines, inlined functions, hidden ones; and the least counts in the summary (0: none). `server`:
    "answers" or "dead", where a debuginfod server is asked."""

    def __init__(self, prepare, lines=True, hidden=True, inlined=True, server="", counts=()):
        self.prepare, self.lines, self.hidden, self.inlined = prepare, lines, hidden, inlined
        self.server, self.counts = server, dict(counts)


CASES = {
    "plain": Expected(plain, counts={"with_dwarf": 6}),
    "zstd": Expected(zstd, counts={"with_dwarf": 6}),
    "mini_debug": Expected(mini_debug, lines=False, inlined=False, counts={"mini_debug": 6}),
    "build_id": Expected(with_build_id, counts={"separate_files": 6, "with_dwarf": 6}),
    "debuglink": Expected(with_link, counts={"separate_files": 6, "with_dwarf": 6}),
    "debuglink_wrong": Expected(with_wrong_link, lines=False, hidden=False, inlined=False,
                                counts={"debug_file_mismatch": 6, "separate_files": 0}),
    "dwz": Expected(dwz, counts={"with_dwarf": 6, "no_alternate": 0}),
    "dwz_separate": Expected(dwz_separate, counts={"separate_files": 6, "no_alternate": 0}),
    "dwz_lost": Expected(dwz_lost, inlined=False, counts={"no_alternate": 6}),
    "debuginfod": Expected(on_server, server="answers", counts={"found": 6, "separate_files": 6}),
    "debuginfod_dead": Expected(on_server, lines=False, hidden=False, inlined=False, server="dead",
                                counts={"wanted": 6, "found": 0, "separate_files": 0}),
}


class Shape:
    """One process of a shape, with the files of its own in a folder of its own."""

    def __init__(self, bench, name, prepare):
        self.name, self.dir = name, bench.dir / name
        self.dir.mkdir()
        self.go = self.dir / "go"
        code = {"fixed": "workload_named_fixed", "dlopened": "libworkload_named_library.so",
                "upgraded": "libworkload_named_library.so"}.get(name, "workload_named")
        self.code = self.dir / code
        shutil.copy2(bench.programs / code, self.code)
        give_id(self.code, name)
        debug = DEBUG
        if name == "namespace":
            debug = self.dir / "debug"
            debug.mkdir()
        prepare(self.code, debug)
        program, more = self.code, []
        if code.endswith(".so"):
            program, more = bench.programs / "workload_named", [self.code]
        if name == "upgraded":
            more.append(self.dir / "later.so")
            shutil.copy2(bench.build / "tests/fake_cuda/lib/libcuda.so.1", more[-1])
        command = [program, self.go, *more]
        if name == "namespace":
            # What it sees at this place is a copy that nobody else sees; outside there is nothing.
            script = ('mount --make-rprivate / && cp -a "$0" "$0.all" && mount -t tmpfs tmpfs "$0" && '
                      'cp -a "$0.all/." "$0" && mount --bind "$0/debug" /usr/lib/debug && exec "$@"')
            command = ["unshare", "-m", "sh", "-c", script, self.dir, *command]
        self.process = bench.spawn([str(word) for word in command], bench.env(CUDA_INJECTION64_PATH=bench.shim),
                                   stdout=subprocess.DEVNULL)
        wait_for_memfd(self.process.pid)
        if name == "deleted":
            self.code.unlink()
        if name == "namespace":
            shutil.rmtree(f"{self.dir}.all")
            self.code.unlink()  # of the folder below: the process keeps its own
            shutil.rmtree(debug)

    def start(self):
        """In the process's own root: its folder may not be ours."""
        pathlib.Path(f"/proc/{self.process.pid}/root{self.go}").touch()


def check_fetching(form, daemon):
    """An answering server: until all has come. The other one: it is asked, by a process without any privilege."""
    fetcher = fetcher_of(daemon)
    if form.server == "answers":
        wait_for(lambda: not children(fetcher), "all that is wanted is fetched")
        return
    wait_for(lambda: children(fetcher), "the server is asked")
    status = pathlib.Path(f"/proc/{children(fetcher)[0]}/status").read_text()
    for which in ("CapEff", "CapPrm", "CapBnd"):
        check(f"{which}:\t{'0' * 16}\n" in status, f"capabilities of what asks: {status}")


def profile_of(bench, form, shapes):
    server = Server(form.server == "answers") if form.server else None
    env = bench.env(DEBUGINFOD_URLS=server.url if server else "", DEBUGINFOD_CACHE_PATH=bench.dir / "cache")
    profile, summary = bench.dir / "x.pb.gz", bench.dir / "x.json"
    pids = [word for shape in shapes for word in ("--pid", str(shape.process.pid))]
    errors = (bench.dir / "stderr").open("w+")
    daemon = bench.spawn([str(bench.daemon), *pids, "-o", str(profile), "--summary-json", str(summary)], env,
                         stderr=errors)
    for shape in shapes:
        wait_for_state(shape.process.pid, STATE_TRACING)
        shape.start()
    already = [emitted(shape.process.pid) for shape in shapes]
    wait_for(lambda: daemon.poll() is not None or all(
        emitted(shape.process.pid) >= before + 50 for shape, before in zip(shapes, already)), "launches of each shape")
    if server:
        check_fetching(form, daemon)
    daemon.send_signal(signal.SIGINT)
    code = daemon.wait(60)  # debuginfod-find itself gives up after 90 s
    errors.seek(0)
    check(code == 0, f"attach: exit {code}: {errors.read()}")
    return pprof_raw.load(profile), summary


def expected_frames(form):
    """(function, line) from main's callee on, without what leads to the launch."""
    lines = (pathlib.Path(__file__).parent / "workload/named_code.cc").read_text().splitlines()
    number = {mark: at for at, line in enumerate(lines, 1) for mark in re.findall(r"// (\w+)$", line)}
    out = []
    for function, mark in CHAIN:
        inlined = mark.startswith("inlined")
        if inlined and not form.inlined:
            continue
        if mark == "run" and not form.hidden:
            function = None
        out.append((function, number[mark] if form.lines else 0))
    return out


def check_shape(form, shape, samples):
    stacks = {tuple((f.function, f.line, f.file) for f in sample.frames) for sample in samples}
    check(stacks, f"{shape.name}: no sample")
    exported = shape.name in ("dlopened", "upgraded")
    if form.hidden or exported:
        stacks = {stack for stack in stacks if "named_entry" in (function for function, _, _ in stack)}
        check(stacks, f"{shape.name}: no stack with named_entry")
    for stack in stacks:
        names = [function for function, _, _ in stack]
        if not form.hidden and not exported:
            # Nothing of a stripped program has a name, and nothing may be guessed.
            check(not any(name.startswith("named") for name in names), f"{shape.name}: {names}")
            check(f"[{shape.code.name}]" in names, f"{shape.name}: {names}")
            continue
        at = names.index("named_entry")
        got = stack[at:at + len(expected_frames(form))]
        for (function, line, file), (want, want_line) in zip(got, expected_frames(form)):
            equal((function, line), (want or f"[{shape.code.name}]", want_line), f"{shape.name}: frame of {names}")
            check(file.endswith(SOURCE) if form.lines else SOURCE not in file, f"{shape.name}: {function} is in {file!r}")
        following = names[at + len(got)]
        check(following == "launch_one" or "launch_one" in following or following.startswith("["),
              f"{shape.name}: {following} after {names}")


def run(form, options):
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    DEBUG.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", DEBUG], check=True)
    bench = Bench(options.build)
    try:
        shapes = [Shape(bench, name, form.prepare) for name in SHAPES]
        profile, summary = profile_of(bench, form, shapes)
        found = json.loads(summary.read_text())["symbols"]
        flat = {**found, **found["troubles"], **found.get("debuginfod", {})}
        for shape in shapes:
            check_shape(form, shape, [s for s in profile.samples if s.labels["pid"] == str(shape.process.pid)])
        for key, least in form.counts.items():
            check(flat[key] >= least if least else flat[key] == 0, f"{key} of the summary: {found}")
    finally:
        bench.close()
        shutil.rmtree(SERVED, ignore_errors=True)


if __name__ == "__main__":
    if os.geteuid() == 0 and "--inside" not in sys.argv:
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv, "--inside"])
    sys.argv = [word for word in sys.argv if word != "--inside"]
    sys.exit(run_named_case(CASES, __doc__, run))
