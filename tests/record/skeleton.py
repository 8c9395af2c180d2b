# SPDX-License-Identifier: Apache-2.0
"""Skeletons of cubins: an ELF file with a kernel's name and size and no code, in place of a vendor's module.

What PC sampling needs of a module without line info is which functions it has and how long they are."""
import dataclasses
import struct

EM_CUDA = 190
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB = 1, 2, 3
SHF_ALLOC_EXECINSTR = 6
GLOBAL_FUNCTION = 0x12
TEXT_ALIGNMENT = 128
TEXT = ".text."
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")


@dataclasses.dataclass(frozen=True)
class Abi:
    """What the ELF header of a module says of its compiler."""
    os_abi: int
    abi: int
    version: int
    flags: int


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    size: int
    other: int  # st_other; 0x10: a kernel's entry


def _sections(image):
    """[(name, header fields)]; ValueError where it is no cubin."""
    if len(image) < HEADER.size or image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    header = HEADER.unpack_from(image)
    if header[2] != EM_CUDA:
        raise ValueError(f"machine {header[2]}, not CUDA's")
    table, count, names = header[6], header[12], header[13]
    sections = [SECTION.unpack_from(image, table + i * SECTION.size) for i in range(count)]
    start = sections[names][4]
    return [(_text_at(image, start + section[0]), section) for section in sections]


def _text_at(image, at):
    return image[at:image.index(b"\0", at)].decode()


def abi_of(image):
    _sections(image)
    header = HEADER.unpack_from(image)
    return Abi(image[7], image[8], header[3], header[7])


def functions(image):
    """All that have a section of code, in the order of the file."""
    sections = _sections(image)
    others = {}
    for _, (_, kind, _, _, at, size, strings, _, _, _) in sections:
        for i in range(at, at + size, SYMBOL.size) if kind == SHT_SYMTAB else ():
            name, info, other, *_ = SYMBOL.unpack_from(image, i)
            if info & 0xf == GLOBAL_FUNCTION & 0xf:
                others[_text_at(image, sections[strings][1][4] + name)] = other
    return [Function(name[len(TEXT):], section[5], others[name[len(TEXT):]]) for name, section in sections
            if section[1] == SHT_PROGBITS and name.startswith(TEXT)]


class _Strings:
    """A string table that grows."""

    def __init__(self):
        self.data = b"\0"

    def add(self, text):
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def write(abi, contents):
    """The bytes of a module of these functions, each a section of zeros."""
    section_names, symbol_names = _Strings(), _Strings()
    tables = [(section_names.add(name), kind) for name, kind in
              ((".shstrtab", SHT_STRTAB), (".strtab", SHT_STRTAB), (".symtab", SHT_SYMTAB))]
    first_text = 1 + len(tables)
    symbols = bytes(SYMBOL.size)
    texts = []
    for i, function in enumerate(contents):
        texts.append(section_names.add(TEXT + function.name))
        symbols += SYMBOL.pack(symbol_names.add(function.name), GLOBAL_FUNCTION, function.other, first_text + i, 0,
                               function.size)
    body, headers = bytearray(HEADER.size), [bytes(SECTION.size)]

    def place(name, kind, data, *, flags=0, link=0, info=0, alignment=1, entry=0):
        body.extend(bytes(-len(body) % alignment))
        headers.append(SECTION.pack(name, kind, flags, 0, len(body), len(data), link, info, alignment, entry))
        body.extend(data)

    for (name, kind), data in zip(tables, (section_names.data, symbol_names.data, symbols)):
        symbol_table = {"link": 2, "info": 1, "alignment": 8, "entry": SYMBOL.size} if kind == SHT_SYMTAB else {}
        place(name, kind, data, **symbol_table)
    for i, (name, function) in enumerate(zip(texts, contents)):
        place(name, SHT_PROGBITS, bytes(function.size), flags=SHF_ALLOC_EXECINSTR, link=3, info=1 + i,
              alignment=TEXT_ALIGNMENT)
    body.extend(bytes(-len(body) % 8))
    ident = b"\x7fELF\x02\x01\x01" + bytes([abi.os_abi, abi.abi]) + bytes(7)
    executable = 2
    body[:HEADER.size] = HEADER.pack(ident, executable, EM_CUDA, abi.version, 0, 0, len(body), abi.flags, HEADER.size, 0, 0,
                                     SECTION.size, len(headers), 1)
    return bytes(body) + b"".join(headers)
