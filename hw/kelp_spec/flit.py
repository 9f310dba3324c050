# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The 256-byte flit that KELP's flit front packs CXL.mem messages into (docs/cxl.md, "Flits").

The packing is KELP's own and interoperates with nothing: the slot formats of CXL are in no public
source that was read. Formats alone, no arithmetic. Plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .messages import FIELDS

__all__ = [
    "AREAS",
    "BYTE_ENABLES",
    "COUNT_BITS",
    "CREDITS",
    "DIRECTIONS",
    "FLIT_BITS",
    "FLIT_FIELDS",
    "HOLD",
    "MOST_CREDITS",
    "NARROW_BITS",
    "NOTHING_TOLD",
    "PLENTY",
    "QUEUE",
    "REFRESH",
    "VERSION",
    "WIDE_BITS",
    "WIDE_KIND_BITS",
    "Direction",
    "Middle",
    "Refusal",
    "header_fields",
]

FLIT_BITS = 2048
VERSION = 0b10101  #: of this layout; a flit of all zeros or all ones is refused
COUNT_BITS = 8  #: credits are counted since reset, modulo 2^8
CREDITS = (4, 8, 16, 32, 64)  #: that a receiver may have for each channel
MOST_CREDITS = 128  #: of a channel at once
NOTHING_TOLD = 6

#: The flit, lowest bit first. `lines`: of the blocks a, b and c so many hold a line of data, from a
#: on; the others hold wide places. `middle`: what y holds. `told`, `count`: 0 … 2 the messages of
#: that channel of the other direction that its sender has been allowed since reset; 3 … 5 those
#: that were sent on channel `told` - 3 of this direction before this flit; 6 nothing; 7 reserved.
#: `link` is the link layer's, zero here: bytes 242 … 249 for a CRC, 250 … 255 for FEC.
FLIT_FIELDS = (
    ("version", 5),
    ("lines", 2),
    ("middle", 2),
    ("told", 3),
    ("count", COUNT_BITS),
    ("x", 124),
    ("y", 256),
    ("a", 512),
    ("b", 512),
    ("c", 512),
    ("link", 112),
)

#: A wide place: its kind, then the message, then zeros. Kind 0 is an empty place.
WIDE_BITS = 85
WIDE_KIND_BITS = 2
#: A narrow place: bit 0 set, a message of the first kind follows; bits 1:0 = 2, one of the second;
#: 0, an empty place. Then zeros.
NARROW_BITS = 31

#: What a wide place may hold beside messages: 64 byte enables.
BYTE_ENABLES = "byte enables"

#: area → (lowest bit in the flit, wide places, narrow places) where it holds places. In order of
#: their numbers: wide ones in x, y, c, b, a; narrow ones in x, y. Those of x are the direction's.
AREAS = {"y": (144, 3, 8), "c": (1424, 6, 0), "b": (912, 6, 0), "a": (400, 6, 0)}

HOLD = 4  #: cycles that a flit waits for more messages while a message comes in each
PLENTY = 6  #: narrow messages that wait for a line to leave them places before they take y
QUEUE = 8  #: narrow messages that wait in front of a flit
REFRESH = 16  #: cycles after which a count is told though nothing changed


class Middle(IntEnum):
    """What y holds."""

    WIDE = 0
    NARROW = 1
    #: s2m alone: the first half of the line of the flit's last DRS, and, in the next flit, its
    #: second
    FIRST = 2
    SECOND = 3


class Refusal(IntEnum):
    """Why a flit was refused as a whole; the first that applies."""

    HEADER = 0  #: another version, or `told` = 7
    ENCODING = 1  #: a reserved kind of place, or `middle` that the direction has not
    FRAMING = 2  #: not as many lines as messages with data, or byte enables as messages with them
    CREDIT = 3  #: more messages than credits, or a count of sent messages that cannot be


@dataclass(frozen=True)
class Direction:
    """One direction of the link.

    `channels` in the order of credits' numbers; `wide` are the kinds 1, 2 and 3 of wide places,
    `narrow` the two of narrow places; `carrier` the channel whose messages have a line each; `x`
    the wide and narrow places in x, wide ones first; `halves` whether y may hold half a line.
    """

    name: str
    channels: tuple[str, str, str]
    wide: tuple[str, ...]
    narrow: tuple[str, ...]
    carrier: str
    x: tuple[int, int]
    halves: bool

    def places(self) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
        """(area, lowest bit) of each wide place, and of each narrow one, in order."""
        of_x, narrow_x = self.x
        wide = [("x", 20 + WIDE_BITS * n) for n in range(of_x)]
        narrow = [("x", 20 + WIDE_BITS * of_x + NARROW_BITS * n) for n in range(narrow_x)]
        for area, (low, wides, narrows) in AREAS.items():
            wide += [(area, low + WIDE_BITS * n) for n in range(wides)]
            narrow += [(area, low + NARROW_BITS * n) for n in range(narrows)]
        return tuple(wide), tuple(narrow)


DIRECTIONS = {
    "m2s": Direction(
        name="m2s",
        channels=("M2SReq", "M2SRwD", "M2SBIRsp"),
        wide=("M2SReq", "M2SRwD", BYTE_ENABLES),
        narrow=("M2SBIRsp",),
        carrier="M2SRwD",
        x=(1, 1),
        halves=False,
    ),
    "s2m": Direction(
        name="s2m",
        channels=("S2MDRS", "S2MNDR", "S2MBISnp"),
        wide=("S2MBISnp",),
        narrow=("S2MDRS", "S2MNDR"),
        carrier="S2MDRS",
        x=(0, 4),
        halves=True,
    ),
}


def header_fields(message: str) -> tuple[tuple[str, int], ...]:
    """(field, bits) of a message in its place, lowest first: all but data and byte enables."""
    return tuple(each for each in FIELDS[message] if each[0] not in ("data", "byte_enable"))
