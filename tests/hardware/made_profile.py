# SPDX-License-Identifier: Apache-2.0
"""Profiles made up for the tests of the readers: bytes of profile.proto without its library."""
import dataclasses

TYPES = (("gpu_time", "nanoseconds"), ("gpu_executions", "count"), ("gpu_pc_samples", "count"),
         ("gpu_stall_samples", "count"))


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


@dataclasses.dataclass(frozen=True)
class Line:
    function: str  # system name; the shown name is the same
    file: str = ""
    line: int = 0


@dataclasses.dataclass(frozen=True)
class Place:
    """A location: its mapping's file, its address there, its lines innermost first."""
    mapping: str
    address: int
    lines: tuple


class MadeProfile:
    def __init__(self, types=TYPES):
        self.types = types
        self.strings = [""]
        self.mappings, self.places, self.functions = [], [], []
        self.samples = b""

    def text(self, value):
        if value not in self.strings:
            self.strings.append(value)
        return self.strings.index(value)

    @staticmethod
    def number(things, thing):
        if thing not in things:
            things.append(thing)
        return things.index(thing) + 1

    def add(self, places, values, labels=()):
        """One sample: its Places leaf first, values by type, labels (key, text or number)."""
        body = field(1, b"".join(varint(self.number(self.places, place)) for place in places))
        body += field(2, b"".join(varint(values.get(name, 0)) for name, _ in self.types))
        for key, value in dict(labels).items():
            body += field(3, field(1, self.text(key)) +
                          (field(3, value) if isinstance(value, int) else field(2, self.text(value))))
        self.samples += field(2, body)

    def bytes(self):
        body = self.samples
        for place in self.places:
            lines = b""
            for line in place.lines:
                lines += field(4, field(1, self.number(self.functions, (line.function, line.file))) + field(2, line.line))
            body += field(4, field(1, self.number(self.places, place)) +
                          field(2, self.number(self.mappings, place.mapping)) + field(3, place.address) + lines)
        for number, (function, file) in enumerate(self.functions, 1):
            body += field(5, field(1, number) + field(2, self.text(function)) + field(3, self.text(function)) +
                          field(4, self.text(file)))
        for number, mapping in enumerate(self.mappings, 1):
            body += field(3, field(1, number) + field(2, number << 32) + field(3, (number << 32) + 4096) +
                          field(5, self.text(mapping)) + field(6, self.text("id of " + mapping)) + field(9, 1))
        for name, unit in self.types:
            body += field(1, field(1, self.text(name)) + field(2, self.text(unit)))
        return body + b"".join(field(6, s.encode()) for s in self.strings)
