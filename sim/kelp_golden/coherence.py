# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The directory and the protocol of a line, as docs/coherence.md has them: what each message comes
to, and which sector is called back. Plain Python."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from kelp_spec.coherence import (
    Coherence,
    DirectoryOp,
    DirectoryOutcome,
    Held,
    MetaField,
    MetaValue,
    SnpType,
)
from kelp_spec.config import Config
from kelp_spec.messages import S2MNDR, M2SReq, S2MBISnp

__all__ = ["Directory", "Reply", "Result", "Row", "request", "snoops", "written"]

READS = (M2SReq.MEM_RD, M2SReq.MEM_RD_DATA)
INVALIDATES = (M2SReq.MEM_INV, M2SReq.MEM_INV_NT)


class Reply(NamedTuple):
    """What a Req of a line comes to. `ndr`: the completion, or None. `first`: the sector is to be
    called back before."""

    held: Held
    ndr: S2MNDR | None = None
    data: bool = False
    first: bool = False


def request(
    held: Held,
    opcode: int,
    field: int,
    value: int,
    snoop: int,
    eager: bool = True,
    gathers: bool = False,
) -> Reply:
    """A MemRd, MemInv or MemClnEvct of a line of an open session. `eager`: see `Coherence`.
    `gathers`: a MemRd by a slot of the GATHER window, which grants nothing."""
    if gathers:
        if held in (Held.ANY, Held.STALE):
            return Reply(held, first=True)
        return Reply(held, S2MNDR.CMP if snoop != SnpType.NO_OP else None, True)
    if opcode == M2SReq.MEM_CLN_EVCT:
        return Reply(Held.NONE, S2MNDR.CMP)
    data = opcode in READS
    if data and snoop == SnpType.NO_OP:
        return Reply(held, None, data)
    if data and field != MetaField.META0:
        return Reply(held, S2MNDR.CMP, data)
    if value == MetaValue.INVALID:
        return Reply(Held.NONE, S2MNDR.CMP, data)
    if held == Held.STALE:
        return Reply(held, first=True)
    shared = (Held.SHARED,) if eager else (Held.NONE, Held.SHARED)
    if data and value == MetaValue.SHARED and held in shared:
        return Reply(Held.SHARED, S2MNDR.CMP_S, data)
    return Reply(Held.ANY, S2MNDR.CMP_E, data)


def written(held: Held, field: int, value: int, *, rounds: bool, recalled: bool):
    """(what is held after a MemWr or MemWrPtl, whether it keeps a copy that was never granted)."""
    says = field == MetaField.META0 and value in tuple(MetaValue)
    if says and value == MetaValue.INVALID:
        return Held.NONE, False
    if held == Held.NONE:
        return Held.NONE, says
    if recalled:
        return held, False
    if rounds or held == Held.STALE:
        return Held.STALE, False
    return (Held.SHARED if says and value == MetaValue.SHARED else held), False


