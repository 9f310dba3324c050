# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The protocol between `kelp serve` and its clients: framed requests and replies over a byte
stream. Version 3.

A frame is a header of 28 bytes, little-endian, and a payload: magic ``KVC1`` (4), code (1:
:class:`Op`, or :class:`Reply`), version (1), zero (2), request number (4), payload bytes (8),
CRC-32 of the payload (4), CRC-32 of the header before it (4). The header is that of every version,
so that each side can name the other's: a server answers a frame of another one with FAILED, in a
frame of its own version, and hangs up; a client takes no reply of another one. The client sends
one request at a time; the reply carries its number. Nothing of a request takes effect before its
whole frame has come and both sums are right. Nothing is encrypted: whoever sees the stream sees the
token and the data.

Each request's payload → its reply's payload:

- HELLO: JSON {"admin": bool, "token": string where one is needed} → JSON: configuration, what the
  device's registers `identity` and `digest` show, LD-ID, tenant, formats, hints, persistent. The
  first request, and a small one (MOST_HELLO bytes)
- LOAD: uint64[n] addresses → uint8[n, 64] lines, uint8[n] status
- STORE: uint32 n, uint32 has byte enables, uint64[n] addresses, uint8[n, 64] lines, uint64[n] byte
  enables where it has them → empty
- SPEC_READ: uint64[n] addresses → empty
- OPEN: JSON as of Control.begin_open → JSON {"session": number}
- CLOSE: JSON {"session": number} → empty
- EVENTS: empty → JSON list
- LOCK, UNLOCK: empty → empty; between them no other client of the same tenant is served, and after
  the LOCK of LD-ID 0 no other client at all

The server refuses a LOAD, STORE or SPEC_READ of more than MOST_LINES lines (n); JSON of more than
MOST_JSON bytes is refused, too.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from enum import IntEnum
from numbers import Integral
from typing import NamedTuple

from .. import errors
from ..errors import ConnectionLostError, CxlKvError, TransportError
from ..version import version as package

__all__ = [
    "MOST_HELLO",
    "MOST_JSON",
    "MOST_LINES",
    "MOST_PAYLOAD",
    "VERSION",
    "Inbox",
    "OtherVersionError",
    "Op",
    "Reply",
    "error_of",
    "failure",
    "frame",
    "from_json",
    "receive",
    "send",
    "to_json",
]

VERSION = 3
_HEADER = struct.Struct("<4sBBHIQI")
_SUM = struct.Struct("<I")
_WHOLE = _HEADER.size + _SUM.size
_MAGIC = b"KVC1"
MOST_LINES = 1 << 12  #: lines of one LOAD, STORE or SPEC_READ; the client cuts longer ones
MOST_PAYLOAD = 8 + 80 * MOST_LINES  #: bytes: a STORE with byte enables; a longer frame is refused
MOST_JSON = 1 << 16  #: bytes of a request's JSON
MOST_HELLO = 1 << 12  #: bytes of a payload before the client is known
_MOST_MESSAGE = 2000  #: characters of an error's message


class OtherVersionError(TransportError):
    """A frame of another version of the protocol than VERSION."""


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
    """How a request went. The payload of FAILED is JSON, as of :func:`failure`."""

    OK = 0x80
    FAILED = 0x81


def to_json(value) -> bytes:
    return json.dumps(value).encode()


