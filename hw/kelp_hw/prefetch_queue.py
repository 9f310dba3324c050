# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The prefetch candidates' priority queue (spec §7)."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

__all__ = ["DISTANCE_BITS", "DropReason", "PrefetchQueue", "candidate_layout", "drop_layout"]

DISTANCE_BITS = 6   #: a window reaches at most 63 pages


class DropReason(IntEnum):
    """Why a candidate went no further."""

    OUTSIDE = 0     #: its session is not open, or the queue or the page is outside the session
    DISABLED = 1    #: its source is switched off
    THROTTLED = 2   #: its source is out of credit
    DUPLICATE = 3   #: the page was queued already; of the two the nearer one stays
    FULL = 4        #: the queue was full, and this was the farthest candidate
    CANCELLED = 5   #: its session closed while it was queued
    REFUSED = 6     #: M3 did not take it: absent, resident or fetching already, or no frame or miss entry to spare


def candidate_layout(config: Config) -> data.StructLayout:
    """A page that may be worth fetching. `distance`: 0 asked for now, else how far from the access that suggests it."""
    return data.StructLayout({"session": config.session_bits, "squeue": config.squeue_bits, "page": config.page_bits, "source": 3,
                              "distance": DISTANCE_BITS})


def drop_layout() -> data.StructLayout:
    """A dropped candidate, for the counters; `reason` is a DropReason."""
    return data.StructLayout({"source": 3, "reason": 3})


