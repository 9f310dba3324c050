# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The prefetch candidates' FIFO, nearest first (spec §7). One candidate in and one out a cycle; it
takes 3 cycles when nothing waits."""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import PrefetchSource

from ..layouts import DropReason, code_shape

__all__ = ["DISTANCE_BITS", "PrefetchFifo", "candidate_layout", "drop_layout"]

DISTANCE_BITS = 6  #: a window reaches at most 63 pages


def candidate_layout(config: Config) -> data.StructLayout:
    """A page that may be worth fetching. `distance`: 0 asked for now, else how far from the access
    that suggests it."""
    return data.StructLayout(
        {
            "session": config.session_bits,
            "squeue": config.squeue_bits,
            "page": config.page_bits,
            "source": code_shape(PrefetchSource),
            "distance": DISTANCE_BITS,
        }
    )


def drop_layout(config: Config) -> data.StructLayout:
    """A dropped candidate, for the counters; `reason` is a DropReason. With
    `Config.select_estimates` its `squeue`, for SELECTs that wait, where it is FULL."""
    return data.StructLayout(
        {"source": code_shape(PrefetchSource), "reason": code_shape(DropReason)}
        | ({"squeue": config.squeue_bits} if config.select_estimates else {})
    )


class PrefetchFifo(wiring.Component):
    """The prefetch FIFO (spec §7): keeps the nearest candidates and offers them nearest first, in
    order of arrival among equals.

    A sorted shift register. Latency: `LATENCY` cycles from `i` to `o` while it is empty. Interval:
    `INTERVAL`, one candidate in per cycle, always, and one out.

    A candidate for a page that is in a slot, or on `o`, is merged with it: the nearer of the two
    keeps its place in the order (equal: the older), the other one counts as dropped (DUPLICATE).
    When all `slots` are taken and none leaves, the farthest candidate, the new one included, is
    dropped (FULL). A candidate whose session is in `cancel` is dead: it keeps its slot until it is
    the head, and then counts as dropped (CANCELLED) instead of leaving; a candidate on `o` is not
    cancelled any more.

    Every candidate taken leaves on `o` once or is reported once: on `o_drop`, in the cycle after
    one in which a candidate came in, or on `o_cancel`, in the cycle in which a dead one is the
    head.

    Parameters
    ----------
    config : Config
        `prefetch_slots` is the number of slots; one more candidate waits on `o`.

    Members
    -------
    i : in, always-ready stream of candidate_layout
    o : out, stream of candidate_layout
    cancel : in
        Bit s: session s is not open.
    o_drop : out, always-ready stream of drop_layout
        At most one for each candidate that comes in.
    o_cancel : out, always-ready stream of source code
        Source of a cancelled candidate.
    count : out
        Slots taken, and one for a candidate in `new`.
    """

    LATENCY = 3
    INTERVAL = 1

    def __init__(self, *, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        self.config = config
        self.slots = config.prefetch_slots
        self.candidate = candidate_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(self.candidate, always_ready=True)),
                "o": Out(stream.Signature(self.candidate)),
                "cancel": In(config.sessions),
                "o_drop": Out(stream.Signature(drop_layout(config), always_ready=True)),
                "o_cancel": Out(stream.Signature(code_shape(PrefetchSource), always_ready=True)),
                "count": Out(range(self.slots + 1)),
            }
        )
        # State that proofs look at (kelp_verif.formal.prefetch_spec).
        self.new = Signal(self.candidate)  # on its way in
        self.new_valid = Signal()
        self.held = [Signal(self.candidate, name=f"slot_{k}") for k in range(self.slots)]
        self.valid = Signal(self.slots)  # the low `count` bits
        self.dead = Signal(self.slots)  # cancelled
        self.merged = Signal()  # the new one is superfluous

    def elaborate(self, platform):
        m = Module()
        n, new, new_valid = self.slots, self.new, self.new_valid
        held, valid, dead, merged = self.held, self.valid, self.dead, self.merged

        def cancelled(candidate):
            return (
                self.cancel.bit_select(candidate.session, 1)
                if self.config.sessions > 1
                else self.cancel[0]
            )

        def same_page(a, b):
            return (a.squeue == b.squeue) & (a.page == b.page)

        def farther(a, b):
            return a.distance > b.distance

        # The head leaves its slot when `o` is free, or when it is dead.
        leave = Signal()
        o_free = ~self.o.valid | self.o.ready
        m.d.comb += leave.eq(valid[0] & (o_free | dead[0]))

        # `new` was compared with every slot in the cycle before, on `i`; the results (`same`,
        # `far`) moved with the slots. It goes before the first slot that is empty or holds a
        # farther one (`after` is monotonic).
        same, far, same_o = Signal(n), Signal(n), Signal()  # compared
        after, twin, dies = Signal(n), Signal(n), Signal(n)
        earlier = Signal(n + 1)  # bit k: a twin in a slot below k
        on_o, any_twin = Signal(), Signal()
        m.d.comb += [
            after.eq(~valid | far),
            twin.eq(valid & ~dead & same),
            on_o.eq(self.o.valid & same_o),
            any_twin.eq(twin.any()),
            earlier.eq(Cat(0, *(twin[:k].any() for k in range(1, n + 1)))),
            dies.eq(valid & (dead | Cat(cancelled(slot) for slot in held))),
            # A twin that is at least as near makes `new` superfluous; so does one that leaves in
            # this cycle or is on `o`.
            merged.eq((twin & ~after).any() | (leave & twin[0]) | on_o),
        ]
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.n, s.new, s.new_valid, s.held, s.valid, s.dead = n, new, new_valid, held, valid, dead
        s.merged, s.cancelled, s.same_page, s.farther = merged, cancelled, same_page, farther
        s.leave, s.o_free, s.same, s.far, s.same_o = leave, o_free, same, far, same_o
        s.after, s.twin, s.dies, s.earlier, s.on_o = after, twin, dies, earlier, on_o
        s.any_twin = any_twin
        self._move(m, s)
        self._drop(m, s)
        return m

    def _move(self, m: Module, s: SimpleNamespace) -> None:
        """Which slots move."""
        n, leave, after, earlier, new_valid = s.n, s.leave, s.after, s.earlier, s.new_valid
        on_o, held, new, same_page, farther = s.on_o, s.held, s.new, s.same_page, s.farther
        dead, same, far, dies, cancelled = s.dead, s.same, s.far, s.dies, s.cancelled
        same_o, o_free, any_twin, valid = s.same_o, s.o_free, s.any_twin, s.valid
        # What lies behind `new` moves up, as far as the farther twin that it replaces. A twin below
        # its place is one that it merges with, so `earlier` stops it as well, in fewer levels of
        # logic than `merged` would.
        after_here, earlier_here = Signal(n), Signal(n)
        m.d.comb += [
            after_here.eq(Mux(leave, Cat(after[1:], 1), after)),
            earlier_here.eq(Mux(leave, earlier[1:], earlier[:n])),
        ]
        insert = Signal()
        m.d.comb += insert.eq(new_valid & ~on_o)
        # Critical path: `after` and `earlier` to `place` and `push`. So `i` is compared with every
        # candidate where it is now (`alike`, `beyond`), and a slot selects among the results.
        places = [*held, new]
        alike, beyond = Signal(n + 1), Signal(n + 1)
        m.d.comb += [
            *(alike[k].eq(same_page(slot, self.i.p)) for k, slot in enumerate(places)),
            *(beyond[k].eq(farther(slot, self.i.p)) for k, slot in enumerate(places)),
        ]
        for k in range(n):
            below = after_here[k - 1] if k else Const(0)
            place = insert & ~earlier_here[k] & after_here[k] & ~below
            push = insert & ~earlier_here[k] & below

            def take(j, slot_dead, k=k):
                m.d.sync += [
                    held[k].eq(places[j]),
                    dead[k].eq(slot_dead),
                    same[k].eq(alike[j]),
                    far[k].eq(beyond[j]),
                ]

            take(k, dies[k])
            with m.If(place):
                take(n, cancelled(new))
            with m.Elif(push & ~leave):
                take(max(k - 1, 0), dies[max(k - 1, 0)])
            with m.Elif(leave & ~push):
                take(min(k + 1, n - 1), dies[k + 1] if k + 1 < n else 0)
        m.d.sync += [
            new.eq(self.i.p),
            new_valid.eq(self.i.valid),
            same_o.eq(same_page(self.o.p, self.i.p)),
        ]
        with m.If(o_free):
            m.d.sync += self.o.valid.eq(leave & ~dead[0])
            with m.If(leave & ~dead[0]):
                m.d.sync += [self.o.p.eq(held[0]), same_o.eq(alike[0])]

        taken = Signal(range(n + 1))  # slots
        enters = Signal()
        m.d.comb += [
            enters.eq(insert & ~any_twin & (leave | ~valid[n - 1])),
            self.count.eq(taken + new_valid),
        ]
        with m.If(enters & ~leave):
            m.d.sync += [valid.eq(Cat(1, valid)), taken.eq(taken + 1)]
        with m.If(leave & ~enters):
            m.d.sync += [valid.eq(valid[1:]), taken.eq(taken - 1)]
        s.taken = taken

    def _drop(self, m: Module, s: SimpleNamespace) -> None:
        """What is dropped, and what holds of the slots."""
        valid, n, leave, new_valid, on_o = s.valid, s.n, s.leave, s.new_valid, s.on_o
        any_twin, new, dead, held, merged = s.any_twin, s.new, s.dead, s.held, s.merged
        twin, after, taken, same_o, same_page = s.twin, s.after, s.taken, s.same_o, s.same_page
        same, far, farther, earlier = s.same, s.far, s.farther, s.earlier
        # What falls off the end, or finds no place.
        full = valid[n - 1] & ~leave
        m.d.comb += [
            self.o_drop.valid.eq(new_valid & (on_o | any_twin | full)),
            self.o_drop.p.source.eq(new.source),
            self.o_drop.p.reason.eq(DropReason.DUPLICATE),
            *((self.o_drop.p.squeue.eq(new.squeue),) if self.config.select_estimates else ()),
            self.o_cancel.valid.eq(leave & dead[0]),
            self.o_cancel.p.eq(held[0].source),
        ]
        with m.If(any_twin & ~merged):
            # One twin at most, so the sources can be or-ed.
            m.d.comb += self.o_drop.p.source.eq(
                reduce(or_, (held[k].source & twin[k].replicate(3) for k in range(n)))
            )
        with m.Elif(~merged):
            m.d.comb += self.o_drop.p.reason.eq(DropReason.FULL)
            with m.If(after[n - 1]):
                m.d.comb += self.o_drop.p.source.eq(held[n - 1].source)
                if self.config.select_estimates:
                    m.d.comb += self.o_drop.p.squeue.eq(held[n - 1].squeue)
                with m.If(dead[n - 1]):
                    m.d.comb += self.o_drop.p.reason.eq(DropReason.CANCELLED)

        m.d.comb += [
            Assert(taken <= n),
            Assert(~(new_valid & self.o.valid) | (same_o == same_page(self.o.p, new))),
        ]
        for k in range(n):
            m.d.comb += [
                Assert(valid[k] == (taken > k)),
                Assert(valid[k] | ~dead[k]),
                Assert(
                    ~(new_valid & valid[k])
                    | ((same[k] == same_page(held[k], new)) & (far[k] == farther(held[k], new)))
                ),
                Assert(~(new_valid & earlier[k] & twin[k])),
            ]
            if k:
                m.d.comb += Assert(~valid[k] | (held[k - 1].distance <= held[k].distance))
