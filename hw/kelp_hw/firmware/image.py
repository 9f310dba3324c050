# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the mailbox's sequencer sees on its bus: payload, its own store, constant tables, I/O. The
tables are made here from the configuration, the code in the files `firmware`, `events`, `poison`,
`state` and `exchange`."""

from __future__ import annotations

from enum import IntEnum

from kelp_spec.cxlio.commands import CEL_UUID, COMMANDS, Opcode, cel
from kelp_spec.cxlio.config import CxlIoConfig

from .program import Program

__all__ = ["EVENT_KINDS", "IO", "Image", "PAYLOAD", "STORE", "TABLES", "Work"]

PAYLOAD, STORE, TABLES, IO_BASE = 0x0000, 0x2000, 0x4000, 0x6000

#: UUIDs of event records by `kind`: general media, DRAM, memory module, vendor.
EVENT_KINDS = tuple(
    bytes.fromhex(text.replace("-", ""))
    for text in (
        "fbcd0a77-c260-417f-85a9-088b1621eba6",
        "601dcbb3-9c06-4eab-b8af-4e9bfb5c9624",
        "fe927475-dd59-4339-a586-79bab113b774",
        "4b454c50-0001-4000-8000-000000000001",
    )
)


class Work(IntEnum):
    """Bits of `IO.WORK`: what waits for the sequencer."""

    DOORBELL = 1
    EVENT = 2
    EXCHANGE = 4
    ANSWER = 8
    LATE = 16
    OFFERED = 32  #: a request stands that the data path has not taken


class IO(IntEnum):
    """Words of the I/O region, from IO_BASE on: read, then written."""

    WORK = 0x00
    OPCODE = 0x04
    LENGTH = 0x08
    TIME = 0x0C  #: keeps the upper half for the next
    TIME_HIGH = 0x10
    EVENT = 0x14  #: and the four words behind it
    ANSWER = 0x28
    EXCHANGE = 0x2C  #: and the three words behind it
    HEALTH = 0x3C
    TEMPERATURE = 0x40
    CORRECTED = 0x44
    VALUE = 0x48  #: of a vendor feature, with the answer
    DONE = 0x80
    OUT_LENGTH = 0x84
    SET_TIME = 0x88
    SET_TIME_HIGH = 0x8C  #: sets both halves
    EVENT_STATUS = 0x90
    EVENT_TAKE = 0x94
    INTERRUPT = 0x98
    MEMORY = 0x9C  #: media 1:0, mailbox ready 2
    BACKGROUND = 0xA0  #: opcode 15:0, percent 22:16, running 31
    BACKGROUND_CODE = 0xA4
    LINE = 0xA8
    LINE_HIGH = 0xAC
    DATA = 0xB0  #: the next word of the line to be written
    REQUEST = 0xB4  #: kind: the request leaves
    ANSWER_TAKE = 0xB8
    EXCHANGE_WORD = 0xBC
    EXCHANGE_SEND = 0xC0
    KNOB = 0x100  #: and on


class Image:
    """The tables, the store's layout and the program of a configuration.

    `table(name)` and `store(name)` are addresses on the bus; `tables` and `program.words()` the
    contents, `store_words` the store's size.
    """

    def __init__(self, config: CxlIoConfig):
        self.config, self.program = config, Program()
        self.tables: list[int] = []
        self._table: dict[str, int] = {}
        self._store: dict[str, int] = {}
        self.store_words = 0
        c = config
        for name, words in (
            ("policy", 1),
            ("logs", 4 * 8),
            ("records", 4 * c.events * 8),
            ("poison_state", 9),
            ("poisons", 2 * c.poisons),
            ("background", 2),
            ("status", 1),
            ("alerts", 4),
            ("shutdown", 1),
            ("knobs", 0 if c.wired else c.knobs),
            ("lsa", c.lsa // 4),
        ):
            self._store[name] = STORE + 4 * self.store_words
            self.store_words += words
        self._constants()

    def table(self, name: str) -> int:
        return self._table[name]

    def store(self, name: str) -> int:
        return self._store[name]

    def add(self, name: str, content: bytes) -> None:
        """A table of bytes, zeros behind it to the next word."""
        self._table[name] = TABLES + 4 * len(self.tables)
        self.tables += _words(content)

    def fill(self, name: str, content: bytes) -> None:
        """The table's contents, where they were not known when it was added."""
        at, words = (self._table[name] - TABLES) // 4, _words(content)
        self.tables[at : at + len(words)] = words

    def most(self, opcode: Opcode) -> int:
        """Input bytes at most."""
        return min(COMMANDS[opcode].most, self.config.payload)

    def _constants(self) -> None:
        c = self.config
        log = cel(c.commands)
        self.cel_bytes = len(log)
        self.add("cel", log)
        self.add("cel_uuid", CEL_UUID)
        self.add("logs", (1).to_bytes(8, "little") + CEL_UUID + len(log).to_bytes(4, "little"))
        self.add("identify", identify(c))
        name = c.firmware.encode().ljust(16, b"\0")
        self.add("firmware", bytes([1, 1]) + bytes(14) + name + bytes(48))
        self.add("partition", c.capacity.to_bytes(8, "little") + bytes(24))
        self.add("event_uuids", b"".join(EVENT_KINDS))


def _words(content: bytes) -> list[int]:
    content += bytes(-len(content) % 4)
    return [int.from_bytes(content[i : i + 4], "little") for i in range(0, len(content), 4)]


def identify(c: CxlIoConfig) -> bytes:
    """The answer to Identify Memory Device."""
    capacity = c.capacity.to_bytes(8, "little")
    poison = c.poisons if Opcode.POISON_LIST in c.commands else 0
    return (
        c.firmware.encode().ljust(16, b"\0")
        + capacity  # total
        + capacity  # volatile
        + bytes(16)  # persistent; partition alignment
        + 4 * c.events.to_bytes(2, "little")
        + c.lsa.to_bytes(4, "little")
        + poison.to_bytes(3, "little")
        + poison.to_bytes(2, "little")  # injected at most
        + bytes([1 if poison else 0, 0])
    )
