# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hint lines: the 64-byte messages that a host writes to the hint aperture (spec §6,
docs/hints.md). Plain Python.

A line is a 12-byte header and 26 entries of 16 bits, little-endian. What the entries are is the
line's `kind`: attention masses of consecutive pages, or page numbers to prefetch, pin or release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from .config import Config

__all__ = [
    "ENTRIES",
    "ENTRY_BITS",
    "FLAGS_KNOWN",
    "HEADER",
    "HEADER_BITS",
    "LINE_BYTES",
    "SEQUENCE_BITS",
    "VERSION",
    "HintError",
    "HintFlag",
    "HintKind",
    "HintLine",
    "mass_lines",
    "pack",
    "page_lines",
    "unpack",
]

VERSION = 1  #: of this format; a line of another version is malformed
LINE_BYTES = 64
ENTRY_BITS = 16

#: (field, bits, meaning), lowest bit first. `reserved` is zero.
HEADER: tuple[tuple[str, int, str], ...] = (
    ("version", 4, "1"),
    ("kind", 4, "HintKind: what the entries are"),
    ("flags", 8, "HintFlag; unknown bits are zero"),
    ("session", 8, "session"),
    ("count", 8, "entries used, from entry 0 on"),
    ("queue", 16, "queue in the session: layer · kv_heads + head"),
    (
        "sequence",
        16,
        "0 in the session's first line after OPEN, then one more in each line, modulo 65536",
    ),
    ("first_page", 16, "MASS: page of entry 0, the others follow; other kinds: zero"),
    ("reserved", 16, "zero"),
)
HEADER_BITS = sum(bits for _, bits, _ in HEADER)
SEQUENCE_BITS = dict((name, bits) for name, bits, _ in HEADER)["sequence"]
ENTRIES = (8 * LINE_BYTES - HEADER_BITS) // ENTRY_BITS  #: entries that fit a line


class HintKind(IntEnum):
    """What a line's entries are."""

    MASS = 1  #: attention mass, UQ0.16, of pages first_page, first_page + 1, …
    PREFETCH = 2  #: page numbers to fetch
    PIN = 3  #: page numbers to pin
    RELEASE = 4  #: page numbers to unpin


class HintFlag(IntFlag):
    """Bits of the header's `flags`."""

    ADVANCE = 1  #: the session's step advances by one; docs/hints.md has when


FLAGS_KNOWN = int(HintFlag.ADVANCE)


class HintError(ValueError):
    """A hint line was refused; the message names the field, the value and the legal range."""


@dataclass(frozen=True, kw_only=True)
class HintLine:
    """One hint line. `entries` are masses (kind MASS) or page numbers (the other kinds)."""

    kind: HintKind
    session: int = 0
    queue: int = 0
    sequence: int = 0
    first_page: int = 0
    entries: tuple[int, ...] = ()
    advance: bool = False


def pack(line: HintLine, config: Config | None = None) -> bytes:
    """The 64 bytes of `line`, checked against the format and, where given, against the
    configuration's sizes.

    Refused with HintError: an unknown kind, any field out of range, more than 26 entries, masses
    that run past the last page, the same page twice in a list, a `first_page` on a list, and a line
    that would do nothing.
    """
    sessions, queues, pages = (
        (config.sessions, config.queues, config.pages) if config else (16, 1024, 8192)
    )

    def check(field: str, value: object, limit: int) -> int:
        if (
            isinstance(value, bool)
            or not hasattr(value, "__index__")
            or not 0 <= value.__index__() < limit
        ):
            raise HintError(f"{field} = {value!r} is refused; legal: 0 … {limit - 1}")
        return value.__index__()

    try:
        kind = HintKind(line.kind)
    except ValueError:
        raise HintError(
            f"kind = {line.kind!r} is refused; legal: "
            + f"{', '.join(f'{k.name} {k.value}' for k in HintKind)}"
        ) from None
    session, queue = check("session", line.session, sessions), check("queue", line.queue, queues)
    sequence, first_page = (
        check("sequence", line.sequence, 1 << SEQUENCE_BITS),
        check("first_page", line.first_page, pages),
    )
    count = len(line.entries)
    if count > ENTRIES:
        raise HintError(f"entries: {count} of them are refused; legal: 0 … {ENTRIES}")
    if not count and not line.advance:
        raise HintError(
            "a line without entries and without advance is refused; it would do nothing"
        )
    if kind is HintKind.MASS:
        entries = [
            check(f"entries[{i}] (mass)", mass, 1 << ENTRY_BITS)
            for i, mass in enumerate(line.entries)
        ]
        if first_page + count > pages:
            raise HintError(
                f"first_page = {first_page} with {count} masses is refused; the last page is "
                + f"{pages - 1}"
            )
    else:
        entries = [
            check(f"entries[{i}] (page)", page, pages) for i, page in enumerate(line.entries)
        ]
        if first_page:
            raise HintError(
                f"first_page = {first_page} is refused; legal: 0 in a line of kind {kind.name}"
            )
        if len(set(entries)) != count:
            raise HintError(
                f"entries: page {next(p for p in entries if entries.count(p) > 1)} appears twice"
            )
    header = dict(
        version=VERSION,
        kind=kind,
        flags=HintFlag.ADVANCE if line.advance else 0,
        session=session,
        count=count,
        queue=queue,
        sequence=sequence,
        first_page=first_page,
        reserved=0,
    )
    value, shift = 0, 0
    for name, bits, _ in HEADER:
        value |= int(header[name]) << shift
        shift += bits
    for entry in entries:
        value |= entry << shift
        shift += ENTRY_BITS
    return value.to_bytes(LINE_BYTES, "little")


