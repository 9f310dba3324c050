# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the built-in self-test asks of the endpoint, and what must come back: a program for
:mod:`.self_test`, made for one configuration. Plain Python.

A program is a ROM: instructions of eight bytes, then the data that they write. A CHECK holds the
CRC-32 that the answers since the last one must have; of every read those are its 64 bytes and a
status byte (opcode, and 8 for poison), of every write the byte `WRITTEN`. What a stored line must
come back as is computed by the golden model's codecs, which share no arithmetic with the
hardware's. Whoever makes a program hands them in (:data:`RoundTrip`): what is on a board imports
none of the model that judges it.

The session that it opens lasts until the reset behind the test. Three queues hold the five stored
formats: K raw16, V fp8_e4m3; fp8_e5m2, int8; int4, int4. Without codecs there is one, of raw16
alone.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format, HostType
from kelp_spec.messages import S2MDRS, S2MNDR
from kelp_spec.metadata import LAYER_RANGES
from kelp_spec.registers import COUNTERS, RegisterMap, SessionCommand

from ..configs import FIRST_LIGHT

__all__ = [
    "INSTRUCTION",
    "PART_NAMES",
    "POISON",
    "WRITTEN",
    "Op",
    "Part",
    "Program",
    "RoundTrip",
    "State",
    "Writer",
    "program",
    "queue_formats",
]

#: What a host reads of lines that it wrote, uint16[n, 32], in a session of that type and a queue of
#: that format: ``kelp_golden.codec.round_trip``. One made from the RTL would agree with whatever
#: the RTL does.
RoundTrip = Callable[[np.ndarray, HostType, Format], np.ndarray]

POISON = 1 << 3  #: in a read's status byte
WRITTEN = 1 << 7 | S2MNDR.CMP  #: a write's status byte
FULL_LINE = 8  #: `word` of an instruction that writes all eight words

#: (field, bits), lowest first. `repeat`: once more than that, on following lines with following
#: data; `pointer`: its data in the ROM, in words of eight bytes; `word`: the one word that is
#: written, its data repeated over the line. A CHECK has its number in `pointer` and its CRC in
#: `address`.
INSTRUCTION = (
    ("op", 2),
    ("part", 2),
    ("flip", 2),
    ("word", 4),
    ("repeat", 6),
    ("pointer", 10),
    ("address", 38),
)

_QUEUES = (
    (Format.RAW16, Format.FP8_E4M3),
    (Format.FP8_E5M2, Format.INT8),
    (Format.INT4, Format.INT4),
)
_PATTERNS = 16


def queue_formats(config: Config) -> tuple[tuple[Format, Format], ...]:
    """Formats of K and V of the queues that are used."""
    return _QUEUES if config.codecs else ((Format.RAW16, Format.RAW16),)


class Op(IntEnum):
    END = 0
    WRITE = 1
    READ = 2
    CHECK = 3


class Part(IntEnum):
    """Parts of the self-test; each has two bits of TEST_RESULT."""

    MEMORY = 0
    LOOPBACK = 1
    CODEC = 2
    ECC = 3


PART_NAMES = {
    Part.MEMORY: "memory march",
    Part.LOOPBACK: "endpoint loop-back",
    Part.CODEC: "codec signature",
    Part.ECC: "metadata ECC",
}


class State(IntEnum):
    """What became of a part."""

    NOT_RUN = 0
    PASSED = 1
    WRONG = 2  #: something else came back
    SILENT = 3  #: nothing came back


@dataclass(frozen=True)
class Program:
    """`rom`: its bytes. `checks`: of each CHECK, by its number, the part that it belongs to and
    what it is about."""

    rom: bytes
    checks: tuple[tuple[Part, str], ...]

    @property
    def parts(self) -> frozenset[Part]:
        """What is tested with it; the memory always is."""
        return frozenset({Part.MEMORY, *(part for part, _ in self.checks)})


