# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Flits: what a flit says, bit by bit, and what packer and unpacker do with it (docs/cxl.md,
"Flits"). Integers alone; flit by flit and message by message, no cycles but those of the packer.

A message is a dict of the fields of `kelp_spec.messages.FIELDS`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kelp_spec.flit import (
    BYTE_ENABLES,
    COUNT_BITS,
    DIRECTIONS,
    FLIT_FIELDS,
    HOLD,
    MOST_CREDITS,
    NARROW_BITS,
    NOTHING_TOLD,
    PLENTY,
    QUEUE,
    REFRESH,
    VERSION,
    WIDE_BITS,
    WIDE_KIND_BITS,
    Direction,
    Middle,
    Refusal,
    header_fields,
)

__all__ = [
    "Allowance",
    "Content",
    "Packer",
    "Refused",
    "Unpacker",
    "Unpacked",
    "decode",
    "encode",
    "payload_bits",
]

_COUNTS = 1 << COUNT_BITS
_ALL_BYTES = (1 << 64) - 1
_HALF = (1 << 256) - 1


class Refused(Exception):
    """A flit that is refused as a whole; `reason` is a `Refusal`."""

    def __init__(self, reason: Refusal):
        super().__init__(reason.name)
        self.reason = reason


@dataclass
class Content:
    """What one flit says. `wide` and `narrow` are (kind's name, value) in order of their places;
    `lines` those of a, b and c; `half` 256 bits of y where `middle` says so."""

    told: int = NOTHING_TOLD
    count: int = 0
    middle: Middle = Middle.WIDE
    half: int = 0
    lines: list[int] = field(default_factory=list)
    wide: list[tuple[str, int]] = field(default_factory=list)
    narrow: list[tuple[str, int]] = field(default_factory=list)


def _packed(message: str, values: dict) -> int:
    word = at = 0
    for name, bits in header_fields(message):
        if values[name] >> bits:
            raise ValueError(f"{message}.{name} = {values[name]} does not fit {bits} bits")
        word |= values[name] << at
        at += bits
    return word


def _unpacked(message: str, word: int) -> dict:
    values = {}
    for name, bits in header_fields(message):
        values[name], word = word & ((1 << bits) - 1), word >> bits
    return values


def payload_bits(message: str, values: dict) -> int:
    """Bits of a message that a flit has to carry: its fields, its line, byte enables it has."""
    bits = sum(bits for _, bits in header_fields(message))
    return bits + (512 if "data" in values else 0) + (64 if values.get("bep") else 0)


def _areas(direction: Direction, middle: Middle, lines: int) -> tuple[list[int], list[int]]:
    """Lowest bits of the wide and of the narrow places that a flit of this kind has, in order."""
    holding = {"x", *"cba"[: 3 - lines]}
    wide, narrow = direction.places()
    return (
        [at for area, at in wide if area in holding or (area == "y" and middle == Middle.WIDE)],
        [at for area, at in narrow if area == "x" or middle == Middle.NARROW],
    )


def _fields() -> dict[str, tuple[int, int]]:
    out, at = {}, 0
    for name, bits in FLIT_FIELDS:
        out[name], at = (at, bits), at + bits
    return out


_AT = _fields()


def encode(direction: Direction, content: Content) -> int:
    """The flit, its link bytes zero. Places are filled from the first one on."""
    flit = 0

    def put(name: str, value: int) -> None:
        nonlocal flit
        flit |= value << _AT[name][0]

    wides, narrows = _areas(direction, content.middle, len(content.lines))
    if len(content.wide) > len(wides) or len(content.narrow) > len(narrows):
        raise ValueError("more messages than places")
    put("version", VERSION)
    put("lines", len(content.lines))
    put("middle", content.middle)
    put("told", content.told)
    put("count", content.count)
    for name, line in zip("abc", content.lines, strict=False):
        put(name, line)
    if content.middle in (Middle.FIRST, Middle.SECOND):
        put("y", content.half)
    for at, (kind, value) in zip(wides, content.wide, strict=False):
        flit |= (direction.wide.index(kind) + 1 | value << WIDE_KIND_BITS) << at
    for at, (kind, value) in zip(narrows, content.narrow, strict=False):
        which = direction.narrow.index(kind)
        flit |= ((1 << which) | value << (which + 1)) << at
    return flit