class PrefetchQueue(wiring.Component):
    """Keeps the nearest candidates and hands them out nearest first, first come first served among equals.

    A sorted shift register: takes one candidate a cycle, always, and gives one a cycle. Latency: 2 cycles from `i` to `o`.

    A candidate for a page that is queued, or waiting on `o`, is merged with it: the nearer of the two keeps its place in the order (equal:
    the older), the other one counts as dropped (DUPLICATE). When all `slots` are taken and none leaves, the farthest candidate, the new one
    included, is dropped (FULL). A candidate whose session is in `cancel` dies, keeps its slot until its turn comes, and then counts as
    dropped (CANCELLED) instead of leaving; on `o` it is past cancelling.

    Every candidate taken leaves on `o` once or is reported once, on `o_drop` (in the cycle in which a candidate comes in) or on
    `o_cancel` (in the cycle in which a dead one's turn comes).

    Parameters
    ----------
    config : Config
        `prefetch_slots` is the number of slots; one more candidate waits on `o`.

    Members
    -------
    i, i_valid : valid-only candidate
    o : stream of candidates
    cancel : bit s: session s is not open
    o_drop, o_drop_valid : valid-only `drop_layout`, at most one for each candidate that comes in
    o_cancel, o_cancel_valid : valid-only source of a cancelled candidate
    count : slots taken
    """

    def __init__(self, *, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        self.config = config
        self.slots = config.prefetch_slots
        self.candidate = candidate_layout(config)
        super().__init__({
            "i": In(self.candidate), "i_valid": In(1),
            "o": Out(stream.Signature(self.candidate)),
            "cancel": In(config.sessions),
            "o_drop": Out(drop_layout()), "o_drop_valid": Out(1),
            "o_cancel": Out(3), "o_cancel_valid": Out(1),
            "count": Out(range(self.slots + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        n, new = self.slots, self.i
        held = [Signal(self.candidate, name=f"slot_{k}") for k in range(n)]
        valid = Signal(n)      # the low `count` bits
        dead = Signal(n)       # cancelled

        def cancelled(candidate):
            return self.cancel.bit_select(candidate.session, 1) if self.config.sessions > 1 else self.cancel[0]

        def same_page(a, b):
            return (a.squeue == b.squeue) & (a.page == b.page)

        # The head leaves its slot when `o` is free, or when it is dead.
        leave = Signal()
        o_free = ~self.o.valid | self.o.ready
        m.d.comb += leave.eq(valid[0] & (o_free | dead[0]))

        # Where the new one would go: before the first slot that is empty or holds a farther one. `after[k]` is monotonic.
        after = Signal(n)
        twin = Signal(n)
        for k in range(n):
            m.d.comb += [
                after[k].eq(~valid[k] | (held[k].distance > new.distance)),
                twin[k].eq(valid[k] & ~dead[k] & same_page(held[k], new)),
            ]
        # A twin that is at least as near makes the new one superfluous; so does one that leaves now or waits on `o`.
        merged = Signal()
        m.d.comb += merged.eq((twin & ~after).any() | (leave & twin[0]) | (self.o.valid & same_page(self.o.p, new)))

        # Slots as they are without a head that leaves, then with the new one put in.
        def shifted(bits):
            return Mux(leave, Cat(bits[1:], 0), bits)

        base_after = Signal(n)
        base_twin, base_valid, base_dead = Signal(n), Signal(n), Signal(n)
        m.d.comb += [
            base_after.eq(Mux(leave, Cat(after[1:], 1), after)), base_twin.eq(shifted(twin)), base_valid.eq(shifted(valid)),
            base_dead.eq(shifted(dead | Cat(cancelled(slot) for slot in held))),
        ]
        insert = Signal()
        m.d.comb += insert.eq(self.i_valid & ~merged)
        place, push = Signal(n), Signal(n)     # slot k takes the new one; slot k takes what slot k − 1 held
        for k in range(n):
            before = base_after[k - 1] if k else 0
            # What lies behind the new one moves up, as far as the farther twin that it replaces.
            m.d.comb += [
                place[k].eq(insert & base_after[k] & ~before),
                push[k].eq(insert & before & ~base_twin[:k].any()),
            ]
        for k in range(n):
            stay = held[k + 1] if k + 1 < n else held[k]
            with m.If(place[k]):
                m.d.sync += [held[k].eq(new), valid[k].eq(1), dead[k].eq(cancelled(new))]
            with m.Elif(push[k]):
                m.d.sync += [held[k].eq(Mux(leave, held[k], held[k - 1]) if k else 0), valid[k].eq(base_valid[k - 1] if k else 0),
                             dead[k].eq(base_dead[k - 1] if k else 0)]
            with m.Else():
                m.d.sync += [held[k].eq(Mux(leave, stay, held[k])), valid[k].eq(base_valid[k]), dead[k].eq(base_dead[k])]

        # What falls off the end, or finds no place.
        replaces = base_twin.any()
        full = base_valid.all()
        farthest = held[n - 1]
        m.d.comb += [
            self.o_drop_valid.eq(self.i_valid & (merged | replaces | full)),
            self.o_drop.source.eq(new.source), self.o_drop.reason.eq(DropReason.DUPLICATE),
        ]
        with m.If(~merged):
            with m.If(replaces):
                for k in range(n):
                    with m.If(twin[k]):
                        m.d.comb += self.o_drop.source.eq(held[k].source)
            with m.Else():
                m.d.comb += self.o_drop.reason.eq(DropReason.FULL)
                with m.If(base_after[n - 1]):
                    m.d.comb += self.o_drop.source.eq(farthest.source)
                    with m.If(dead[n - 1]):
                        m.d.comb += self.o_drop.reason.eq(DropReason.CANCELLED)

        with m.If(o_free):
            m.d.sync += self.o.valid.eq(leave & ~dead[0])
            with m.If(leave & ~dead[0]):
                m.d.sync += self.o.p.eq(held[0])
        m.d.comb += [self.o_cancel_valid.eq(leave & dead[0]), self.o_cancel.eq(held[0].source)]

        entered, left = Signal(), Signal()
        m.d.comb += [entered.eq(insert & ~replaces & ~full), left.eq(leave)]
        m.d.sync += self.count.eq(self.count + entered - left)

        for k in range(n):
            m.d.comb += Assert(valid[k] == (self.count > k))
            if k:
                m.d.comb += [Assert(~valid[k] | (held[k - 1].distance <= held[k].distance)),
                             Assert(twin[:k].any() + twin[k] <= 1)]
        return m
