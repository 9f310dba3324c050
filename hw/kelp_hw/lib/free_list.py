# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Ids that are handed out one at a time and come back in any order. One id out and one back a
cycle; a returned id is offered after 2 cycles when no other is free."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .protected import Fault, ProtectedFifo

__all__ = ["FreeList"]


class FreeList(wiring.Component):
    """Hands out the ids `first` … `first` + `count` − 1, each once in ascending order, then those
    returned, oldest first. No id has two owners.

    Latency: a returned id is offered at `o` `LATENCY` cycles later when no other is free; `level`
    counts it after `LEVEL_LATENCY`. One id out and one back in each cycle (`INTERVAL`). There is
    room for every id: only its owner returns it, so `i` is always ready. Errors: an id more than
    `count` is an assertion. An id below `first` may be returned in exchange for one that is kept
    for good. Reset makes every id free, without a walk over memory.

    Parameters
    ----------
    count : int
        1 and up.
    first : int
        0 and up.
    protect : bool
        Returned ids carry check bits, with encoder and decoder combinational.

    Members
    -------
    i : in, always-ready stream
        A returned id.
    o : out, stream of ids
    level : out
        Free ids.
    fault : out, Fault
        Of a returned id: as `ProtectedFifo` has it. An id beyond repair has two owners or none.
    """

    LATENCY = 2
    LEVEL_LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, count: int, first: int = 0, protect: bool = False):
        for field, value, low in (("count", count, 1), ("first", first, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(
                    f"{field} = {value!r} is refused; legal: an integer of {low} and up"
                )
        self.count, self.first, self.protect = count, first, protect
        self.id_bits = max(1, ceil_log2(first + count))
        super().__init__(
            {
                "i": In(stream.Signature(self.id_bits, always_ready=True)),
                "o": Out(stream.Signature(self.id_bits)),
                "level": Out(range(count + 1), init=count),
                "fault": Out(Fault),
            }
        )
        # State that proofs look at (kelp_verif.formal.pool_specs): ids from here on were never
        # handed out.
        self.never_used = Signal(range(first + count + 1), init=first)

    def elaborate(self, platform):
        m = Module()
        # One more than the ids: a buffered FIFO is full for a cycle while its last word moves to
        # the output.
        m.submodules.returned = returned = ProtectedFifo(
            shape=self.id_bits, depth=self.count + 1, protect=self.protect
        )
        never_used = self.never_used
        fresh = never_used != self.first + self.count
        take = self.o.valid & self.o.ready
        m.d.comb += [
            self.o.valid.eq(fresh | returned.r_rdy),
            self.o.payload.eq(Mux(fresh, never_used, returned.r_data)),
            returned.r_en.eq(take & ~fresh),
            returned.w_en.eq(self.i.valid),
            returned.w_data.eq(self.i.p),
            self.fault.eq(returned.fault),
        ]
        with m.If(take & fresh):
            m.d.sync += never_used.eq(never_used + 1)
        m.d.sync += self.level.eq(self.level + self.i.valid - take)

        lost = Signal()
        m.d.sync += lost.eq(self.i.valid & (~returned.w_rdy | (self.level == self.count)))
        m.d.comb += [Assert(~lost), Assert(self.level <= self.count)]
        return m
