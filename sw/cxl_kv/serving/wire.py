# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The protocol between `kelp serve` and its clients: framed requests and replies over a byte
stream.

A frame is a header of 28 bytes, little-endian, and a payload: magic ``KVC1`` (4), code (1:
:class:`Op`, or :class:`Reply`), version (1), zero (2), request number (4), payload bytes (8),
CRC-32 of the payload (4), CRC-32 of the header before it (4). The client sends one request at a
time; the reply carries its number. Nothing of a request takes effect before its whole frame has
come and both sums are right.

Each request's payload → its reply's payload:

- HELLO: JSON {"admin": bool} → JSON: configuration, LD-ID, formats, hints, persistent
- LOAD: uint64[n] addresses → uint8[n, 64] lines, uint8[n] status
- STORE: uint32 n, uint32 has byte enables, uint64[n] addresses, uint8[n, 64] lines, uint64[n] byte
  enables where it has them → empty
- SPEC_READ: uint64[n] addresses → empty
- OPEN: JSON as of Control.open_session → JSON {"session": number}
- CLOSE: JSON {"session": number} → empty
- EVENTS: empty → JSON list
- LOCK, UNLOCK: empty → empty; between them no other client is served
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from enum import IntEnum

from ..errors import ConnectionLostError, TransportError

__all__ = ["MOST_LINES", "MOST_PAYLOAD", "Op", "Reply", "from_json", "receive", "send", "to_json"]

VERSION = 1
_HEADER = struct.Struct("<4sBBHIQI")
_SUM = struct.Struct("<I")
_MAGIC = b"KVC1"
MOST_LINES = 1 << 16  #: lines of one LOAD or STORE; the client cuts longer ones
MOST_PAYLOAD = 128 * MOST_LINES  #: bytes; a longer frame is refused


class Op(IntEnum):
    """Requests."""

    HELLO = 1
    LOAD = 2
    STORE = 3
    SPEC_READ = 4
    OPEN = 5
    CLOSE = 6
    EVENTS = 7
    LOCK = 8
    UNLOCK = 9


class Reply(IntEnum):
    """How a request went. The payload of FAILED is JSON {"error": class name, "message": …}."""

    OK = 0x80
    FAILED = 0x81


def to_json(value) -> bytes:
    return json.dumps(value).encode()


def from_json(payload: bytes):
    try:
        return json.loads(payload)
    except ValueError:
        raise TransportError("a frame's JSON is broken") from None


def send(connection: socket.socket, code: int, number: int, *parts) -> None:
    """Send one frame; `parts` are bytes-like and become its payload. ConnectionLostError when the
    other side is gone."""
    parts = [
        memoryview(part).cast("B")
        for part in parts
        if len(memoryview(part)) and memoryview(part).nbytes
    ]
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    header = _HEADER.pack(
        _MAGIC, code, VERSION, 0, number, sum(part.nbytes for part in parts), check
    )
    try:
        connection.sendall(header + _SUM.pack(zlib.crc32(header)))
        for part in parts:
            connection.sendall(part)
    except (OSError, ValueError) as error:
        raise ConnectionLostError(f"the other side is gone: {error}") from None


def receive(connection: socket.socket) -> tuple[int, int, bytearray]:
    """(code, number, payload) of the next frame.

    ConnectionLostError at the end of the stream, also within a frame; TransportError when a frame
    is broken: nothing after it can be trusted.
    """
    raw = _exactly(connection, _HEADER.size + _SUM.size)
    header = bytes(raw[: _HEADER.size])
    if _SUM.unpack(raw[_HEADER.size :])[0] != zlib.crc32(header):
        raise TransportError("a frame's header is broken")
    magic, code, version, _, number, size, check = _HEADER.unpack(header)
    if magic != _MAGIC or version != VERSION:
        raise TransportError(
            f"frame of protocol {magic!r} version {version} is refused; legal: {_MAGIC!r} "
            + f"version {VERSION}"
        )
    if size > MOST_PAYLOAD:
        raise TransportError(f"a frame of {size} bytes is refused; legal: {MOST_PAYLOAD} at most")
    payload = _exactly(connection, size)
    if zlib.crc32(payload) != check:
        raise TransportError("a frame's payload is broken")
    return code, number, payload


def _exactly(connection, size) -> bytearray:
    buffer = bytearray(size)
    view, got = memoryview(buffer), 0
    while got < size:
        try:
            n = connection.recv_into(view[got:])
        except (OSError, ValueError) as error:
            raise ConnectionLostError(f"the other side is gone: {error}") from None
        if not n:
            raise ConnectionLostError(
                "the other side closed the connection" + (" within a frame" if got else "")
            )
        got += n
    return buffer