def decode(direction: Direction, flit: int) -> Content:
    """What the flit says; `Refused` where it is none that stands by itself. Empty places and the
    rest of a place behind its message are not looked at."""
    got = {name: flit >> at & ((1 << bits) - 1) for name, (at, bits) in _AT.items()}
    if got["version"] != VERSION or got["told"] > NOTHING_TOLD:
        raise Refused(Refusal.HEADER)
    middle, count = Middle(got["middle"]), got["lines"]
    if middle >= Middle.FIRST and not direction.halves:
        raise Refused(Refusal.ENCODING)
    content = Content(
        told=got["told"],
        count=got["count"],
        middle=middle,
        half=got["y"],
        lines=[got[name] for name in "abc"[:count]],
    )
    wides, narrows = _areas(direction, middle, count)
    for at in wides:
        place = flit >> at & ((1 << WIDE_BITS) - 1)
        kind = place & 3
        if kind > len(direction.wide):
            raise Refused(Refusal.ENCODING)
        if kind:
            content.wide.append((direction.wide[kind - 1], place >> WIDE_KIND_BITS))
    for at in narrows:
        place = flit >> at & ((1 << NARROW_BITS) - 1)
        if place & 1:
            content.narrow.append((direction.narrow[0], place >> 1))
        elif place & 2:
            if len(direction.narrow) < 2:
                raise Refused(Refusal.ENCODING)
            content.narrow.append((direction.narrow[1], place >> 2))
    said = content.wide + content.narrow
    carriers = [_unpacked(kind, value) for kind, value in said if kind == direction.carrier]
    enables = sum(kind == BYTE_ENABLES for kind, _ in said)
    starts = count + (middle == Middle.FIRST)
    if len(carriers) != starts or enables != sum(each.get("bep", 0) for each in carriers):
        raise Refused(Refusal.FRAMING)
    return content


@dataclass
class Unpacked:
    """What came of one flit: (channel, message) in order of each channel; a `Refusal`, or None;
    halves of lines that were missing or that nobody waited for; messages that refused flits held,
    as far as this one tells."""

    messages: list[tuple[str, dict]] = field(default_factory=list)
    refused: Refusal | None = None
    orphans: int = 0
    lost: int = 0


class Unpacker:
    """The receiving end of one direction, with `credits` places for each channel. What leaves its
    queues is told it by `free`."""

    def __init__(self, direction: str, *, credits: int):
        self.direction = DIRECTIONS[direction]
        self.allowed = {name: credits for name in self.direction.channels}
        self.received = dict.fromkeys(self.direction.channels, 0)
        self._owed: tuple[dict, int] | None = None
        self._missed = False  #: the last flit was refused

    def free(self, channel: str) -> None:
        """A message has left the queue of `channel`: another may come."""
        self.allowed[channel] += 1

    def take(self, flit: int) -> Unpacked:
        """A flit, as a whole or not at all."""
        direction, out = self.direction, Unpacked()
        try:
            content = decode(direction, flit)
        except Refused as refused:
            return self._refuse(refused.reason)
        said = content.wide + content.narrow
        new = {name: sum(kind == name for kind, _ in said) for name in direction.channels}
        if any(new[name] > self.allowed[name] - self.received[name] for name in new):
            return self._refuse(Refusal.CREDIT)
        if 3 <= content.told < NOTHING_TOLD:
            channel = direction.channels[content.told - 3]
            out.lost = (content.count - self.received[channel]) % _COUNTS
            if out.lost > self.allowed[channel] - self.received[channel]:
                return self._refuse(Refusal.CREDIT)
            self.received[channel] += out.lost
            self.allowed[channel] += out.lost
        for name in new:
            self.received[name] += new[name]
        self._messages(content, said, out)
        return out

    def _refuse(self, reason: Refusal) -> Unpacked:
        """Nothing of the flit counts. A first half before it is lost: the second was in it."""
        self._missed = True
        return Unpacked(refused=reason)

    def _messages(self, content: Content, said, out: Unpacked) -> None:
        second = content.middle == Middle.SECOND
        whole = second and self._owed is not None and not self._missed
        out.orphans += second and not whole
        if self._owed:
            message, first = self._owed
            message["data"] = first | content.half << 256 if whole else 0
            message["poison"] |= not whole
            out.messages.append((self.direction.carrier, message))
            out.orphans += not whole
        self._owed, self._missed = None, False
        lines = deque(content.lines)
        enables = deque(value & _ALL_BYTES for kind, value in said if kind == BYTE_ENABLES)
        for kind, value in said:
            if kind == BYTE_ENABLES:
                continue
            message = _unpacked(kind, value)
            if kind == "M2SRwD":
                message["byte_enable"] = enables.popleft() if message["bep"] else _ALL_BYTES
            if kind == self.direction.carrier:
                if not lines:
                    self._owed = message, content.half
                    continue
                message["data"] = lines.popleft()
            out.messages.append((kind, message))


