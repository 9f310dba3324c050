# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The prefetch FIFO's contract, for the solver: nothing lost, nothing twice, nearest first, first
come first served among equals."""

from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.layouts import DropReason
from kelp_hw.prefetch.fifo import PrefetchFifo
from kelp_spec.config import Config

__all__ = ["CONFIG", "PrefetchFifoContract"]

#: Four slots, two sessions, sixteen pages: small enough for induction, large enough for every case
#: of the shift register.
CONFIG = Config(
    name="queue_proof",
    sessions=2,
    queues=2,
    pages=4,
    half_lines=4,
    frames=(4, 4, 4, 4),
    prefetch_slots=4,
)


def _page_of(candidate):
    return candidate.squeue, candidate.page


def _same(a, b):
    return (a[0] == b[0]) & (a[1] == b[1])


class PrefetchFifoContract(wiring.Component):
    """`fifo` is the class to prove. Inputs are free; the receiver may stall for ever."""

    def __init__(self, fifo=PrefetchFifo):
        self.fifo = fifo(config=CONFIG)
        super().__init__(
            {
                "i": In(self.fifo.candidate),
                "i_valid": In(1),
                "o": Out(stream.Signature(self.fifo.candidate)),
                "cancel": In(CONFIG.sessions),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = q = self.fifo
        m.d.comb += [
            q.i.p.eq(self.i),
            q.i.valid.eq(self.i_valid),
            q.cancel.eq(self.cancel),
            self.o.valid.eq(q.o.valid),
            self.o.p.eq(q.o.p),
            q.o.ready.eq(self.o.ready),
        ]
        chosen = AnyConst(CONFIG.squeue_bits), AnyConst(CONFIG.page_bits)
        self._account(m)
        self._pages(m, chosen)
        self._nearest(m)
        self._in_order(m, chosen)
        m.d.comb += [
            Cover(q.o_drop.valid & (q.o_drop.p.reason == DropReason.FULL)),
            Cover(q.o_drop.valid & (q.o_drop.p.reason == DropReason.DUPLICATE) & ~q.merged),
            Cover(q.o_cancel.valid),
        ]
        return m

    def _account(self, m):
        """Each candidate taken is in the FIFO, or left once, or was reported once. Sources stand
        for candidates."""
        q, source, owed = self.fifo, AnyConst(3), Signal(8)
        m.d.sync += owed.eq(
            owed
            + (self.i_valid & (self.i.source == source))
            - (q.o.valid & q.o.ready & (q.o.p.source == source))
            - (q.o_drop.valid & (q.o_drop.p.source == source))
            - (q.o_cancel.valid & (q.o_cancel.p == source))
        )
        here = sum(q.valid[k] & (q.held[k].source == source) for k in range(q.slots)) + (
            q.o.valid & (q.o.p.source == source)
        )
        here += q.new_valid & (q.new.source == source)
        m.d.comb += Assert(owed == here)

    def _pages(self, m, chosen):
        """No page is there twice. A chosen page comes only from `i`, and goes only by `o` or with a
        report."""
        q = self.fifo
        live = [(q.valid[k] & ~q.dead[k], _page_of(q.held[k])) for k in range(q.slots)] + [
            (q.o.valid, _page_of(q.o.p))
        ]
        for k, (valid, page) in enumerate(live):
            for other_valid, other in live[:k]:
                m.d.comb += Assert(~(valid & other_valid & _same(page, other)))

        present, was_present, came, went = Signal(), Signal(), Signal(), Signal()
        copies = sum((q.valid[k] & _same(_page_of(q.held[k]), chosen)) for k in range(q.slots)) + (
            q.o.valid & _same(_page_of(q.o.p), chosen)
        )
        copies += q.new_valid & _same(_page_of(q.new), chosen)
        m.d.comb += present.eq(copies != 0)
        m.d.sync += [
            was_present.eq(present),
            came.eq(self.i_valid & _same(_page_of(self.i), chosen)),
            went.eq(
                (q.o.valid & q.o.ready & _same(_page_of(q.o.p), chosen))
                | q.o_cancel.valid
                | (q.o_drop.valid & (q.o_drop.p.reason != DropReason.DUPLICATE))
            ),
        ]
        m.d.comb += [Assert(~present | was_present | came), Assert(present | ~was_present | went)]

    def _nearest(self, m):
        """What leaves is nearest: nothing that was queued in the cycle before it came to `o` was
        nearer."""
        q, nearest, nearest_valid = self.fifo, Signal(6), Signal()
        with m.If(~q.o.valid | q.o.ready):
            least = q.held[0].distance
            for k in range(1, q.slots):
                least = Mux(q.valid[k] & (q.held[k].distance < least), q.held[k].distance, least)
            m.d.sync += [nearest.eq(least), nearest_valid.eq(q.valid[0])]
        m.d.comb += Assert(~(q.o.valid & nearest_valid) | (q.o.p.distance == nearest))

    def _in_order(self, m, a):
        """Two pages, `a` and another, at one distance: while both are queued, the one that came
        first is ahead."""
        q, b = self.fifo, (AnyConst(CONFIG.squeue_bits), AnyConst(CONFIG.page_bits))
        m.d.comb += Assume(~_same(a, b))
        at_a = [q.valid[k] & ~q.dead[k] & _same(_page_of(q.held[k]), a) for k in range(q.slots)]
        at_b = [q.valid[k] & ~q.dead[k] & _same(_page_of(q.held[k]), b) for k in range(q.slots)]
        first, both = Signal(), Signal()
        distance_a = sum(Mux(at_a[k], q.held[k].distance, 0) for k in range(q.slots))
        distance_b = sum(Mux(at_b[k], q.held[k].distance, 0) for k in range(q.slots))
        m.d.comb += both.eq(sum(at_a).any() & sum(at_b).any() & (distance_a == distance_b))
        b_enters = (
            q.new_valid
            & ~q.merged
            & _same(_page_of(q.new), b)
            & sum(at_a).any()
            & (q.new.distance == distance_a)
        )
        a_enters = q.new_valid & ~q.merged & _same(_page_of(q.new), a)
        # `first`: b came after a at this distance. It is asked only while both are still there.
        m.d.sync += first.eq(Mux(b_enters, 1, first & both & ~a_enters))
        for k in range(q.slots):
            for j in range(k):
                m.d.comb += Assert(~(first & both & at_b[j] & at_a[k]))
        m.d.comb += Cover(first & both & at_b[2])
