# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The host bridge's frames, common to gateware and host. Plain Python (docs/fpga.md, "Host
bridge").

A frame is FLAG, a body, FLAG. In the body FLAG and ESCAPE are sent as ESCAPE, byte ^ 0x20. A body
is four parts:

| bytes | content |
|---|---|
| 1 | `kind` (low four bits), POLL (0x10), NAK (0x20) |
| 1 | `seq`: number of this frame, modulo 256; of CONTROL and SYNC it means nothing |
| 1 | `ack`: number of the next frame that the sender expects |
| n | payload, whose length follows from direction and kind |
| 4 | CRC-32 (IEEE 802.3, as zlib's) of what is before it, least significant byte first |

Payloads are the packed fields of a message (`kelp_spec.messages`, lowest field in the lowest bits),
little-endian, filled up to a byte.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import NamedTuple

from kelp_spec.messages import FIELDS

__all__ = [
    "ACK_SLACK",
    "BOARD_REPLY",
    "BOARD_REQUEST",
    "ESCAPE",
    "FLAG",
    "FROM_DEVICE",
    "NAK",
    "OVERHEAD",
    "POLL",
    "RESIDUE",
    "TO_DEVICE",
    "VERSION",
    "WINDOW",
    "Deframer",
    "Frame",
    "Kind",
    "encode",
    "pack",
    "packed_bytes",
    "unpack",
]

FLAG, ESCAPE = 0x7E, 0x7D
POLL = 0x10  #: to the device: send again what I have not acknowledged, and say what you expect
NAK = 0x20  #: from the device: frames from `ack` on did not arrive (or this answers a poll)
RESIDUE = 0xDEBB20E3  #: the CRC register after a whole good body
OVERHEAD = 7  #: bytes of a body beside its payload
VERSION = 1
WINDOW = 8  #: frames on their way without acknowledgement, each direction
ACK_SLACK = 4  #: frames received before a side that has nothing to send acknowledges

#: The board's own registers (kelp_fpga.boards.board): lowest first.
BOARD_REQUEST = (("tag", 16), ("address", 7), ("write", 1), ("data", 32))
BOARD_REPLY = (("tag", 16), ("data", 32))


class Kind(IntEnum):
    """CONTROL and SYNC carry no number; the others are delivered in order, exactly once."""

    CONTROL = 0
    SYNC = 1
    REQ = 2  #: to the device: M2SReq; from it: S2MNDR
    RWD = 3  #: to the device: M2SRwD; from it: S2MDRS
    BOARD = 4  #: to the device: BOARD_REQUEST; from it: BOARD_REPLY


def packed_bytes(fields) -> int:
    return -(-sum(bits for _, bits in fields) // 8)


#: kind → payload bytes. SYNC carries a nonce of four bytes; its answer adds version, window, and
#: two bytes of zero.
TO_DEVICE = {
    Kind.CONTROL: 0,
    Kind.SYNC: 4,
    Kind.REQ: packed_bytes(FIELDS["M2SReq"]),
    Kind.RWD: packed_bytes(FIELDS["M2SRwD"]),
    Kind.BOARD: packed_bytes(BOARD_REQUEST),
}
FROM_DEVICE = {
    Kind.CONTROL: 0,
    Kind.SYNC: 8,
    Kind.REQ: packed_bytes(FIELDS["S2MNDR"]),
    Kind.RWD: packed_bytes(FIELDS["S2MDRS"]),
    Kind.BOARD: packed_bytes(BOARD_REPLY),
}


class Frame(NamedTuple):
    kind: int
    seq: int
    ack: int
    flags: int
    payload: bytes


def pack(fields, **values: int) -> bytes:
    """Fields of a message as a payload; ValueError when a value does not fit."""
    vector = place = 0
    for name, bits in fields:
        value = int(values.pop(name, 0))
        if value >> bits:
            raise ValueError(f"{name} = {value} does not fit {bits} bits")
        vector |= value << place
        place += bits
    if values:
        raise ValueError(f"unknown fields {sorted(values)}")
    return vector.to_bytes(packed_bytes(fields), "little")


def unpack(fields, payload: bytes) -> dict[str, int]:
    vector, out = int.from_bytes(payload, "little"), {}
    for name, bits in fields:
        out[name] = vector & (1 << bits) - 1
        vector >>= bits
    return out


def encode(frame: Frame) -> bytes:
    """A frame as it goes over the line, both flags included."""
    body = bytes([frame.kind | frame.flags, frame.seq & 0xFF, frame.ack & 0xFF]) + frame.payload
    body += zlib.crc32(body).to_bytes(4, "little")
    for byte in (ESCAPE, FLAG):
        body = body.replace(bytes([byte]), bytes([ESCAPE, byte ^ 0x20]))
    return bytes([FLAG]) + body + bytes([FLAG])


class Deframer:
    """Bytes in, good frames out; `bad` counts bodies that were thrown away. Resynchronises at the
    next FLAG, whatever came before."""

    def __init__(self, lengths: dict[int, int]):
        self.lengths, self.bad = lengths, 0
        self._body, self._escaped = bytearray(), False
        self._longest = max(lengths.values()) + OVERHEAD

    def feed(self, data: bytes) -> list[Frame]:
        out = []
        for byte in data:
            if byte == FLAG:
                if self._body or self._escaped:
                    frame = self._finish()
                    self.bad += frame is None
                    out += [frame] if frame else []
                self._body, self._escaped = bytearray(), False
            elif byte == ESCAPE:
                self._escaped = True
            elif len(self._body) <= self._longest:
                # one more than any good body: then it is bad for certain
                self._body.append(byte ^ (0x20 if self._escaped else 0))
                self._escaped = False
        return out

    def _finish(self) -> Frame | None:
        body = bytes(self._body)
        if (
            self._escaped
            or len(body) < OVERHEAD
            or zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little")
        ):
            return None
        kind = body[0] & 0xF
        if self.lengths.get(kind) != len(body) - OVERHEAD:
            return None
        return Frame(kind, body[1], body[2], body[0] & 0xF0, body[3:-4])
