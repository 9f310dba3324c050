# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Sectors that are to leave, until the host holds nothing of them (docs/coherence.md). One in 2
cycles, offered after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import Coherence, DirectoryOp, DirectoryOutcome
from kelp_spec.config import Config

from ..lib.protected import BlockFault, Fault, fifo_of, gather
from .layouts import CoherenceLayouts

__all__ = ["AskQueue"]


class AskQueue(wiring.Component):
    """Offers each sector that is asked for as an op, anew where the directory says WAIT, and says
    when its token is done: nothing was held, or its recall has ended. In no order.

    Latency: `LATENCY` cycles from `i` to `op`. One sector in `INTERVAL` cycles, so that other ops
    find a place between; `o_unheld` follows `i_result` in the same cycle. Errors: a row beyond
    repair is fatal.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Members
    -------
    i : in, stream of ask
    waits : out
        An op is offered, which `take` takes.
    op : out
    take : in
    i_result : in, always-ready stream of result
        The directory's.
    o_unheld : out, always-ready stream of tokens
    fault : out, BlockFault
    """

    LATENCY = 2
    INTERVAL = 2
    DEPTH = 16
    UNDER_WAY = 4  #: ops in the directory's pipeline that may come back, and one to spare

    def __init__(self, *, config: Config, sizes: Coherence):
        self.config = config
        self.layouts = layouts = CoherenceLayouts(config, sizes)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.ask)),
                "waits": Out(1),
                "op": Out(layouts.op),
                "take": In(1),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "o_unheld": Out(stream.Signature(layouts.token_bits, always_ready=True)),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        layouts, result = self.layouts, self.i_result.p
        m.submodules.queue = queue = fifo_of(
            fifo.SyncFIFOBuffered,
            depth=self.DEPTH,
            shape=layouts.ask,
            protect=self.config.protect,
        )
        first = data.View(layouts.ask, Value.cast(queue.r_data))
        before, asked, ended, again = Signal(), Signal(), Signal(), Signal()
        again_ask = Signal(layouts.ask)
        m.d.sync += before.eq(self.take)
        m.d.comb += [
            self.waits.eq(queue.r_rdy & ~before),
            queue.r_en.eq(self.take),
            self.op.kind.eq(DirectoryOp.ASK),
            self.op.sector.eq(first.sector),
            self.op.token.eq(first.token),
            asked.eq(self.i_result.valid & (result.op.kind == DirectoryOp.ASK)),
            ended.eq(self.i_result.valid & (result.op.kind == DirectoryOp.FINISH)),
            again.eq(asked & (result.outcome == DirectoryOutcome.WAIT)),
            again_ask.sector.eq(result.op.sector),
            again_ask.token.eq(result.op.token),
            # What comes back finds a place: it goes first, and some are kept for it.
            self.i.ready.eq(~again & (queue.level < self.DEPTH - self.UNDER_WAY)),
            queue.w_en.eq(again | (self.i.valid & self.i.ready)),
            Value.cast(queue.w_data).eq(Mux(again, Value.cast(again_ask), Value.cast(self.i.p))),
            self.o_unheld.valid.eq(
                (asked & (result.outcome == DirectoryOutcome.DONE)) | (ended & result.op.asked)
            ),
            self.o_unheld.p.eq(result.op.token),
            Assert(~again | queue.w_rdy),
        ]
        gather(m, self.fault, queue.fault if self.config.protect else Signal(Fault))
        return m
