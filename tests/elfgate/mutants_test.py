#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One change of the shim, one line of elfgate: the shipped policy tells each mutant's fault and nothing else.

usage: mutants_test.py ELFGATE POLICY SHIM [--lower]
  --lower  first replace SHIM's needs of a glibc above the policy's floor, as an ordinary build has them, by
           needs of the floor: the mutants then differ from a file that passes by one thing alone
"""
import ctypes
import pathlib
import platform
import struct
import subprocess
import sys
import tempfile

from elf_library import (DT_FLAGS, DT_FLAGS_1, DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME, DT_TEXTREL, STB_GLOBAL,
                         STB_GNU_UNIQUE, STB_WEAK, ElfLibrary, sysv_hash)

FLOOR = "GLIBC_2.17"
DF_STATIC_TLS, DF_BIND_NOW, DF_1_NOW, DF_1_NODELETE = 0x10, 0x8, 0x1, 0x8
DT_RELRSZ = 35
DT_AUXILIARY, DT_FILTER = 0x7ffffffd, 0x7fffffff
STT_OBJECT, STT_FUNC, STT_TLS = 1, 2, 6
VER_FLG_WEAK = 2
PT_NULL, PT_GNU_STACK, PT_GNU_RELRO = 0, 0x6474e551, 0x6474e552
NOTES = ".note.stapsdt"


def number(version: bytes) -> list[int]:
    return [int(part) for part in version.decode().removeprefix("GLIBC_").split(".")]


def lower(library: ElfLibrary) -> None:
    for _, entries in library.needs:
        for entry in entries:
            name = library.name_at(entry[3])
            if name.startswith(b"GLIBC_2") and number(name) > number(FLOOR.encode()):
                entry[0], entry[3] = sysv_hash(FLOOR.encode()), library.add_string(FLOOR)


def add_string_tag(tag: int, text: str):
    return lambda library: library.dynamic.insert(0, (tag, library.add_string(text)))


def set_bits(tag: int, bits: int):
    def change(library: ElfLibrary) -> None:
        before = next((value for known, value in library.dynamic if known == tag), 0)
        library.set_tag(tag, before | bits)
    return change


def clear_bits(tag: int, bits: int):
    return lambda library: library.set_tag(tag, library.tag(tag) & ~bits)


def need_version(version: str):
    """An import of libc gets it."""
    def change(library: ElfLibrary) -> None:
        index = library.add_need("libc.so.6", version)
        at = next(i for i, symbol in enumerate(library.symbols) if library.name_at(symbol[0]) == b"getenv")
        library.versions[at] = index
    return change


def add_symbol(name: str, binding: int, defined: bool):
    return lambda library: library.add_symbol(name, binding, defined)


def weak_need(library: ElfLibrary) -> None:
    """Of a strong symbol: the loader refuses the file for the symbol's sake."""
    need_version("GLIBC_2.34")(library)
    for _, entries in library.needs:
        for entry in entries:
            entry[1] |= VER_FLG_WEAK if library.name_at(entry[3]) == b"GLIBC_2.34" else 0


def set_byte(offset: int, value: int):
    return lambda library: library.image.__setitem__(offset, value)


def export_as(info: int):
    """The driver's entry with another binding and type."""
    def change(library: ElfLibrary) -> None:
        next(symbol for symbol in library.symbols if library.name_at(symbol[0]) == b"InitializeInjection")[1] = info
    return change


def soname(text: str):
    return lambda library: library.set_tag(DT_SONAME, library.add_string(text))


def set_segment(kind: int, place: int, value: int):
    def change(library: ElfLibrary) -> None:
        next(segment for segment in library.segments if segment[0] == kind)[place] = value
    return change


def note_of(library: ElfLibrary, probe: bytes) -> int:
    """Offset of its Elf64_Nhdr: name, description and type, then "stapsdt" and three addresses."""
    offset, size = library.section(NOTES)
    at = offset
    while at < offset + size:
        name, desc, _ = struct.unpack_from("<III", library.image, at)
        strings = bytes(library.image[at + 12 + name + 24:at + 12 + name + desc]).split(b"\0")
        if strings[1] == probe:
            return at
        at += 12 + (name + 3 & ~3) + (desc + 3 & ~3)
    raise ValueError(f"no note of {probe!r}")