def from_json(payload: bytes):
    """TransportError when it is none, or nested beyond what Python reads."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise TransportError("a frame's JSON is broken") from None


def failure(error: Exception) -> dict:
    """What is sent of an error: the name of its class, or of the first one above it that
    `cxl_kv.errors` has, its "message", and whatever it has of what such errors tell (`session`,
    `layer`, `head`, `page`; `address` of a BusError; `in_cold_tier` of a DeviceFullError)."""
    kind = next((k for k in type(error).__mro__ if k is ValueError or _is_ours(k)), TransportError)
    told = {name: getattr(error, name) for name in getattr(error, "told", ())}
    return {
        "error": kind.__name__,
        "message": getattr(error, "message", str(error))[:_MOST_MESSAGE],
        **{
            name: value if isinstance(value, bool) else int(value)
            for name, value in told.items()
            if isinstance(value, Integral)  # a client's nonsense may be in a refusal of it
        },
    }


def error_of(reply: dict) -> Exception:
    """The error that was sent so, by this version's server or an older one, which tells less; a
    TransportError where its class is none that this version knows."""
    name, message = str(reply["error"]), str(reply["message"])
    if name == ValueError.__name__:
        return ValueError(message)
    kind = getattr(errors, name, None)
    error = (kind if _is_ours(kind) else TransportError)(message)
    told = {name: reply.get(name) for name in getattr(error, "told", ())}
    known = {name: value for name, value in told.items() if isinstance(value, int)}
    return error.with_(**known) if known else error


def _is_ours(kind) -> bool:
    return (
        isinstance(kind, type) and issubclass(kind, CxlKvError) and kind.__name__ in errors.__all__
    )


def frame(code: int, number: int, *parts) -> list[memoryview]:
    """One frame, in pieces; `parts` are bytes-like and become its payload."""
    pieces = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    check = 0
    for piece in pieces:
        check = zlib.crc32(piece, check)
    size = sum(piece.nbytes for piece in pieces)
    header = _HEADER.pack(_MAGIC, code, VERSION, 0, number, size, check)
    return [memoryview(header + _SUM.pack(zlib.crc32(header))), *pieces]


def send(connection: socket.socket, code: int, number: int, *parts) -> None:
    """Send one frame. ConnectionLostError when the other side is gone."""
    try:
        for piece in frame(code, number, *parts):
            connection.sendall(piece)
    except (OSError, ValueError) as error:
        raise ConnectionLostError(f"the other side is gone: {error}") from None


class _Head(NamedTuple):
    code: int
    version: int
    number: int
    size: int  #: bytes of the payload
    sum: int  #: of the payload


def _parse(raw, most: int) -> _Head:
    header = bytes(raw[: _HEADER.size])
    if _SUM.unpack_from(raw, _HEADER.size)[0] != zlib.crc32(header):
        raise TransportError("a frame's header is broken")
    magic, code, version, _, number, size, check = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise TransportError(f"a frame of {magic!r} is refused; legal: {_MAGIC!r}")
    if size > most:
        raise TransportError(f"a frame of {size} bytes is refused; legal: {most} at most")
    return _Head(code, version, number, size, check)


def _checked(head: _Head, payload: bytearray) -> tuple[int, int, bytearray]:
    """(code, number, payload) of a whole frame: one of another version has been read by then, so
    that whoever sent it is there to be told."""
    if head.version != VERSION:
        raise OtherVersionError(
            f"the other side speaks version {head.version} of the protocol, and this one version "
            + f"{VERSION} (kelp-cxl {package()}): install one version of kelp-cxl on both"
        )
    if zlib.crc32(payload) != head.sum:
        raise TransportError("a frame's payload is broken")
    return head.code, head.number, payload


def receive(connection: socket.socket) -> tuple[int, int, bytearray]:
    """(code, number, payload) of the next frame.

    ConnectionLostError at the end of the stream, also within a frame; TransportError when a frame
    is broken, OtherVersionError when it is of another version: nothing after it can be trusted.
    """
    head = _parse(_exactly(connection, _WHOLE), MOST_PAYLOAD)
    return _checked(head, _exactly(connection, head.size))


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


class Inbox:
    """Frames out of pieces of a stream, for a receiver that does not wait.

    Attributes
    ----------
    most : int
        Payload bytes that a frame may have.
    """

    def __init__(self, most: int):
        self.most = most
        self._bytes = bytearray()
        self._head: _Head | None = None  # of the frame that is under way

    def __len__(self) -> int:
        """Bytes of frames that were not taken yet."""
        return len(self._bytes)

    def feed(self, piece: bytes) -> None:
        self._bytes += piece

    def take(self) -> tuple[int, int, bytearray] | None:
        """As :func:`receive`; None until the whole frame is there."""
        if self._head is None:
            if len(self._bytes) < _WHOLE:
                return None
            self._head = _parse(self._bytes, self.most)
        head, end = self._head, _WHOLE + self._head.size
        if len(self._bytes) < end:
            return None
        payload = self._bytes[_WHOLE:end]
        del self._bytes[:end]
        self._head = None
        return _checked(head, payload)
