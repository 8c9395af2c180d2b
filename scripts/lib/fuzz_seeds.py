#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the inputs that a fuzz target begins with.

usage: fuzz_seeds.py TARGET FOLDER        (from the root of the tree)
"""
import lzma
import pathlib
import struct
import subprocess
import sys
import tempfile

# proto/memfd_layout.h: gpuprof_status_page.module_count; GPUPROF_MODULES_OFFSET.
MODULE_COUNT_OFFSET = 76
MODULES_OFFSET = 8192
CUBINS = sorted(pathlib.Path("tests/data/cubin").glob("*.cubin"))


def section(elf: bytes, name: str) -> bytes:
    """The content of a section of a 64-bit little-endian ELF file; empty if it has none."""
    table, = struct.unpack_from("<Q", elf, 40)
    count, names_index = struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * i) for i in range(count)]
    names = headers[names_index][4]
    for header in headers:
        at = names + header[0]
        if elf[at:at + len(name) + 1] == name.encode() + b"\0":
            return elf[header[4]:header[4] + header[5]]
    return b""


def cubin() -> dict[str, bytes]:
    # The PTX text and such are most of a file and nothing that is read; small files fuzz faster.
    return {path.name: path.read_bytes() for path in CUBINS if path.stat().st_size < 40_000}


def cubin_lines() -> dict[str, bytes]:
    tables = {path.name: section(path.read_bytes(), ".debug_line") for path in CUBINS}
    return {name: table for name, table in tables.items() if table}


def compiled(sources: list[str], *options: str, compiler: str = "clang") -> bytes:
    """A shared library of them."""
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder) / "seed.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-nostdlib", "-I.", *options, "-o", str(library), *sources],
                       check=True)
        return library.read_bytes()


def usdt_notes() -> dict[str, bytes]:
    return {"sites": compiled(["shim/core/usdt_sites.S"], "-Wl,--build-id=none")}


PROGRAM = """
namespace seed {
struct Base { virtual int get(int) const; };
inline int twice(int x) { return x * 2; }
__attribute__((noinline)) int deep(const Base& b, int x) { return b.get(twice(x)) + twice(x + 1); }
int Base::get(int x) const { int room[64]; for (int& r : room) r = x; return room[x & 63]; }
int top(int x) { Base b; return deep(b, x) + deep(b, twice(x)); }
}
"""


def elf_file() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "seed.cc"
        source.write_text(PROGRAM)
        seeds = {f"dwarf{version}{name}": compiled([str(source)], f"-gdwarf-{version}", *options)
                 for version in (4, 5) for name, options in
                 {"": ["-O2"], "-debug_frame": ["-O1", "-fno-asynchronous-unwind-tables", "-fno-exceptions"]}.items()}
        return {**seeds, "mini_debug": with_mini_debug(seeds["dwarf5"])}


def with_mini_debug(library: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file, data = pathlib.Path(folder) / "seed.so", pathlib.Path(folder) / "data"
        file.write_bytes(library)
        data.write_bytes(lzma.compress(library))
        subprocess.run(["objcopy", "-S", "--add-section", f".gnu_debugdata={data}", str(file)], check=True)
        return file.read_bytes()


def debug_pair() -> dict[str, bytes]:
    """See tests/fuzz/debug_pair_fuzz.cc: the size of a file, it, and what dwz moved out of it."""
    seeds = {}
    for version in (4, 5):
        with tempfile.TemporaryDirectory() as folder:
            source, one, two, common = (pathlib.Path(folder) / part for part in ("seed.cc", "one", "two", "common"))
            source.write_text(PROGRAM)
            # dwz does not read what clang writes in DWARF 5.
            library = compiled([str(source)], "-O2", f"-gdwarf-{version}", compiler="gcc")
            one.write_bytes(library)
            two.write_bytes(library)
            subprocess.run(["dwz", "-m", common, one, two], check=True)
            seeds[f"dwarf{version}"] = struct.pack("<I", one.stat().st_size) + one.read_bytes() + common.read_bytes()
    return seeds


def elfgate() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "seed.c"
        source.write_text("""
            extern int other(void);
            __thread int each;
            int (*table[])(void) = {other};
            int seed(void) { return other() + each; }
            """)
        script = pathlib.Path(folder) / "seed.map"
        script.write_text("SEED_1 { global: seed; local: *; };")
        options = ["shim/core/usdt_sites.S", "-O1", "-Wl,-z,max-page-size=4096"]
        return {name: compiled([str(source), *options], *extra) for name, extra in {
            "plain": [], "versions": [f"-Wl,--version-script={script}", "-lc"],
            "paths": ["-Wl,-rpath,$ORIGIN:/opt", "-Wl,-soname,seed.so.1", "-Wl,--hash-style=both"],
            "tls": ["-ftls-model=initial-exec", "-Wl,-z,execstack"]}.items()}


def eh_frame() -> dict[str, bytes]:
    """See tests/fuzz/eh_frame_fuzz.cc: machine, section, size of .eh_frame_hdr, it, the section."""
    def parts(machine: int, is_debug: bool, header: bytes, frames: bytes) -> bytes:
        return struct.pack("<BBH", machine, is_debug, len(header)) + header + frames

    seeds = {}
    for name, library in elf_file().items():
        frames, header = section(library, ".eh_frame"), section(library, ".eh_frame_hdr")
        if frames:
            seeds[name] = parts(0, False, header, frames)
            seeds[f"{name}-indexed"] = parts(0, False, b"", frames)
        if debug := section(library, ".debug_frame"):
            seeds[f"{name}-debug"] = parts(0, True, b"", debug)
    # CFA of a PLT entry, of a signal frame; states, restored registers, a register in another, an outermost frame.
    programs = [b"\x0f\x0b\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22", b"\x0f\x03\x77\xa0\x01\x10\x03\x02\x77\x28\x10\x10\x03\x77\xa8\x01",
                b"\x41\x0e\x10\x86\x02\x43\x0d\x06\x0a\x42\xc6\x0c\x07\x08\x41\x0b", b"\x41\x09\x0c\x06\x07\x10", b"\x2d\x44\x9d\x04\x9e\x03"]
    for i, program in enumerate(programs):
        cie = struct.pack("<II", 0, 0) + b"\x01zRS\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01"
        cie = struct.pack("<I", len(cie) - 4) + cie[4:]
        fde = struct.pack("<Iii", len(cie) + 4, 0x1000, 0x100) + b"\0" + program
        frames = cie + struct.pack("<I", len(fde)) + fde + bytes(4)
        seeds[f"program{i}"] = parts(i == 4, False, b"", frames)
    return seeds


def perf_map() -> dict[str, bytes]:
    return {"map": b"7f0000001000 80 py::main:/srv/a.py\n7f0000001040 20 py::inner:/srv/a.py\nzz bad\n10 10\n"}


def jit_dump() -> dict[str, bytes]:
    def record(kind: int, body: bytes) -> bytes:
        return struct.pack("<IIQ", kind, 16 + len(body), 7) + body

    header = struct.pack("<IIIIIIQQ", 0x4A695444, 1, 40, 62, 0, 1, 0, 0)
    lines = record(2, struct.pack("<QQ", 0x2000, 2) + struct.pack("<QII", 0x2000, 4, 0) + b"/a.py\0" +
                   struct.pack("<QII", 0x2010, 5, 0) + b"\xff\0")
    load = record(0, struct.pack("<IIQQQQ", 1, 1, 0x2000, 0x2000, 0x40, 2) + b"py::f:/a.py\0" + bytes(0x40))
    move = record(1, struct.pack("<IIQQQQQ", 1, 1, 0x1000, 0x2000, 0x1000, 0x40, 2))
    return {"dump": header + lines + load + move + record(3, b""), "load": header + load}


def names() -> dict[str, bytes]:
    mangled = [b"_ZN3cub11BlockReduceIfLi256ELNS_20BlockReduceAlgorithmE2ELi1ELi1EE3SumEf",
               b"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", b"_ZNSt6vectorIiSaIiEE9push_backEOi",
               b"_RNCNvXCsjMaewn57Afh_1tINtB4_1ShKj2_EINtB4_2TrFG_RL0_hExE2go0B4_", b"_RNvMs_CsjM_1tINtB4_1CKb1_Kcfc_Kln5_E1cB4_",
               b"_RINvNtCsj_1tu11ncode_cta3gu9gre_6ka8iFUKCPhOStDG_NtC1a1bp1cuEL_EuEB4_"]
    maps = [b"7f00-8f00 r-xp 00001000 fd:01 1234    /usr/lib/a\\040b.so (deleted)", b"7ff0-8000 rw-p 0 00:00 0 [stack]",
            b"1234 (a) b) S 1 " + b"5 " * 40]
    return {str(i): text for i, text in enumerate(mangled + maps)}


def memfd() -> dict[str, bytes]:
    page = bytearray(4096)
    struct.pack_into("<I", page, MODULE_COUNT_OFFSET, 3)
    after = MODULES_OFFSET + 3 * 48
    # hash, address, size, time, copy's offset, state
    present = struct.pack("<QQQQQII", 7, 0x400000, 64, 5, 0, 1, 0)
    copied = struct.pack("<QQQQQII", 8, 0, 64, 5, after, 2, 0)
    gone = struct.pack("<QQQQQII", 9, 0x400000, 64, 5, 0, 3, 0)
    return {"empty": bytes(4096), "modules": bytes(page) + present + copied + gone + bytes(128)}


def records() -> dict[str, bytes]:
    # Sizes of proto/usdt_abi.h by enum gpuprof_probe.
    sizes = {1: 56, 2: 56, 3: 112, 4: 56, 5: 256, 6: 40, 7: 160, 8: 40, 9: 24}

    def entry(probe: int, payload: bytes, sequence: int = 0, pid: int = 1, stack: bytes = b"", flags: int = 2) -> bytes:
        count = len(payload) // sizes[probe]
        header = struct.pack("<QQQQIIIIIIII16s", 1, sequence, 0, 500_000_000, probe, count, pid, pid, 0, flags,
                             len(payload), 1, b"w")
        whole = header + payload + stack
        return struct.pack("<H", len(whole) | (0x8000 if probe == 2 else 0)) + whole

    def name(total: int, offset: int) -> bytes:
        return struct.pack("<QIIIIQ224s", 7, 1, total, offset, min(total - offset, 224), 0, b"_Z6kernelPf" * 20)

    # Of small numbers most fields are valid: kinds, counts, indices.
    seeds = {f"{probe}-{value}": entry(probe, (value.to_bytes(4, "little") * 64)[:size] * count)
             for probe, size in sizes.items() for value, count in ((0, 1), (1, 1), (1, 2), (2, 3))}
    seeds["name"] = entry(5, name(11, 0))
    seeds["long name"] = entry(5, name(300, 0) + name(300, 224)) + entry(5, name(300, 224), 2)
    seeds["stack"] = entry(2, (b"\1\0\0\0" * 64)[:56], stack=struct.pack("<34QQQII", *range(34), 0x7000, 0x8000, 64, 0)
                           + bytes(64))
    chunk = struct.pack("<IIII", 0, 2, 1, 0) + bytes(16 * 184)
    seeds["python"] = entry(2, chunk[:56], stack=chunk[56:], flags=6) + seeds["stack"]
    seeds["gaps"] = b"".join(entry(9, bytes(24), sequence) for sequence in (0, 5, 3, 3, 1, 9))
    seeds["processes"] = b"".join(entry(9, bytes(24), 0, pid) for pid in range(6))
    return seeds


def python() -> dict[str, bytes]:
    """See tests/fuzz/python_fuzz.cc: a byte for the version, and memory from BASE on: a code object, its type, names and
    line table, and what _Py_DebugOffsets of 3.13 and 3.14 say."""
    base = 0x100000
    # By version: co_firstlineno, co_filename, co_name, the line table; the head of a str. daemon/python/layout.cc
    fields = {9: (40, 104, 112, 120, 48), 10: (40, 104, 112, 120, 48), 11: (72, 112, 128, 136, 48), 12: (68, 112, 128, 136, 40)}
    seeds = {}
    for minor, (first_line, file, name, lines, text_head) in fields.items():
        memory = bytearray(4096)

        def text(at: int, value: str) -> None:
            struct.pack_into("<Q", memory, at + 16, len(value))
            struct.pack_into("<I", memory, at + 32, 1 << 2 | 0x60)
            memory[at + text_head:at + text_head + len(value)] = value.encode()

        table = pathlib.Path(f"tests/data/python/lines-3.{minor}.txt").read_text().split("\n")[0].split()[2]
        for at, value in ((0, 2), (8, base + 512), (file, base + 1024), (name, base + 1280), (lines, base + 2048),
                          (512 + 24, base + 768), (2048 + 16, len(table) // 2)):
            struct.pack_into("<Q", memory, at, value)
        struct.pack_into("<I", memory, first_line, 3)
        memory[768:773] = b"code\0"
        text(1024, "/srv/a.py")
        text(1280, "A.f")
        memory[2048 + 32:2048 + 32 + len(table) // 2] = bytes.fromhex(table)
        seeds[f"3.{minor}"] = bytes([minor - 9]) + bytes(memory)
    # Of 3.13, at the places of its offsets.
    memory = bytearray(1024)
    memory[:8] = b"xdebugpy"
    for at, value in ((40, 632), (64, 7264), (72, 7344), (168, 8), (184, 72), (192, 152), (200, 160), (232, 8), (248, 56), (264, 70),
                      (280, 112), (296, 128), (304, 136), (312, 68), (344, 200), (560, 40)):
        struct.pack_into("<Q", memory, at, value)
    seeds["3.13"] = bytes([4]) + bytes(memory)
    return seeds


SEEDS = {"cubin": cubin, "cubin_lines": cubin_lines, "usdt_notes": usdt_notes, "eh_frame": eh_frame,
         "debug_pair": debug_pair, "elf_file": elf_file, "elfgate": elfgate,
         "perf_map": perf_map, "jit_dump": jit_dump, "names": names, "memfd": memfd, "python": python, "records": records}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[2])
    for name, content in SEEDS.get(sys.argv[1], dict)().items():
        (folder / name).write_bytes(content)


main()