def patterns() -> np.ndarray:
    """uint16[16, 32]: host lines that meet every branch of the codecs, read as either host type."""
    rng = random.Random(1)
    i = np.arange(ELEMENTS)
    sign = (i & 1) << 15
    special = np.full(ELEMENTS, 0x3C00) + 0x35 * i
    lines = [
        np.zeros(ELEMENTS),
        sign | 0x41 * i,
        sign | (i % 31) << 10 | 0x2AB,
        sign | 0x3C00 + 0x40 * i,
        sign | 0x3F80 + 8 * i,
        sign | 0x0001 << i % 15,
        np.where(i == 9, 0x7FFF, special),
        np.where(i == 17, 0xFC00, special),
        np.where(i == 30, 0x7F80, special),
        sign | 0x7BFF - 0x11 * i,
    ]
    while len(lines) < _PATTERNS:
        # Elements of like magnitude, as those of a key are, in either type.
        top = rng.choice((0x2800, 0x3400, 0x4400, 0x3C80, 0x3F00))
        lines.append(
            np.array(
                [
                    rng.getrandbits(1) << 15 | top + rng.randrange(-0x600, 0x600)
                    for _ in range(ELEMENTS)
                ]
            )
        )
    return np.array(lines).astype(np.uint16)


class Writer:
    """Instructions, data and what is expected, as they are written down."""

    def __init__(self, config: Config):
        self.config, self.map, self.registers = (
            config,
            AddressMap(config),
            RegisterMap(config).by_name,
        )
        self.steps, self.data, self.checks = [], [], []
        self.places: dict[bytes, int] = {}
        self.part, self.expected, self.refused = Part.LOOPBACK, b"", 0

    def place(self, data: bytes) -> int:
        """Where `data` lies, in words behind the instructions; equal data only once."""
        if data not in self.places:
            self.places[data] = sum(map(len, self.data)) // 8
            self.data.append(data)
        return self.places[data]

    def _step(
        self,
        op: Op,
        line: int,
        *,
        data: bytes | None = None,
        word: int = FULL_LINE,
        repeat: int = 1,
        flip: int = 0,
    ) -> None:
        self.steps.append(
            (
                {
                    "op": op,
                    "part": self.part,
                    "flip": flip,
                    "word": word,
                    "repeat": repeat - 1,
                    "address": line,
                },
                data,
            )
        )

    def line(self, queue: int, page: int, kv: int, line: int) -> int:
        return self.map.encode(KvAddress(0, queue, page, kv, line)) // LINE_BYTES

    def write(self, line: int, data: bytes, *, word: int = FULL_LINE, flip: int = 0) -> None:
        count = max(1, len(data) // LINE_BYTES)
        self._step(Op.WRITE, line, data=data, word=word, repeat=count, flip=flip)
        self.expected += bytes([WRITTEN]) * count

    def read(self, line: int, data: bytes, *, status: int = S2MDRS.MEM_DATA) -> None:
        count = len(data) // LINE_BYTES
        self._step(Op.READ, line, repeat=count)
        for n in range(count):
            self.expected += data[LINE_BYTES * n : LINE_BYTES * (n + 1)] + bytes([status])

    def register(self, name: str, **fields: int) -> None:
        register = self.registers[name]
        layout = {f.name: f for f in register.fields}
        values = {f.name: f.reset for f in register.fields} | fields
        value = sum(int(v) << layout[f].low for f, v in values.items())
        place = self.map.register_base + register.offset
        self.write(place // LINE_BYTES, value.to_bytes(8, "little"), word=place % LINE_BYTES // 8)

    def counters(self, **wanted: int) -> None:
        """Read the registers' line that holds the counters of errors; its others must be 0."""
        line = self.registers["count_corrected"].offset // LINE_BYTES
        names = {self.registers[f"count_{name}"].offset: name for name, _ in COUNTERS}
        data = b"".join(
            wanted.get(names[line * LINE_BYTES + 8 * n], 0).to_bytes(8, "little") for n in range(8)
        )
        self.read(self.map.register_base // LINE_BYTES + line, data)

    def check(self, what: str) -> None:
        self.steps.append(
            (
                {
                    "op": Op.CHECK,
                    "part": self.part,
                    "pointer": len(self.checks),
                    "address": zlib.crc32(self.expected),
                },
                None,
            )
        )
        self.checks.append((self.part, what))
        self.expected = b""

    def finish(self) -> Program:
        first = len(self.steps) + 1
        words = []
        for fields, data in [*self.steps, ({"op": Op.END}, None)]:
            values = (
                dict(fields) if data is None else fields | {"pointer": first + self.place(data)}
            )
            word = place = 0
            for name, bits in INSTRUCTION:
                value = int(values.get(name, 0))
                if value >> bits:
                    raise ValueError(
                        f"configuration {self.config.name!r} is refused by the self-test: "
                        + f"{name} = {value} does not fit {bits} bits"
                    )
                word |= value << place
                place += bits
            words.append(word.to_bytes(8, "little"))
        return Program(b"".join(words) + b"".join(self.data), tuple(self.checks))


def program(config: Config, round_trip: RoundTrip) -> Program:
    """The program of one configuration, and with `round_trip` what its lines must come back as;
    ValueError when the configuration is too small for it. `first_light` has nothing that a program
    could test."""
    if config.name == FIRST_LIGHT:
        return Writer(config).finish()
    if config.queues < len(_QUEUES) + 1:
        raise ValueError(
            f"configuration {config.name!r} is refused by the self-test: queues = "
            + f"{config.queues}; legal: {len(_QUEUES) + 1} and up"
        )
    w = Writer(config)
    lines = patterns()
    text = lines.astype("<u2").tobytes()
    chunk = min(config.half_lines, _PATTERNS)
    pages = _PATTERNS // chunk
    w.register("low_water", value=1)
    w.register("high_water", value=1)
    _open(w, HostType.FP16)

    # Loop-back: whole lines in two pages of raw16, then a part of one, a line never written, and
    # one that is not mapped.
    last = config.pages - 1
    for page in (1, last):
        w.write(w.line(0, page, 0, 0), text[-LINE_BYTES * chunk :])
    for page in (1, last):
        w.read(w.line(0, page, 0, 0), text[-LINE_BYTES * chunk :])
    part = b"\x5a\xa5\x00\xff\x12\x34\x56\x78"
    w.write(w.line(0, 1, 0, 1), part, word=3)
    merged = bytearray(text[-LINE_BYTES * chunk :][LINE_BYTES : 2 * LINE_BYTES])
    merged[24:32] = part
    w.read(w.line(0, 1, 0, 1), bytes(merged))
    w.read(w.line(0, 2, 0, 0), bytes(LINE_BYTES))
    w.check("lines written and read back")
    w.read(1 << config.aperture_bits + 2 - 6, bytes(LINE_BYTES), status=S2MDRS.MEM_DATA_NXM)
    w.check("an address that is not mapped")

    w.part = Part.CODEC
    for host_type in HostType:
        if host_type != HostType.FP16:
            w.register("s0_command", command=SessionCommand.CLOSE)
            _open(w, host_type)
            w.check(f"session of {host_type.name.lower()}")
        for queue, formats in enumerate(queue_formats(config)):
            for kv, fmt in enumerate(formats):
                stored = round_trip(lines, host_type, fmt).astype("<u2").tobytes()
                for page in range(pages):
                    w.write(
                        w.line(queue, page, kv, 0),
                        text[LINE_BYTES * chunk * page : LINE_BYTES * chunk * (page + 1)],
                    )
                for page in range(pages):
                    w.read(
                        w.line(queue, page, kv, 0),
                        stored[LINE_BYTES * chunk * page : LINE_BYTES * chunk * (page + 1)],
                    )
                w.check(f"{fmt.label} of {host_type.name.lower()}")

    # ECC: a page word is written with a bit flipped and, a step later, read: repaired, counted, and
    # written back whole. With two bits flipped the page is lost.
    w.part = Part.ECC
    line = text[-LINE_BYTES:]
    single, double = w.line(0, 3, 0, 0), w.line(0, 2, 0, 0)
    # the first access of a step writes the page word, and reads it from the SRAM
    advance = {"command": SessionCommand.ADVANCE, "argument": 1}
    w.register("s0_command", **advance)
    w.write(single, line, flip=0b01)
    for _ in range(2):
        w.register("s0_command", **advance)
        w.read(single, line)
    w.counters(corrected=1, refused=1)
    w.check("a flipped bit of a page word")
    w.write(double, line, flip=0b11)
    w.register("s0_command", **advance)
    w.read(double, bytes(LINE_BYTES), status=S2MDRS.MEM_DATA | POISON)
    w.counters(corrected=1, uncorrected=1, refused=1)
    w.check("two flipped bits of a page word")
    return w.finish()


def _open(w: Writer, host_type: HostType) -> None:
    c, queues = w.config, queue_formats(w.config)
    w.register(
        "s0_shape",
        layers=len(queues),
        kv_heads=1,
        used_lines=c.half_lines,
        host_type=int(host_type),
        used_pages=c.pages,
    )
    ranges = {}
    for r in range(LAYER_RANGES):
        layer = min(r, len(queues) - 1)
        k, v = queues[layer]
        ranges |= {f"last_layer_{r}": layer, f"format_k_{r}": int(k), f"format_v_{r}": int(v)}
    w.register("s0_formats", **ranges)
    w.register("s0_command", command=SessionCommand.OPEN)
