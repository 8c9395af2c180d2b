#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which libcupti the shim takes, and what it says where it can take none, with the real libraries.

usage: proofs.py BUILD CUPTI_FOLDER [PROOF...]     scripts/cupti-proof fetches the libraries into CUPTI_FOLDER

Each proof is a root file system of its own (root.py). Exit 1 if one fails or none ran."""
import sys
import time

from layouts import ALL, CONDA, LAYOUTS, SITE, conda, debian, nix, pip_cu12, pip_cu12_other, pip_cu13, toolkit, toolkit_alone, toolkit_extras
from root import DECLINED, IDLE, LIBRARIES, LINE_BYTES, LOADED, MAPPED, Failure, Machine, Root, expect

# cuptiGetVersion(), as the status page has it. The newest does not start without a driver of its own.
VERSIONS = {"11.8": 18, "12.0": 19, "12.4": 22, "12.9": 28, "13.0": 130001}
TOO_NEW = {"newest": "does not start: cuptiGetVersion answered 999", "13.2": "(CUPTI 13.2) would crash on the driver"}
WHERE_FROM = ("CUPTI comes with the CUDA toolkit or pip, not with the driver, and the container toolkit does not inject it",)


# --- what is expected

def one_line(outcome, *parts):
    """The shim's one line on standard error, which is the status page's text, holds each part once."""
    expect(len(outcome.errors) == 1, f"{len(outcome.errors)} lines instead of one: {outcome.errors}")
    (line,) = outcome.errors
    head, _, text = line.partition("]: ")
    expect(head.startswith("gpu-profiled["), f"says: {line}")
    expect(len(line.encode()) < LINE_BYTES, f"{len(line)} bytes")
    expect(text == outcome.text, f"the page has another text: {outcome.text}\nthan standard error: {text}")
    for part in ("this process runs unprofiled", *parts):
        expect(text.count(part) == 1, f"{text.count(part)} times '{part}' in: {text}")


def declines(outcome, *parts):
    expect(outcome.state == DECLINED, f"state {outcome.state}")
    one_line(outcome, *parts)


def finds_nothing(outcome, *parts):
    declines(outcome, "no usable libcupti", *WHERE_FROM, *parts)
    expect(not [path for path in outcome.mapped if "libcupti" in path], "a libcupti is mapped all the same")


def takes(root, outcome, release, path, origin=LOADED):
    """This copy and no other one; it works, as far as it can without a GPU."""
    expect(root.one_copy(outcome) == path, f"mapped {root.one_copy(outcome)} instead of {path}; {outcome.errors}")
    told = root.real(outcome.path)
    expect(str(told.resolve()) == str(root.real(path).resolve()), f"says it took {outcome.path} instead of {path}")
    expect(outcome.origin == origin, f"origin {outcome.origin}")
    if release in TOO_NEW:
        declines(outcome, TOO_NEW[release])
        return
    expect(outcome.state == IDLE and not outcome.errors, f"state {outcome.state}: {outcome.errors}")
    expect(outcome.version == VERSIONS[release], f"version {outcome.version}")


def layout_proof(layout, release):
    def proof(machine):
        with Root(machine) as root:
            path, steps, environment = layout(root, release)
            takes(root, root.run(*steps, "cuda", **environment), release, path)
    return proof


# --- a mapped copy

def mapped_proof(release):
    """Mapped under its own name, beside newer and older ones where the shim would look, and in the override."""
    def proof(machine):
        for name in ("", "libcupti-1a2b3c4d.so.12.9.79"):
            with Root(machine) as root:
                path = root.cupti(release, f"/srv/app/lib/{name or machine.soname(release)}")
                toolkit(root, "13.0")
                debian(root, "12.9")
                override = root.cupti("12.4", "/srv/override/")
                takes(root, root.run("open", path, "cuda", GPU_PROFILED_CUPTI_PATH=override), release, path, MAPPED)
    return proof


def mapped_by_no_name(machine):
    """Neither its file nor its soname says libcupti."""
    with Root(machine) as root:
        path = root.cupti("12.9", "/srv/app/lib/vendored.so")
        image = root.real(path).read_bytes()
        expect(image.count(b"\0libcupti.so.12\0") == 1, "the soname is not where it was")
        root.real(path).write_bytes(image.replace(b"\0libcupti.so.12\0", b"\0libvendored.so\0"))
        toolkit(root, "13.0")
        takes(root, root.run("open", path, "cuda"), "12.9", path, MAPPED)


def mapped_and_gone(machine):
    with Root(machine) as root:
        path = root.cupti("12.9", "/srv/app/lib/")
        toolkit(root, "13.0")
        outcome = root.run("open", path, "remove", path, "cuda")
        expect(root.one_copy(outcome) == path and outcome.path == path, f"took {outcome.path}")
        expect(outcome.state == IDLE and outcome.origin == MAPPED, f"state {outcome.state}, origin {outcome.origin}")


def mapped_by_a_relative_path(machine):
    with Root(machine) as root:
        path = root.cupti("12.9", "/srv/app/lib/")
        toolkit(root, "13.0")
        outcome = root.run("chdir", "/srv/app", "open", "lib/libcupti.so.12", "chdir", "/", "cuda")
        expect(root.one_copy(outcome) == path and outcome.origin == MAPPED, f"took {outcome.path}")
        expect(outcome.state == IDLE, f"state {outcome.state}")


def mapped_deep(machine):
    """Its path is longer than the status page's room for it."""
    with Root(machine) as root:
        path = root.cupti("12.9", "/srv" + ("/" + "deep" * 30) * 8 + "/")
        toolkit(root, "13.0")
        outcome = root.run("open", path, "cuda")
        expect(root.one_copy(outcome) == path and outcome.origin == MAPPED, f"took {outcome.path}")
        expect(path.startswith(outcome.path) and len(outcome.path) == 511, f"says {outcome.path}")


