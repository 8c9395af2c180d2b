# SPDX-License-Identifier: Apache-2.0
"""A 64-bit shared library whose dynamic tables can be changed: read, changed, and written behind the old ones."""
import struct

PT_LOAD, PT_DYNAMIC, PT_PHDR = 1, 2, 6
DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ = 0, 1, 4, 5, 6, 10
DT_SONAME, DT_RPATH, DT_TEXTREL, DT_RUNPATH, DT_FLAGS = 14, 15, 22, 29, 30
DT_GNU_HASH, DT_VERSYM, DT_FLAGS_1 = 0x6ffffef5, 0x6ffffff0, 0x6ffffffb
DT_VERNEED, DT_VERNEEDNUM = 0x6ffffffe, 0x6fffffff
STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 1, 2, 10
ALIGN = 0x10000


def gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xffffffff
    return value


def sysv_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ ((value & 0xf0000000) >> 24)) & 0x0fffffff
    return value


class ElfLibrary:
    def __init__(self, image: bytes):
        self.image = bytearray(image)
        place, = struct.unpack_from("<Q", image, 32)
        count, = struct.unpack_from("<H", image, 56)
        # type, flags, offset, vaddr, paddr, filesz, memsz, align
        self.segments = [list(struct.unpack_from("<IIQQQQQQ", image, place + 56 * i)) for i in range(count)]
        self.dynamic = self._read_dynamic()
        strings = self.offset_of(self.tag(DT_STRTAB))
        self.strings = bytearray(image[strings:strings + self.tag(DT_STRSZ)])
        self._read_symbols()
        self.needs = self._read_needs()

    def offset_of(self, address: int) -> int:
        for kind, _, offset, start, _, size, _, _ in self.segments:
            if kind == PT_LOAD and start <= address < start + size:
                return offset + address - start
        raise ValueError(f"nothing is loaded at {address:#x}")

    def tag(self, wanted: int) -> int:
        return next(value for tag, value in self.dynamic if tag == wanted)

    def set_tag(self, wanted: int, value: int) -> None:
        self.dynamic = [entry for entry in self.dynamic if entry[0] != wanted] + [(wanted, value)]

    def drop_tag(self, unwanted: int) -> None:
        self.dynamic = [entry for entry in self.dynamic if entry[0] != unwanted]

    def name_at(self, place: int) -> bytes:
        return bytes(self.strings[place:self.strings.index(0, place)])

    def add_string(self, text: str) -> int:
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def section(self, name: str) -> tuple[int, int]:
        """Offset and size."""
        return struct.unpack_from("<QQ", self.image, self._section_header(name) + 24)

    def move_section(self, name: str, content: bytes) -> None:
        """To the end of the file, with another content."""
        self.image += bytes(-len(self.image) % 16)
        struct.pack_into("<QQ", self.image, self._section_header(name) + 24, len(self.image), len(content))
        self.image += content

    def _section_header(self, name: str) -> int:
        table, = struct.unpack_from("<Q", self.image, 40)
        count, names = struct.unpack_from("<HH", self.image, 60)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.image, table + 64 * i) for i in range(count)]
        for i, header in enumerate(headers):
            at = headers[names][4] + header[0]
            if self.image[at:at + len(name) + 1] == name.encode() + b"\0":
                return table + 64 * i
        raise ValueError(f"no section {name}")

    def _read_dynamic(self) -> list[tuple[int, int]]:
        offset, size = next((s[2], s[5]) for s in self.segments if s[0] == PT_DYNAMIC)
        entries = [struct.unpack_from("<QQ", self.image, offset + at) for at in range(0, size, 16)]
        return entries[:next(i for i, entry in enumerate(entries) if entry[0] == DT_NULL)]

    def _read_symbols(self) -> None:
        table = self.offset_of(self.tag(DT_GNU_HASH))
        buckets, self.first_hashed, bloom, _ = struct.unpack_from("<IIII", self.image, table)
        heads = struct.unpack_from(f"<{buckets}I", self.image, table + 16 + 8 * bloom)
        chains = table + 16 + 8 * bloom + 4 * buckets
        count = max(heads)
        while not struct.unpack_from("<I", self.image, chains + 4 * (count - self.first_hashed))[0] & 1:
            count += 1
        count += 1
        symbols, versions = self.offset_of(self.tag(DT_SYMTAB)), self.offset_of(self.tag(DT_VERSYM))
        # name, info, other, section, value, size
        self.symbols = [list(struct.unpack_from("<IBBHQQ", self.image, symbols + 24 * i)) for i in range(count)]
        self.versions = list(struct.unpack_from(f"<{count}H", self.image, versions))

    def _read_needs(self) -> list[tuple[int, list[list[int]]]]:
        """[(file's name, [[hash, flags, index, name]])]"""
        needs, place = [], self.offset_of(self.tag(DT_VERNEED))
        while True:
            _, count, file, aux, following = struct.unpack_from("<HHIII", self.image, place)
            entries, at = [], place + aux
            for _ in range(count):
                *entry, step = struct.unpack_from("<IHHII", self.image, at)
                entries.append(entry)
                at += step
            needs.append((file, entries))
            if following == 0:
                return needs
            place += following

    def add_symbol(self, name: str, binding: int, defined: bool) -> None:
        """Without a version; a definition is where the last symbol is."""
        last = self.symbols[-1]
        section, value = (last[3], last[4]) if defined else (0, 0)
        self.symbols.append([self.add_string(name), binding << 4 | 2, 0, section, value, 0])
        self.versions.append(1)

    def add_need(self, file: str, version: str) -> int:
        """The index of the new version."""
        index = 1 + max(entry[2] for _, entries in self.needs for entry in entries)
        entries = next(entries for place, entries in self.needs if self.name_at(place) == file.encode())
        entries.append([sysv_hash(version.encode()), 0, index, self.add_string(version)])
        return index

    def _needs_table(self) -> bytes:
        table = b""
        for i, (file, entries) in enumerate(self.needs):
            size = 16 + 16 * len(entries)
            table += struct.pack("<HHIII", 1, len(entries), file, 16, size if i + 1 < len(self.needs) else 0)
            for k, entry in enumerate(entries):
                table += struct.pack("<IHHII", *entry, 16 if k + 1 < len(entries) else 0)
        return table

    def _hash_table(self) -> bytes:
        """One bucket, and a filter that lets everything through."""
        hashes = [gnu_hash(self.name_at(symbol[0])) & ~1 for symbol in self.symbols[self.first_hashed:]]
        hashes[-1] |= 1
        return struct.pack(f"<IIIIQI{len(hashes)}I", 1, self.first_hashed, 1, 6, 2 ** 64 - 1, self.first_hashed, *hashes)

    def build(self) -> bytes:
        """The tables in a segment of their own behind the rest."""
        end = max(s[3] + s[6] for s in self.segments if s[0] == PT_LOAD)
        offset = -(-len(self.image) // ALIGN) * ALIGN
        address = -(-end // ALIGN) * ALIGN
        content = bytearray(56 * (len(self.segments) + 1))  # the program headers come first

        def put(table: bytes) -> int:
            content.extend(bytes(-len(content) % 16))
            content.extend(table)
            return address + len(content) - len(table)

        # Only GNU's is written anew.
        self.drop_tag(DT_HASH)
        self.set_tag(DT_STRTAB, put(bytes(self.strings)))
        self.set_tag(DT_STRSZ, len(self.strings))
        self.set_tag(DT_SYMTAB, put(b"".join(struct.pack("<IBBHQQ", *symbol) for symbol in self.symbols)))
        self.set_tag(DT_VERSYM, put(struct.pack(f"<{len(self.versions)}H", *self.versions)))
        self.set_tag(DT_VERNEED, put(self._needs_table()))
        self.set_tag(DT_GNU_HASH, put(self._hash_table()))
        table = b"".join(struct.pack("<QQ", *entry) for entry in self.dynamic + [(DT_NULL, 0)])
        dynamic = put(table)
        segments = [list(segment) for segment in self.segments]
        for segment in segments:
            if segment[0] == PT_DYNAMIC:
                segment[2:7] = [offset + dynamic - address, dynamic, dynamic, len(table), len(table)]
            elif segment[0] == PT_PHDR:
                segment[2:7] = [offset, address, address, 56 * (len(segments) + 1), 56 * (len(segments) + 1)]
        segments.insert(1 + max(i for i, s in enumerate(segments) if s[0] == PT_LOAD),
                        [PT_LOAD, 6, offset, address, address, len(content), len(content), ALIGN])
        content[:56 * len(segments)] = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in segments)
        image = self.image + bytes(offset - len(self.image)) + content
        struct.pack_into("<Q", image, 32, offset)
        struct.pack_into("<H", image, 56, len(segments))
        return bytes(image)
