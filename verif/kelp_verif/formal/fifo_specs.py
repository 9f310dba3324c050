# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of everything that queues, for the solver: in order, nothing lost, nothing twice. All
of them by induction."""

from amaranth.hdl import Assert, Cover, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In

from kelp_hw.endpoint import DataFifo
from kelp_hw.lib.bypass_fifo import BypassFifo
from kelp_hw.lib.order_fifo import OrderFifo
from kelp_hw.lib.request_fifo import RequestFifo
from kelp_hw.pipeline import RESERVE
from kelp_spec.config import Config

from .inside import Follow, open_up, row, word_at

__all__ = [
    "BypassFifoContract",
    "DataFifoContract",
    "FifoContract",
    "OrderFifoContract",
    "RequestFifoContract",
    "SMALL",
]

#: The least of everything that a Config may have. What a memory holds is said in data bits alone:
#: an induction would have to know a code word of each row, and tests flip their bits.
SMALL = Config(
    name="proof",
    sessions=2,
    queues=2,
    pages=4,
    half_lines=4,
    frames=(4, 4, 4, 4),
    misses=16,
    parked=16,
    line_slots=8,
    scale_slots=4,
    write_backs=2,
    write_slots=8,
    hot_pages=2,
    hint_lines=2,
    prefetch_slots=4,
    candidates=2,
    protect=False,
)


class FifoContract(wiring.Component):
    """A FIFO of amaranth.lib, under most buffers here: in order, and a word that waits is
    offered after a cycle at the latest."""

    def __init__(self, fifo=SyncFIFO, *, depth: int = 4):
        self.fifo = fifo(width=2, depth=depth)
        super().__init__({"valid": In(1), "data": In(2), "ready": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = self.fifo
        m.d.comb += [fifo.w_en.eq(self.valid), fifo.w_data.eq(self.data), fifo.r_en.eq(self.ready)]
        leaves = fifo.r_rdy & fifo.r_en
        f = Follow(
            m,
            arrives=fifo.w_en & fifo.w_rdy,
            word_in=fifo.w_data,
            leaves=leaves,
            word_out=fifo.r_data,
            most=fifo.depth,
        )
        f.is_in(m, fifo)
        waited = Signal()
        m.d.sync += waited.eq((f.owed != 0) & ~leaves)
        m.d.comb += [
            Assert(~waited | fifo.r_rdy),
            Cover(f.on & (f.ahead == 2) & (f.word == 3)),
            Cover(f.leaving & ~fifo.w_rdy),
        ]
        return m


class OrderFifoContract(wiring.Component):
    """A FIFO whose words wait in a register, behind it at the RAM's output, and in the RAM: in
    order, an offer stays, and a word that waits is offered after a cycle at the latest. What is
    read is never what is written in the same cycle."""

    def __init__(self, fifo=OrderFifo):
        self.fifo = fifo(width=2, depth=4)
        super().__init__({"valid": In(1), "data": In(2), "ready": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = q = self.fifo
        rows = open_up(q).rows
        memory, begin, waiting = open_up(open_up(rows).rows).memory, rows.read_address, Signal(2)
        m.d.comb += [
            q.i.valid.eq(self.valid),
            q.i.p.eq(self.data),
            q.o.ready.eq(self.ready),
            waiting.eq(rows.write_address - begin),
        ]
        leaves = q.o.valid & q.o.ready
        f = Follow(
            m,
            arrives=q.i.valid & q.i.ready,
            word_in=q.i.p,
            leaves=leaves,
            word_out=q.o.p,
            most=q.depth,
        )
        in_ram = Signal(2)
        m.d.comb += in_ram.eq(begin + f.ahead - q.o.valid - q.ahead)
        word = Mux(
            q.o.valid & (f.ahead == 0),
            q.o.p,
            Mux(q.ahead & (f.ahead == 1), rows.read_data, row(m, memory, in_ram)),
        )
        waited = Signal()
        m.d.sync += waited.eq((f.owed != 0) & ~leaves)
        m.d.comb += [
            Assert((f.owed == q.level) & (q.level <= q.depth)),
            Assert(q.level == waiting + q.ahead + q.o.valid),
            Assert(~q.ahead | q.o.valid),
            Assert(q.ahead | (waiting == 0) | ((waiting == 1) & (q.last == row(m, memory, begin)))),
            Assert(~f.on | (word == f.word)),
            Assert(~(rows.read_en & rows.write_en & (begin == rows.write_address))),
            Assert(~waited | q.o.valid),
            Cover(f.on & (f.ahead == 2) & (f.word == 3)),
            Cover(f.leaving & ~q.i.ready),
        ]
        return m


def _driven(m: Module, q, given) -> Follow:
    """A FIFO of two bits' words that is offered one only where it has a place, by the ports
    `enter`, `word` and `ready` of `given`; one word followed."""
    m.submodules.fifo = q
    m.d.comb += [
        q.i.valid.eq(given.enter & (q.level != q.depth)),
        q.i.p.eq(given.word),
        q.o.ready.eq(given.ready),
    ]
    f = Follow(
        m,
        arrives=q.i.valid,
        word_in=q.i.p,
        leaves=q.o.valid & q.o.ready,
        word_out=q.o.p,
        most=q.depth,
    )
    f.is_in(m, q)
    return f


class RequestFifoContract(wiring.Component):
    """What comes only where there is a place leaves in order, as it came and once; what waits is
    offered."""

    def __init__(self, fifo=RequestFifo):
        self.fifo = fifo(depth=4, shape=2)
        super().__init__({"enter": In(1), "word": In(2), "ready": In(1)})

    def elaborate(self, platform):
        m, q = Module(), self.fifo
        f = _driven(m, q, self)
        m.d.comb += [
            Assert(q.o.valid == (f.owed != 0)),
            Cover(q.level == q.depth),
            Cover(f.leaving & (f.ahead == 0) & f.on),
        ]
        return m


class BypassFifoContract(wiring.Component):
    """What comes only where there is a place leaves in order, as it came and once, straight on when
    nothing waits; an offer stays. `row` is the oldest of what waits: at once, or when `registered`
    in the second cycle after the one before it left."""

    def __init__(self, fifo=BypassFifo, *, registered: bool = False):
        self.fifo = fifo(depth=4, shape=2, registered=registered)
        super().__init__({"enter": In(1), "word": In(2), "ready": In(1)})

    def elaborate(self, platform):
        m, q = Module(), self.fifo
        f = _driven(m, q, self)
        waited = Signal(range(3))
        m.d.sync += waited.eq(
            Mux((q.level == 0) | (q.row_valid & self.ready), 0, waited + (waited != 2))
        )
        m.d.comb += [
            Assert(~q.row_valid | ((q.level != 0) & (q.row == word_at(m, q, 0)))),
            Assert((waited < (1 if q.registered else 0)) | (q.level == 0) | q.row_valid),
            Cover(q.level == q.depth),
            Cover(f.leaving & q.i.valid & (q.level == 0)),
        ]
        return m


class DataFifoContract(wiring.Component):
    """The FIFO between M3 and the data path as M0 uses it: ops come for which there was credit
    `lag` cycles before. It never overflows, an op goes straight on when nothing waits, an offer
    stays, and everything leaves once and in order."""

    #: the most that the promise covers, and what it is from M0's look, a cycle late, to `i`
    LAG = RESERVE - 1

    def __init__(self, fifo=DataFifo, *, lag: int = LAG):
        self.fifo, self.lag = fifo(config=SMALL), lag
        super().__init__({"enter": In(1), "token": In(4), "frame": In(2), "ready": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = q = self.fifo
        inner = open_up(q).fifo
        coming = Signal(self.lag)
        m.d.sync += coming.eq((coming << 1) | (self.enter & q.ready))
        m.d.comb += [
            q.i.valid.eq(coming[-1]),
            q.i.p.token.eq(self.token),
            q.i.p.frame.eq(self.frame),
            q.o.ready.eq(self.ready),
        ]
        f = Follow(
            m,
            arrives=q.i.valid,
            word_in=q.i.p,
            leaves=q.o.valid & q.o.ready,
            word_out=q.o.p,
            most=q.DEPTH,
        )
        f.is_in(m, inner)
        # What is on its way has a place.
        ahead = 0
        for bit in coming:
            ahead = ahead + bit
        m.d.comb += Assert(inner.level + ahead <= q.DEPTH)
        m.d.comb += [
            Assert(q.o.valid | (~q.i.valid & (f.owed == 0))),
            Cover(inner.level == q.DEPTH),
            Cover(f.leaving & q.i.valid & (inner.level == 0)),
        ]
        return m