def unpack(line: bytes) -> HintLine:
    """The hint line in 64 bytes; HintError when it is malformed, which is exactly when the device
    drops it with a HINT_MALFORMED event.

    Sessions, queues and pages are not checked: whether they exist is the device's to know. Entries
    beyond `count` are ignored.
    """
    if len(line) != LINE_BYTES:
        raise HintError(f"a hint line of {len(line)} bytes is refused; legal: {LINE_BYTES}")
    value = int.from_bytes(line, "little")
    header = {}
    for name, bits, _ in HEADER:
        header[name] = value & ((1 << bits) - 1)
        value >>= bits
    if header["version"] != VERSION:
        raise HintError(f"version = {header['version']} is refused; legal: {VERSION}")
    try:
        kind = HintKind(header["kind"])
    except ValueError:
        raise HintError(
            f"kind = {header['kind']} is refused; legal: "
            + f"{', '.join(f'{k.name} {k.value}' for k in HintKind)}"
        ) from None
    if header["flags"] & ~FLAGS_KNOWN:
        raise HintError(f"flags = {header['flags']:#x} is refused; legal: bits {FLAGS_KNOWN:#x}")
    if header["count"] > ENTRIES:
        raise HintError(f"count = {header['count']} is refused; legal: 0 … {ENTRIES}")
    if header["reserved"]:
        raise HintError(f"reserved = {header['reserved']} is refused; legal: 0")
    if kind is not HintKind.MASS and header["first_page"]:
        raise HintError(
            f"first_page = {header['first_page']} is refused; legal: 0 in a line of kind "
            + f"{kind.name}"
        )
    advance = bool(header["flags"] & HintFlag.ADVANCE)
    if not header["count"] and not advance:
        raise HintError(
            "a line without entries and without advance is refused; it would do nothing"
        )
    entries = tuple(
        value >> ENTRY_BITS * i & ((1 << ENTRY_BITS) - 1) for i in range(header["count"])
    )
    return HintLine(
        kind=kind,
        session=header["session"],
        queue=header["queue"],
        sequence=header["sequence"],
        first_page=header["first_page"],
        entries=entries,
        advance=advance,
    )


def mass_lines(
    *,
    session: int,
    queue: int,
    first_page: int,
    masses: Iterable[int],
    sequence: int,
    advance: bool = False,
) -> Iterator[HintLine]:
    """Lines that push `masses` of consecutive pages from `first_page` on, numbered from `sequence`;
    `advance` goes on the last of them."""
    masses = tuple(masses)
    for start in range(0, max(1, len(masses)), ENTRIES):
        yield HintLine(
            kind=HintKind.MASS,
            session=session,
            queue=queue,
            sequence=(sequence + start // ENTRIES) % (1 << SEQUENCE_BITS),
            first_page=first_page + start,
            entries=masses[start : start + ENTRIES],
            advance=advance and start + ENTRIES >= len(masses),
        )


def page_lines(
    kind: HintKind, *, session: int, queue: int, pages: Iterable[int], sequence: int
) -> Iterator[HintLine]:
    """Lines of a PREFETCH, PIN or RELEASE list of any length, numbered from `sequence`."""
    pages = tuple(pages)
    for start in range(0, len(pages), ENTRIES):
        yield HintLine(
            kind=kind,
            session=session,
            queue=queue,
            sequence=(sequence + start // ENTRIES) % (1 << SEQUENCE_BITS),
            entries=pages[start : start + ENTRIES],
        )