def without_note(library: ElfLibrary) -> None:
    struct.pack_into("<I", library.image, note_of(library, b"exec_v1") + 8, 99)


def other_register(library: ElfLibrary) -> None:
    at = note_of(library, b"exec_v1")
    at = library.image.index(b"exec_v1\0" + b"8@", at) + len(b"exec_v1\0")
    library.image[at:at + 2] = b"4@"


def without_semaphore(library: ElfLibrary) -> None:
    struct.pack_into("<Q", library.image, note_of(library, b"exec_v1") + 12 + 8 + 16, 0)


def twice(library: ElfLibrary) -> None:
    at = note_of(library, b"exec_v1")
    name, desc, _ = struct.unpack_from("<III", library.image, at)
    offset, size = library.section(NOTES)
    note = library.image[at:at + 12 + (name + 3 & ~3) + (desc + 3 & ~3)]
    library.move_section(NOTES, bytes(library.image[offset:offset + size] + note))


# What is planted, and how the one line that tells it begins.
MUTANTS = {
    "GNU2_TLS marker": (need_version("GLIBC_ABI_GNU2_TLS"), "versions: needs the marker GLIBC_ABI_GNU2_TLS (libc.so.6"),
    "DT_RELR marker": (need_version("GLIBC_ABI_DT_RELR"), "versions: needs the marker GLIBC_ABI_DT_RELR (libc.so.6"),
    "GLIBC_2.34": (need_version("GLIBC_2.34"), "versions: needs GLIBC_2.34, more than GLIBC_2.17 (libc.so.6: getenv)"),
    "GLIBC_2.34, weak": (weak_need, "versions: needs GLIBC_2.34, more than GLIBC_2.17 (libc.so.6: getenv)"),
    "no version": (add_symbol("gettid", STB_GLOBAL, False), "unversioned-imports: refers to gettid without a version "),
    "another namespace": (need_version("GCC_3.0"), "versions: needs GCC_3.0, which the policy does not list"),
    "extra export": (add_symbol("planted", STB_GLOBAL, True), "exports: defines the symbol planted, "),
    "weak export": (add_symbol("planted", STB_WEAK, True), "exports: defines the weak symbol planted, "),
    "unique export": (add_symbol("planted", STB_GNU_UNIQUE, True), "exports: defines the unique symbol planted "),
    "weak entry": (export_as(STB_WEAK << 4 | STT_FUNC), "exports: defines InitializeInjection as a weak function, not a function "),
    "variable": (export_as(STB_GLOBAL << 4 | STT_OBJECT), "exports: defines InitializeInjection as a variable, not a function "),
    "thread-local": (export_as(STB_GLOBAL << 4 | STT_TLS), "exports: defines InitializeInjection as a thread-local variable, not a function "),
    "std:: reference": (add_symbol("_ZNSt6thread4joinEv", STB_GLOBAL, False), "cxx-runtime: refers to _ZNSt6thread4joinEv "),
    "std:: definition": (add_symbol("_ZNSt6vectorIiSaIiEE9push_backEOi", STB_WEAK, True),
                         "cxx-runtime: defines the weak symbol _ZNSt6vectorIiSaIiEE9push_backEOi "),
    "libstdc++ reference": (add_symbol("_ZN9__gnu_cxx27__verbose_terminate_handlerEv", STB_GLOBAL, False), "cxx-runtime: refers to _ZN9__gnu_cxx"),
    "operator delete": (add_symbol("_ZdlPv", STB_WEAK, True), "cxx-runtime: defines the weak symbol _ZdlPv "),
    "CUPTI reference": (add_symbol("cuptiSubscribe", STB_GLOBAL, False), "imports: refers to cuptiSubscribe, "),
    "abort": (add_symbol("abort", STB_GLOBAL, False), "imports: refers to abort, "),
    "RUNPATH": (add_string_tag(DT_RUNPATH, "/opt/planted"), "runpath: has the run path /opt/planted "),
    "RPATH": (add_string_tag(DT_RPATH, "/opt/planted"), "rpath: has the run path /opt/planted "),
    "libcuda": (add_string_tag(DT_NEEDED, "libcuda.so.1"), "needed: needs libcuda.so.1, which is denied "),
    "filter": (add_string_tag(DT_FILTER, "libcuda.so.1"), "needed: needs libcuda.so.1, which is denied (DT_FILTER)"),
    "auxiliary": (add_string_tag(DT_AUXILIARY, "libm.so.6"), "needed: needs libm.so.6, which is not allowed (DT_AUXILIARY)"),
    "libm": (add_string_tag(DT_NEEDED, "libm.so.6"), "needed: needs libm.so.6, which is not allowed "),
    "SONAME": (soname("libplanted.so"), "soname: SONAME is libplanted.so, not libgpu-profiled-cupti.so "),
    "missing note": (without_note, "usdt: has no probe gpu_profiled:exec_v1 "),
    "other arguments": (other_register, "usdt: gpu_profiled:exec_v1 has the arguments '4@"),
    "no semaphore": (without_semaphore, "usdt-semaphores: gpu_profiled:exec_v1 has no semaphore "),
    "duplicate probe": (twice, "usdt-duplicates: gpu_profiled:exec_v1 has 2 sites "),
    "DF_STATIC_TLS": (set_bits(DT_FLAGS, DF_STATIC_TLS), "static-tls: its thread-local variables must lie in the static TLS block (DF_STATIC_TLS)"),
    "TEXTREL": (lambda library: library.set_tag(DT_TEXTREL, 0), "textrel: has relocations in read-only segments "),
    "packed relocations": (lambda library: library.set_tag(DT_RELRSZ, 16), "packed-relocations: has 16 bytes "),
    "ABI version": (set_byte(8, 9), "os-abi: the ABI version is 9, not 0 (EI_ABIVERSION)"),
    "ELF version": (set_byte(20, 2), "os-abi: the ELF version is 2, not 1 (e_version)"),
    "identification": (set_byte(12, 1), "os-abi: the identification's padding is not 0 (EI_PAD)"),
    "unloadable": (clear_bits(DT_FLAGS_1, DF_1_NODELETE), "nodelete: can be unloaded "),
    "executable stack": (set_segment(PT_GNU_STACK, 1, 7), "exec-stack: asks for an executable stack "),
    "no RELRO": (set_segment(PT_GNU_RELRO, 0, PT_NULL), "relro: has no PT_GNU_RELRO "),
}


