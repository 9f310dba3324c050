# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Miss entries as M3 sees them: free ids at hand, and how many requests wait on each entry
(docs/design.md §3). One id taken and one request parked a cycle, counted after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..pipeline import IDS_AT_HAND

__all__ = ["MissIds"]


class MissIds(wiring.Component):
    """A few free miss ids in registers, refilled from the miss buffer, and the number of parked
    requests of every entry.

    `level` ids are at hand and `id` is the next, so an op that was admitted against `level` finds
    one.

    Latency: `LATENCY` cycle from `i`, `take`, `park` and `unpark` to `level`, `id` and `empty`,
    which are exact for every op of earlier cycles; one of each in each cycle (`INTERVAL`). Errors:
    a `take` without an id, an `unpark` of an entry with none parked (asserted).

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of free miss ids
        The miss buffer's, in the order in which they are to be taken.
    level : out
        Ids at hand.
    id : out
        The next of them.
    take : in
        `id` is taken.
    parked : in
        With `take`: the new entry begins with one parked request.
    park, park_id : in
        One more request waits on the entry.
    look : in
        The entry that `select` will name in the next cycle.
    unpark, select : in
        One request fewer on entry `select`.
    empty : out
        No request waits on entry `select`.
    """

    LATENCY = 1
    INTERVAL = 1
    DEPTH = IDS_AT_HAND

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(config.miss_bits)),
                "level": Out(range(self.DEPTH + 1)),
                "id": Out(config.miss_bits),
                "take": In(1),
                "parked": In(1),
                "park": In(1),
                "park_id": In(config.miss_bits),
                "look": In(config.miss_bits),
                "unpark": In(1),
                "select": In(config.miss_bits),
                "empty": Out(1),
            }
        )
        # State that proofs look at (kelp_verif.formal.grant_specs): the ids at hand, the next one
        # first, and how many requests wait on each entry.
        self.ids = [Signal(config.miss_bits, name=f"id_{i}") for i in range(self.DEPTH)]
        self.counts = [
            Signal(range(config.parked + 1), name=f"parked_{i}") for i in range(config.misses)
        ]

    def elaborate(self, platform):
        m = Module()
        c = self.config
        ids, counts = self.ids, self.counts
        # Shifts towards 0, so that `id` is a register. Critical path: M3 writes it into a page
        # word.
        taken_in = Signal()
        m.d.comb += [
            self.i.ready.eq(self.level != self.DEPTH),
            taken_in.eq(self.i.valid & self.i.ready),
            self.id.eq(ids[0]),
        ]
        # Both ways are ready when M3 says whether it takes one.
        last = taken_in.replicate(self.DEPTH + 1) & Cat(
            self.level == i for i in range(self.DEPTH + 1)
        )
        for i in range(self.DEPTH):
            stays = Mux(last[i], self.i.payload, ids[i])
            moves = Mux(last[i + 1], self.i.payload, ids[i + 1] if i + 1 < self.DEPTH else ids[i])
            m.d.sync += ids[i].eq(Mux(self.take, moves, stays))
        m.d.sync += self.level.eq(
            Mux(self.take == taken_in, self.level, Mux(self.take, self.level - 1, self.level + 1))
        )
        m.d.sync += Assert(~self.take | (self.level != 0))

        for i, count in enumerate(counts):
            with m.If(self.take & (self.id == i)):
                m.d.sync += count.eq(self.parked)
            with m.If(self.park & (self.park_id == i)):
                m.d.sync += count.eq(count + 1)
            with m.If(self.unpark & (self.select == i)):
                m.d.sync += count.eq(count - 1)

        # Entry `select` is looked up a cycle early, without the op that is at M3 then; that one is
        # allowed for when it is known. `look` is compared with whatever entry that op may name
        # before it says which, and `empty` is a register, from which M3 begins.
        none, one, select = Signal(), Signal(), Signal(c.miss_bits)
        is_taken, is_parked, is_unparked = Signal(), Signal(), Signal()
        m.d.comb += [
            none.eq(Array(count == 0 for count in counts)[self.look]),
            one.eq(Array(count == 1 for count in counts)[self.look]),
            is_taken.eq(self.look == self.id),
            is_parked.eq(self.look == self.park_id),
            is_unparked.eq(self.look == self.select),
        ]
        more = (self.take & self.parked & is_taken) | (self.park & is_parked)
        m.d.sync += [
            select.eq(self.look),
            self.empty.eq(Mux(self.unpark & is_unparked, one, none) & ~more),
        ]
        m.d.sync += [
            Assert(~(self.take & (self.park | self.unpark)) & ~(self.park & self.unpark)),
            Assert(
                ~self.unpark | ~self.empty, "a parked request is replayed that was never parked"
            ),
            Assert(~self.unpark | (select == self.select)),
        ]
        return m