def snoops(first: int, lines: Collection[int], *, blocks: bool) -> list[tuple[S2MBISnp, int, int]]:
    """(opcode, address, line that its BI-Tag names) of each BISnp of a recall, in order. `first`:
    the address, in lines, of the sector's first line; `lines`: those that are held. With `blocks`
    the four lines of 256 bytes have one BISnp where all are held, else two of 128 bytes; which part
    of the 256 bytes it is the lowest two bits of its address say: 1 the lower half, 2 the upper, 3
    all."""
    left, said = set(lines), []
    while left:
        line = min(left)
        address, size = first + line, 1
        for count in (2, 4):
            if blocks and address % count == 0 and {*range(line, line + count)} <= left:
                size = count
        part = {1: address % 4, 2: 1 + address % 4 // 2, 4: 3}[size]
        opcode = S2MBISnp.INV if size == 1 else S2MBISnp.INV_BLK
        said.append((opcode, address - address % 4 + part, line))
        left -= {*range(line, line + size)}
    return said


@dataclass
class Way:
    tag: int = 0
    held: list[Held] = field(default_factory=list)
    recalled: bool = False

    @property
    def used(self) -> bool:
        return self.recalled or any(self.held)


@dataclass
class Row:
    ways: list[Way]
    turn: int = 0  #: the way from which the next one is looked for
    #: a request found no room: from then on the oldest sector leaves ahead of need
    pressed: bool = False


class Result(NamedTuple):
    """`way`: the sector's, where it has one after the op. `recall`: (way, sector, lines held) of a
    recall that begins. `reply`: of a request that is done."""

    outcome: DirectoryOutcome
    way: int | None = None
    reply: Reply | None = None
    recall: tuple[int, int, tuple[int, ...]] | None = None
    ungranted: bool = False


class Directory:
    """The lines that the host may hold. Ops one after another; `free` says whether a recall may
    begin, `granting` of which ways of the op's set none may: their grants are under way."""

    def __init__(self, sizes: Coherence, config: Config):
        self.sizes, self.tag_bits = sizes, sizes.tag_bits(config)
        self.rows = [
            Row([Way(held=[Held.NONE] * sizes.sector) for _ in range(sizes.ways)])
            for _ in range(sizes.sets)
        ]

    def place(self, sector: int) -> tuple[int, int]:
        """(set, tag) of a sector: the tag is folded over the set's number, so that sectors a power
        of two apart do not share a set."""
        bits, mask = self.sizes.set_bits, self.sizes.sets - 1
        tag = sector >> bits
        fold = 0
        for low in range(0, self.tag_bits, bits):
            fold ^= tag >> low & mask
        return sector & mask ^ fold, tag

    def sector_of(self, index: int, tag: int) -> int:
        bits, mask = self.sizes.set_bits, self.sizes.sets - 1
        fold = 0
        for low in range(0, self.tag_bits, bits):
            fold ^= tag >> low & mask
        return tag << bits | index ^ fold

    def find(self, sector: int) -> tuple[int, Row, int | None]:
        index, tag = self.place(sector)
        row = self.rows[index]
        found = [n for n, way in enumerate(row.ways) if way.used and way.tag == tag]
        assert len(found) < 2, f"sector {sector} has two entries"
        return index, row, found[0] if found else None

    def held(self, line: int) -> Held:
        _, row, way = self.find(line >> self.sizes.sector_bits)
        return Held.NONE if way is None else row.ways[way].held[line % self.sizes.sector]

    def _next(self, row: Row, *, used: bool) -> int | None:
        """The first way from `turn` on that is used and not being recalled, or that is free."""
        order = [(row.turn + n) % self.sizes.ways for n in range(self.sizes.ways)]
        for n in order:
            way = row.ways[n]
            if way.used == used and not way.recalled:
                return n
        return None

    def _recall(self, index: int, row: Row, n: int):
        way = row.ways[n]
        way.recalled = True
        lines = tuple(k for k, held in enumerate(way.held) if held)
        return n, self.sector_of(index, way.tag), lines

    def request(
        self, line: int, message: dict, *, free: bool, granting: Collection[int] = ()
    ) -> Result:
        index, row, n = self.find(line >> self.sizes.sector_bits)
        at = line % self.sizes.sector
        if n is not None and row.ways[n].recalled:
            return Result(DirectoryOutcome.WAIT)
        held = Held.NONE if n is None else row.ways[n].held[at]
        reply = request(
            held,
            message["opcode"],
            message["meta_field"],
            message["meta_value"],
            message["snp_type"],
            self.sizes.eager,
            bool(message.get("gathers")),
        )
        if reply.first:
            if not free or n in granting:
                return Result(DirectoryOutcome.WAIT)
            return Result(DirectoryOutcome.RECALL, n, recall=self._recall(index, row, n))
        if n is not None:
            row.ways[n].held[at] = reply.held
            return Result(DirectoryOutcome.DONE, n, reply)
        if reply.held == Held.NONE:
            return Result(DirectoryOutcome.DONE, None, reply)
        return self._allocate(index, row, line, reply, free, granting)

    def _allocate(
        self,
        index: int,
        row: Row,
        line: int,
        reply: Reply,
        free: bool,
        granting: Collection[int],
    ) -> Result:
        busy = any(way.recalled for way in row.ways)
        n = self._next(row, used=False)
        if n is None:
            victim = self._next(row, used=True)
            if busy or not free or victim in granting:
                return Result(DirectoryOutcome.WAIT)
            row.pressed = True
            return Result(DirectoryOutcome.RECALL, None, recall=self._recall(index, row, victim))
        way = row.ways[n]
        _, way.tag = self.place(line >> self.sizes.sector_bits)
        way.held[line % self.sizes.sector] = reply.held
        row.turn = (n + 1) % self.sizes.ways
        if self._next(row, used=False) is not None:
            row.pressed = False
        elif row.pressed and free and not busy:
            victim = self._next(row, used=True)
            if victim not in granting:
                ahead = self._recall(index, row, victim)
                return Result(DirectoryOutcome.DONE_RECALL, n, reply, recall=ahead)
        return Result(DirectoryOutcome.DONE, n, reply)

    def write(self, line: int, message: dict, *, rounds: bool) -> Result:
        _, row, n = self.find(line >> self.sizes.sector_bits)
        at = line % self.sizes.sector
        old = Held.NONE if n is None else row.ways[n].held[at]
        held, ungranted = written(
            old,
            message["meta_field"],
            message["meta_value"],
            rounds=rounds,
            recalled=n is not None and row.ways[n].recalled,
        )
        if n is not None:
            row.ways[n].held[at] = held
        return Result(DirectoryOutcome.DONE, n, ungranted=ungranted)

    def ask(self, sector: int, *, free: bool, granting: Collection[int] = ()) -> Result:
        index, row, n = self.find(sector)
        if n is None:
            return Result(DirectoryOutcome.DONE)
        if row.ways[n].recalled or not free or n in granting:
            return Result(DirectoryOutcome.WAIT)
        return Result(DirectoryOutcome.DONE_RECALL, n, recall=self._recall(index, row, n))

    def finish(self, sector: int, n: int) -> Result:
        index, tag = self.place(sector)
        way = self.rows[index].ways[n]
        assert way.recalled and way.tag == tag, f"no recall of sector {sector} in way {n}"
        way.recalled, way.held = False, [Held.NONE] * self.sizes.sector
        return Result(DirectoryOutcome.DONE, n)

    def run(self, op: DirectoryOp, **arguments) -> Result:
        """An op by its name."""
        return getattr(self, op.name.lower())(**arguments)
