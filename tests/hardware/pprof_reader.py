# SPDX-License-Identifier: Apache-2.0
"""Reads a gzipped profile.proto with the standard library alone (no Go, no protobuf where GPUs are).

Field numbers are the format's: see proto/profile.proto."""
import dataclasses
import gzip


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


def fields(data):
    """Yields (field number, int or bytes) of one message."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("a field reaches past the end of its message")
            value, at = data[at:at + size], at + size
        elif wire == 1:
            value, at = int.from_bytes(data[at:at + 8], "little"), at + 8
        elif wire == 5:
            value, at = int.from_bytes(data[at:at + 4], "little"), at + 4
        else:
            raise ValueError(f"wire type {wire} is not protobuf's")
        yield number, value


def _integers(value):
    """A repeated integer: one value, or several packed."""
    if isinstance(value, int):
        return [value]
    out, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        out.append(one)
    return out


@dataclasses.dataclass
class Mapping:
    start: int = 0
    limit: int = 0
    file: str = ""
    build_id: str = ""
    has_filenames: bool = False
    has_line_numbers: bool = False
    has_inline_frames: bool = False


@dataclasses.dataclass
class Frame:
    """One line of a location: an inlined call has several."""
    function: str
    system_name: str
    file: str
    line: int
    mapping: str
    start_line: int = 0  # of the function


@dataclasses.dataclass
class Location:
    """An address, and its frames: the inlined calls there, innermost first."""
    id: int
    address: int
    mapping: Mapping  # or None
    frames: list


@dataclasses.dataclass
class Sample:
    frames: list  # of Frame, leaf first
    values: dict  # sample type -> value
    labels: dict  # key -> text or number
    locations: list = dataclasses.field(default_factory=list)  # of Location, leaf first

    def names(self):
        return [frame.function for frame in self.frames]


@dataclasses.dataclass
class Profile:
    sample_types: list
    units: dict
    samples: list
    mappings: list
    default_type: str
    duration_ns: int
    comments: list
    locations: list = dataclasses.field(default_factory=list)

    def total(self, value_type, keep=lambda sample: True):
        return sum(s.values[value_type] for s in self.samples if keep(s))


def parse(raw):
    """Profile of uncompressed bytes; ValueError or IndexError if they are none."""
    strings, top = [], {}
    for number, value in fields(raw):
        if number == 6:
            strings.append(value.decode("utf-8"))
        else:
            top.setdefault(number, []).append(value)
    text = strings.__getitem__

    def message(data):
        out = {}
        for number, value in fields(data):
            out.setdefault(number, []).append(value)
        return out

    def one(entry, number, default=0):
        return entry.get(number, [default])[0]

    types = [message(v) for v in top.get(1, [])]
    sample_types = [text(one(t, 1)) for t in types]
    mappings = {}
    for entry in map(message, top.get(3, [])):
        mappings[one(entry, 1)] = Mapping(one(entry, 2), one(entry, 3), text(one(entry, 5)), text(one(entry, 6)),
                                          *(bool(one(entry, flag)) for flag in (8, 9, 10)))
    functions = {}
    for entry in map(message, top.get(5, [])):
        functions[one(entry, 1)] = (text(one(entry, 2)), text(one(entry, 3)), text(one(entry, 4)), one(entry, 5))
    locations = {}
    for entry in map(message, top.get(4, [])):
        mapping = mappings.get(one(entry, 2))
        frames = []
        for line in map(message, entry.get(4, [])):
            name, system_name, file, start = functions[one(line, 1)]
            frames.append(Frame(name, system_name, file, _signed(one(line, 2)), mapping.file if mapping else "",
                                _signed(start)))
        if not frames:
            frames = [Frame(f"0x{one(entry, 3):x}", "", "", 0, mapping.file if mapping else "")]
        locations[one(entry, 1)] = Location(one(entry, 1), one(entry, 3), mapping, frames)
    samples = []
    for entry in map(message, top.get(2, [])):
        ids = [i for v in entry.get(1, []) for i in _integers(v)]
        values = [_signed(i) for v in entry.get(2, []) for i in _integers(v)]
        if len(values) != len(sample_types):
            raise ValueError(f"a sample has {len(values)} values for {len(sample_types)} types")
        labels = {}
        for label in map(message, entry.get(3, [])):
            labels[text(one(label, 1))] = text(one(label, 2)) if 2 in label else _signed(one(label, 3))
        samples.append(Sample([f for i in ids for f in locations[i].frames], dict(zip(sample_types, values)), labels,
                              [locations[i] for i in ids]))
    return Profile(sample_types, {text(one(t, 1)): text(one(t, 2)) for t in types}, samples,
                   list(mappings.values()), text(one(top, 14)) if 14 in top else "", _signed(one(top, 10)),
                   [text(i) for v in top.get(13, []) for i in _integers(v)], list(locations.values()))


def read(path):
    with gzip.open(path, "rb") as file:
        return parse(file.read())