def mapped_behind_many_others(machine):
    """Forty libraries in forty folders, each of which could lead to a libcupti, come first."""
    with Root(machine) as root:
        one = root.library("/srv/0/libcudnn.so.9")
        steps = ["open", one]
        for number in range(1, 40):
            root.cupti("13.0" if number == 1 else "12.4", f"/srv/{number}/") if number < 3 else None
            steps += ["open", root.library(f"/srv/{number}/libcudnn_{number}.so.9")]
        path = root.cupti("12.9", "/srv/app/lib/")
        takes(root, root.run(*steps, "open", path, "cuda"), "12.9", path, MAPPED)


def mapped_newer_than_the_driver(machine):
    with Root(machine) as root:
        path = root.cupti("13.0", "/srv/app/lib/libcupti-1a2b.so.2025")
        debian(root, "12.9")
        outcome = root.run("open", path, "cuda", driver="12.4")
        expect(root.one_copy(outcome) == path, "another copy was mapped")
        declines(outcome, f"{path} is newer than the driver (CUDA 12.4)")


# --- the newest that suits

def chosen_proof(driver, wanted):
    """Of four releases in one folder, found by their neighbour."""
    def proof(machine):
        with Root(machine) as root:
            paths = {release: root.cupti(release, f"{CONDA}/lib/") for release in ("11.7", "11.8", "12.9", "13.0")}
            outcome = root.run("open", root.library(f"{CONDA}/lib/libcudart.so.12"), "cuda", driver=driver)
            takes(root, outcome, wanted, paths[wanted])
    return proof


def chosen_among_wheels(machine):
    with Root(machine) as root:
        root.cupti("13.0", f"{SITE}/nvidia/cu13/lib/")
        path, steps, _ = pip_cu12(root, "12.9")
        takes(root, root.run(*steps, "cuda", driver="12.4"), "12.9", path)


def chosen_among_sonames(machine):
    with Root(machine) as root:
        debian(root, "13.0")
        path, _, _ = debian(root, "12.4")
        takes(root, root.run("cuda", driver="12.4"), "12.4", path)


def chosen_among_toolkits(machine):
    with Root(machine) as root:
        for release in ("11.8", "12.4", "13.0"):
            toolkit_alone(root, release)
        path, _, _ = toolkit_alone(root, "12.9")
        takes(root, root.run("cuda", driver="12.4"), "12.9", path)


def default_toolkit_first(machine):
    with Root(machine) as root:
        toolkit_alone(root, "12.9")
        path, _, _ = toolkit(root, "12.0")
        takes(root, root.run("cuda", driver="12.4"), "12.0", path)


def places_in_order(machine):
    """Run path, neighbour, package folder, soname, toolkit: with each one gone the next is taken."""
    with Root(machine) as root:
        run_path, steps, _ = nix(root, "12.9")
        neighbour, more, _ = conda(root, "12.9")
        wheel, other, _ = pip_cu12_other(root, "12.9")
        soname, _, _ = debian(root, "12.9")
        last, _, _ = toolkit(root, "12.9")
        for path in (run_path, neighbour, wheel, soname, last):
            takes(root, root.run(*steps, *more, *other, "cuda"), "12.9", path)
            root.real(path).unlink()
            del root.copies[path]
        finds_nothing(root.run(*steps, *more, *other, "cuda"))