class Allowance:
    """The sending end's credits of one direction."""

    def __init__(self, direction: str):
        self.channels = DIRECTIONS[direction].channels
        self.allowed = dict.fromkeys(self.channels, 0)
        self.sent = dict.fromkeys(self.channels, 0)
        self.wrong = 0

    def hear(self, told: int, count: int) -> None:
        """What a flit of the other direction tells. More than `MOST_CREDITS` at once, and fewer
        than before, cannot be: ignored, and counted in `wrong`."""
        if told >= len(self.channels):
            return
        name = self.channels[told]
        more = (count - self.allowed[name]) % _COUNTS
        if more > MOST_CREDITS or self.left(name) + more > MOST_CREDITS:
            self.wrong += 1
        else:
            self.allowed[name] += more

    def left(self, channel: str) -> int:
        return self.allowed[channel] - self.sent[channel]


class Packer:
    """The sending end of one direction, cycle by cycle. `step` is one cycle."""

    def __init__(self, direction: str):
        self.direction = d = DIRECTIONS[direction]
        self.allowance = Allowance(direction)
        self.told = [0] * 6  #: what was told last of each count
        self._turn, self._time, self._refreshes, self._again = 0, 0, False, 0
        self._base = dict.fromkeys(d.channels, 0)
        self._narrow_channel = next(each for each in reversed(d.narrow) if each != d.carrier)
        self._wide_channel = next(each for each in d.wide if each != d.carrier)
        self._queue: deque[dict] = deque()  #: of the narrow channel
        self._begin(None)

    def _begin(self, half: int | None) -> None:
        """An empty flit; with the second half of a line, where one is owed."""
        self._content = Content()
        self._middle = None if half is None else Middle.SECOND
        self._content.half = half or 0
        self._begun = half is not None
        self._next_half, self._age = None, 0

    def _wides(self, lines: int) -> int:
        """Wide places of the flit with so many lines."""
        without = self._middle not in (None, Middle.WIDE)
        return self.direction.x[0] + 3 * (not without) + 6 * (3 - lines)

    def _line_fits(self, places: int) -> bool:
        lines = len(self._content.lines)
        return lines < 3 and len(self._content.wide) + places <= self._wides(lines + 1)

    def _narrow_fits(self) -> bool:
        return len(self._content.narrow) < self.direction.x[1] + 8 * (self._middle == Middle.NARROW)

    def _settle(self) -> None:
        if self._middle is None and len(self._content.wide) > self.direction.x[0]:
            self._middle = Middle.WIDE

    def _put_wide(self, kind: str, value: int) -> None:
        self._content.wide.append((kind, value))
        self._settle()

    def _put_carrier(self, message: dict) -> bool:
        c, kind = self._content, self.direction.carrier
        value = _packed(kind, message)
        if kind in self.direction.wide:
            if not self._line_fits(1 + message["bep"]):
                return False
            self._put_wide(kind, value)
            if message["bep"]:
                self._put_wide(BYTE_ENABLES, message["byte_enable"])
            c.lines.append(message["data"])
            return True
        if self._line_fits(0):
            if not self._narrow_fits():
                if self._middle is not None:
                    return False
                self._middle = Middle.NARROW
            c.lines.append(message["data"])
        elif self._middle is None and len(c.narrow) < self.direction.x[1]:
            self._middle = Middle.FIRST
            c.half, self._next_half = message["data"] & _HALF, message["data"] >> 256
        else:
            return False
        c.narrow.append((kind, value))
        return True

    def _put_narrow(self, message: dict, carrier: bool) -> bool:
        """A message of the narrow channel; `carrier`: one with data is offered in this cycle."""
        c, d = self._content, self.direction
        left = d.x[1] - len(c.narrow)
        if d.carrier in d.narrow and carrier and self._middle != Middle.NARROW:
            fits = left > 3 - len(c.lines) + (self._middle is None)
        else:
            fits = self._narrow_fits()
            if not fits and self._middle is None and not carrier:
                self._middle, fits = Middle.NARROW, True
        if fits:
            c.narrow.append((self._narrow_channel, _packed(self._narrow_channel, message)))
        return fits

    def _full(self) -> bool:
        """No further message with data fits, whatever it is."""
        if self.direction.carrier in self.direction.wide:
            return not self._line_fits(1)
        room = self._narrow_fits() or self._middle is None
        first = self._middle is None and len(self._content.narrow) < self.direction.x[1]
        return not ((self._line_fits(0) and room) or first)

    def step(
        self, offers: dict[str, dict], *, out_free: bool, granted: list[int]
    ) -> tuple[list[str], int | None]:
        """One cycle. `offers`: channel → the message offered; `out_free`: the link takes a flit in
        this cycle; `granted`: what the other direction's channels are allowed. Which channels'
        messages were taken, and the flit that leaves, if one does."""
        d, left = self.direction, self.allowance.left
        waiting = self._queue[0] if self._queue else None
        heads = {**offers, self._narrow_channel: waiting}
        heads = {name: heads.get(name) if left(name) else None for name in d.channels}
        level, taken = len(self._queue), []
        if self._narrow_channel in offers and level < QUEUE:
            self._queue.append(offers[self._narrow_channel])
            taken.append(self._narrow_channel)
        counts = [each % _COUNTS for each in granted] + [
            self._base[name] % _COUNTS for name in d.channels
        ]
        due = [counts[n] != self.told[n] for n in range(6)]
        placed, blocked = self._place(heads, level)
        taken += [name for name in placed if name != self._narrow_channel]

        full = d.carrier in placed and self._full()
        quiet = not placed and (self._begun or any(due[:3]) or self._refreshes)
        leaves = out_free and (blocked or full or self._age == HOLD - 1 or quiet)
        flit = self._send(counts, due) if leaves else None
        if not leaves and (placed or self._begun):
            self._begun, self._age = True, min(self._age + 1, HOLD - 1)
        self._time = (self._time + 1) % REFRESH
        self._refreshes |= self._time == 0
        return taken, flit

    def _place(self, heads: dict[str, dict | None], level: int) -> tuple[list[str], bool]:
        """Channels whose messages find a place in the flit, and whether another would have
        needed one."""
        placed, blocked = [], False
        carrier, narrow, wide = (
            heads[name]
            for name in (self.direction.carrier, self._narrow_channel, self._wide_channel)
        )
        many = narrow is not None and level >= PLENTY
        if many and self._middle is None and not self._content.lines:
            self._middle = Middle.NARROW
        if carrier is not None:
            if self._put_carrier(carrier):
                placed.append(self.direction.carrier)
            else:
                blocked = True
        if narrow is not None:
            if self._put_narrow(narrow, carrier is not None):
                placed.append(self._narrow_channel)
                self._queue.popleft()
            else:
                blocked |= level >= PLENTY
        if wide is not None:
            if len(self._content.wide) < self._wides(len(self._content.lines)):
                self._put_wide(self._wide_channel, _packed(self._wide_channel, wide))
                placed.append(self._wide_channel)
            else:
                blocked = True
        for name in placed:
            self.allowance.sent[name] += 1
        return placed, blocked

    def _send(self, counts: list[int], due: list[bool]) -> int:
        c = self._content
        order = [(self._turn + n) % 6 for n in range(6)]
        if self._refreshes:
            c.told, self._refreshes = self._again, False
            self._again = (self._again + 1) % 6
        else:
            c.told = next((n for n in order if due[n]), NOTHING_TOLD)
        if c.told < 6:
            c.count = self.told[c.told] = counts[c.told]
            self._turn = (c.told + 1) % 6
        c.middle = self._middle or Middle.WIDE
        flit = encode(self.direction, c)
        self._base = dict(self.allowance.sent)
        self._begin(self._next_half)
        return flit