class Mutants:
    def __init__(self, elfgate: str, policy: str, shim: str, is_lowered: bool, folder: str):
        self.elfgate, self.policy, self.folder = elfgate, policy, pathlib.Path(folder)
        self.image, self.is_lowered = pathlib.Path(shim).read_bytes(), is_lowered
        self.failures: list[str] = []

    def lines_of(self, image: bytes) -> tuple[int, list[str]]:
        file = self.folder / "mutant.so"
        file.write_bytes(image)
        done = subprocess.run([self.elfgate, "check", str(file), "--policy", self.policy], capture_output=True, text=True, check=False)
        return done.returncode, [line.removeprefix(f"{file}: ") for line in (done.stdout + done.stderr).splitlines()]

    def expect(self, name: str, image: bytes, expected: str | None) -> None:
        status, lines = self.lines_of(image)
        is_right = (status, lines) == (0, []) if expected is None else \
            status == 1 and len(lines) == 1 and lines[0].startswith(expected)
        print(f"{'ok    ' if is_right else 'FAILED'} {name}: {'; '.join(line.split(': ')[0] for line in lines) or 'passes'}")
        if not is_right:
            self.failures.append(f"{name}: exit {status}\n  got      {lines}\n  expected {expected}")

    def run(self) -> int:
        machine, = struct.unpack_from("<H", self.image, 18)
        if machine == {"x86_64": 62, "aarch64": 183}.get(platform.machine()):
            # The writer makes files that a loader takes.
            file = self.folder / "rewritten.so"
            file.write_bytes(ElfLibrary(self.image).build())
            ctypes.CDLL(str(file)).InitializeInjection
        for name, (change, expected) in {"unchanged": (lambda library: None, None), **MUTANTS}.items():
            library = ElfLibrary(self.image)
            if self.is_lowered:
                lower(library)
            change(library)
            self.expect(name, library.build(), expected)
        print("\n".join(self.failures) or f"{len(MUTANTS)} mutants, each told by its own line alone")
        return 1 if self.failures else 0


def main() -> int:
    elfgate, policy, shim = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        return Mutants(elfgate, policy, shim, "--lower" in sys.argv[4:], folder).run()


if __name__ == "__main__":
    sys.exit(main())