def next_one_where_the_newest_is_broken(machine):
    with Root(machine) as root:
        path, _, _ = toolkit_extras(root, "12.9")
        root.real("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13").write_bytes(b"")
        takes(root, root.run("cuda"), "12.9", path)


# Whatever a folder's own order is: that of their making, or its reverse.
ORDERS = (("original", "backup"), ("backup", "original"))
BACKUPS = (".bak", ".orig", ".old", ".debug", ".save", "~", ".9.79.bak")


def backup_proof(suffix, is_broken):
    """A libcupti beside the real one that an administrator has put aside; a library that needs the real one is loaded later."""
    def proof(machine):
        for folder, how in ((f"{SITE}/nvidia/cuda_cupti/lib", {}), ("/usr/local/cuda/extras/CUPTI/lib64", {}),
                            ("/srv/override", {"GPU_PROFILED_CUPTI_PATH": "/srv/override"})):
            for order in ORDERS:
                with Root(machine) as root:
                    path, backup = f"{folder}/libcupti.so.12", f"{folder}/libcupti.so.12{suffix}"
                    for file in order:
                        root.cupti("12.9", path) if file == "original" else root.cupti("12.0", backup)
                    if is_broken:
                        root.real(backup).write_bytes(b"put aside")
                    near = root.library(f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12")
                    later = root.library("/srv/app/lib/libkineto_like.so", NEEDS, str(root.real(path)), f"-Wl,-rpath,{folder}")
                    outcome = root.run("open", near, "cuda", "open", later, "call", "probe", **how)
                    takes(root, outcome, "12.9", path)
                    expect(outcome.said["call probe"] == "7", outcome.said)
    return proof


def backup_of_a_toolkit(machine):
    for order in ORDERS:
        with Root(machine) as root:
            for file in order:
                if file == "original":
                    path, _, _ = toolkit_alone(root, "12.9")
                else:
                    root.cupti("12.0", "/usr/local/cuda-12.9.bak/lib64/")
                    root.cupti("12.0", "/usr/local/cuda-12.9-old/lib64/")
            takes(root, root.run("cuda"), "12.9", path)


def files_of_one_release(machine):
    """By number, and on below the ones that cannot be loaded."""
    for order in ORDERS:
        with Root(machine) as root:
            for file in order:
                if file == "original":
                    path = root.cupti("12.9", f"{CONDA}/lib/libcupti.so.12.9.79")
                else:
                    for broken in ("12", "12.9.101", "12.9.19"):
                        root.real(f"{CONDA}/lib").mkdir(parents=True, exist_ok=True)
                        root.real(f"{CONDA}/lib/libcupti.so.{broken}").write_bytes(b"")
            takes(root, root.run("open", root.library(f"{CONDA}/lib/libcudart.so.12"), "cuda"), "12.9", path)


def only_a_newer_one(machine):
    for place in (toolkit, pip_cu13, debian):
        with Root(machine) as root:
            path, steps, _ = place(root, "13.0")
            outcome = root.run(*steps, "cuda", driver="12.4")
            finds_nothing(outcome, "libcupti.so.12, libcupti.so.11.8")
            named = path if place is not toolkit else "/usr/local/cuda/lib64/libcupti.so.13"
            told = outcome.text.partition("tried ")[2]
            entries = [(name, entry.rpartition(": ")[2]) for entry in told.split("; ") for name in entry.rpartition(": ")[0].split(", ")]
            expect((named, "newer than the driver's CUDA 12.4") in entries, entries)
            if place is not pip_cu13:  # there both are newer, and told together
                expect(told.startswith("libcupti.so.13: not tried, newer than the driver's CUDA 12.4; "), told)


# --- what it says

def nothing_anywhere(machine):
    with Root(machine) as root:
        finds_nothing(root.run("cuda"), "libcupti.so.13, libcupti.so.12, libcupti.so.11.8, /usr/local/cuda, /opt/cuda: not found",
                      f"{LIBRARIES}, /usr/lib64: no libcupti there")


def broken_proof(breaks, error):
    """A real library, broken in one way: its path and the loader's own words, once."""
    def proof(machine):
        with Root(machine) as root:
            path, _, _ = toolkit_extras(root, "12.9")
            steps = breaks(root, path) or ()
            finds_nothing(root.run(*steps, "cuda"), f"{path}: {error}")
    return proof


def truncated(root, path):
    image = root.real(path).read_bytes()
    root.real(path).write_bytes(image[:40])


def of_another_machine(root, path):
    image = bytearray(root.real(path).read_bytes())
    image[18:20] = (183).to_bytes(2, "little")  # e_machine: aarch64
    root.real(path).write_bytes(image)


def without_what_it_needs(root, _):
    root.real(f"{LIBRARIES}/libutil.so.1").unlink()


def unreadable(root, path):
    root.real(path).chmod(0)
    return "user", "65534"


def override_proof(value, make, part):
    """Nothing else is tried where the override fails."""
    def proof(machine):
        with Root(machine) as root:
            toolkit(root, "12.9")
            make(root)
            finds_nothing(root.run("cuda", GPU_PROFILED_CUPTI_PATH=value), part)
    return proof


def override_chooses(machine):
    with Root(machine) as root:
        toolkit(root, "13.0")
        for value, path in (("/srv/my", "/srv/my/libcupti.so.12"), ("/srv/other/libcupti.so.12", "/srv/other/libcupti.so.12")):
            root.cupti("12.4", path)
            takes(root, root.run("cuda", GPU_PROFILED_CUPTI_PATH=value), "12.4", path)


def too_old(machine):
    with Root(machine) as root:
        path = root.cupti("11.7", "/srv/old/")
        declines(root.run("cuda", GPU_PROFILED_CUPTI_PATH=path), f"{path} has API version 17, that of CUDA 11.8 (18) is the oldest supported")
        finds_nothing(root.run("cuda", GPU_PROFILED_CUPTI_PATH="/srv/old"), f"{path}: older than CUDA 11.8")
        outcome = root.run("open", path, "cuda")
        expect(root.one_copy(outcome) == path, "another copy was mapped")
        declines(outcome, "has API version 17")


def hostile_names(machine):
    """A path with a line end, long ones, and more of them than the line has room for."""
    with Root(machine) as root:
        finds_nothing_in = root.run("cuda", GPU_PROFILED_CUPTI_PATH="/srv/a\nb/libcupti.so.12")
        expect(len(finds_nothing_in.errors) == 1 and "/srv/a?b/libcupti.so.12: not found" in finds_nothing_in.errors[0], finds_nothing_in.errors)
        steps = []
        for number in range(12):
            steps += ["open", root.library(f"/srv/{'long' * 30}{number}/libcudart.so.12")]
        outcome = root.run(*steps, "cuda", GPU_PROFILED_LOG="/tmp/log")
        finds_nothing(outcome, " more")
        log = root.real("/tmp/log").read_text().splitlines()
        expect(len([line for line in log if line == outcome.errors[0]]) == 1, "the log has another line")


# --- libraries that need a newer CUPTI of the same soname, loaded later

NEEDS = """
int cuptiActivityEnableHWTrace(void);
int (*volatile needed)(void) = cuptiActivityEnableHWTrace;
int probe(void) { return needed != 0 ? 7 : 0; }
"""


def later_library(root):
    """12.9's cuptiActivityEnableHWTrace is not in 12.0; found by a run path of the library's own."""
    newer = root.cupti("12.9", "/srv/app/cupti/")
    library = root.library("/srv/app/lib/libkineto_like.so", NEEDS, str(root.real(newer)), "-Wl,-rpath,/srv/app/cupti")
    return newer, library


def later_alone(machine):
    with Root(machine) as root:
        newer, library = later_library(root)
        outcome = root.run("cuda", "open", library, "call", "probe", shim=False)
        expect(outcome.said["call probe"] == "7" and root.one_copy(outcome) == newer, outcome.said)


def later_breaks_beside_an_older_one(machine):
    """The shim's copy satisfies the library's need: README says what to set."""
    with Root(machine) as root:
        older, _, _ = debian(root, "12.0")
        _, library = later_library(root)
        outcome = root.run("cuda", "open", library)
        expect("undefined symbol: cuptiActivityEnableHWTrace" in outcome.said[f"open {library}"], outcome.said)
        takes(root, outcome, "12.0", older)


def later_is_warned_of(machine):
    """gpu-profiled tells before the library is loaded, and not where the newer copy is the shim's. (CUPTI cannot trace here.)"""
    with Root(machine) as root:
        _, steps, _ = pip_cu12(root, "12.0")
        newer, _ = later_library(root)
        path = {"LD_LIBRARY_PATH": "/srv/app/cupti"}
        said = root.profiled(*steps, "cuda", **path)
        warnings = [line for line in said if f"the shim loaded CUPTI from {SITE}" in line]
        expect(len(warnings) == 1, said)
        for part in (f"and {newer} has 56 functions that it lacks (cuptiActivityEnableAllSyncRecords, ...)", f"GPU_PROFILED_CUPTI_PATH={newer}"):
            expect(part in warnings[0], warnings)
        said = root.profiled(*steps, "cuda", GPU_PROFILED_CUPTI_PATH=newer, **path)
        expect(said and not [line for line in said if "lacks" in line], said)


def later_with_the_override(machine):
    with Root(machine) as root:
        debian(root, "12.0")
        newer, library = later_library(root)
        outcome = root.run("cuda", "open", library, "call", "probe", GPU_PROFILED_CUPTI_PATH=newer)
        expect(outcome.said["call probe"] == "7", outcome.said)
        takes(root, outcome, "12.9", newer)


def later_with_its_run_path_known(machine):
    """A library of the same application, mapped before, has the run path: that copy is taken."""
    with Root(machine) as root:
        debian(root, "12.0")
        newer, library = later_library(root)
        first = root.library("/srv/app/lib/libfirst.so", "", "-Wl,-rpath,$ORIGIN/../cupti")
        outcome = root.run("open", first, "cuda", "open", library, "call", "probe")
        expect(outcome.said["call probe"] == "7", outcome.said)
        expect(root.one_copy(outcome) == newer and outcome.state == IDLE, f"took {outcome.path}")


def proofs():
    table = {f"{layout.__name__.replace('_', ' ')}, CUDA {release}": layout_proof(layout, release)
             for layout, releases in LAYOUTS for release in releases}
    for release in ALL:
        table[f"mapped, CUDA {release}"] = mapped_proof(release)
    for proof in (mapped_by_no_name, mapped_and_gone, mapped_by_a_relative_path, mapped_deep, mapped_behind_many_others,
                  mapped_newer_than_the_driver):
        table[proof.__name__.replace("_", " ")] = proof
    for driver, release in (("11.8", "11.8"), ("12.4", "12.9"), ("13.0", "13.0"), ("14.0", "13.0")):
        table[f"of four, driver {driver}"] = chosen_proof(driver, release)
    for proof in (chosen_among_wheels, chosen_among_sonames, chosen_among_toolkits, default_toolkit_first, places_in_order,
                  next_one_where_the_newest_is_broken, backup_of_a_toolkit, files_of_one_release, only_a_newer_one, nothing_anywhere):
        table[proof.__name__.replace("_", " ")] = proof
    for suffix in BACKUPS:
        for is_broken in (False, True):
            table[f"beside a {'broken' if is_broken else 'good'} libcupti.so.12{suffix}"] = backup_proof(suffix, is_broken)
    for breaks, error in ((truncated, "file too short"), (unreadable, "cannot open shared object file: Permission denied"),
                          (of_another_machine, "there, but not for this machine"),
                          (without_what_it_needs, "libutil.so.1: cannot open shared object file: No such file or directory")):
        table[f"{breaks.__name__.replace('_', ' ')} file"] = broken_proof(breaks, error)
    table["override: no such file"] = override_proof("/srv/no/libcupti.so.12", lambda root: None, "tried /srv/no/libcupti.so.12: not found")
    table["override: empty folder"] = override_proof("/srv/empty", lambda root: root.real("/srv/empty").mkdir(parents=True),
                                                     "tried /srv/empty: no libcupti there")
    for proof in (override_chooses, too_old, hostile_names, later_alone, later_breaks_beside_an_older_one, later_is_warned_of, later_with_the_override,
                  later_with_its_run_path_known):
        table[proof.__name__.replace("_", " ")] = proof
    return table


def main():
    machine = Machine(sys.argv[1], sys.argv[2])
    wanted = sys.argv[3:]
    failed = ran = 0
    start = time.monotonic()
    for name, proof in proofs().items():
        if wanted and not any(word in name for word in wanted):
            continue
        ran += 1
        try:
            proof(machine)
            print(f"{name}: holds", flush=True)
        except Failure as failure:
            failed += 1
            print(f"{name}: FAILED: {failure}", flush=True)
    print(f"{ran} proofs, {failed} failed, {time.monotonic() - start:.0f} s")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
