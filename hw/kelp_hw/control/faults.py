# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the check bits of the device's memories found: counts, events, and the fatal latch (spec §9,
docs/protection.md). Faults in every cycle: `fatal` is combinational, counts and events follow after
1 cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Event, Protected

from ..layouts import Layouts
from ..lib.protected import BlockFault

__all__ = ["FaultMonitor"]


class FaultMonitor(wiring.Component):
    """Gathers what every block says of its memories. `fatal` rises in the cycle in which a block
    says so, a cycle after the word was used, and stays until reset.

    Latency: `LATENCY` (0) from `faults` to `fatal`, `EVENT_LATENCY` to the others, one event a
    cycle. Faults in each cycle (`INTERVAL`). The first fatal fault alone is an event FATAL; of
    several in its cycle it names the first block in the order of `Protected`. A poisoned word is
    counted and an event WORD_LOST, whose `argument` is the block. Those of several blocks in one
    cycle, or in that of the FATAL, follow one after the other in that order; another one of a block
    that still waits is one with it, as two of a block in one cycle are. Words that are corrected in
    one cycle count as one.

    Parameters
    ----------
    config : Config

    Members
    -------
    faults : in, a BlockFault of each block of `Protected`
    fatal : out
        No data may be answered.
    corrected, uncorrected : out
        A word was corrected; a word was beyond repair.
    o_event : out, always-ready stream of event
    """

    LATENCY = 0
    EVENT_LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(
            {
                "faults": In(BlockFault).array(len(Protected)),
                "fatal": Out(1),
                "corrected": Out(1),
                "uncorrected": Out(1),
                "o_event": Out(stream.Signature(Layouts(config).event, always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        corrected, poisoned, fatal = (
            Cat(fault[kind] for fault in self.faults) for kind in ("corrected", "poisoned", "fatal")
        )
        lasting, first, event = Signal(), Signal(), self.o_event
        waiting, due, told = (
            Signal(len(Protected), name=name) for name in ("waiting", "due", "told")
        )
        m.d.comb += [
            self.fatal.eq(lasting | fatal.any()),
            first.eq(fatal.any() & ~lasting),
            due.eq(waiting | poisoned),
        ]
        m.d.sync += [
            lasting.eq(self.fatal),
            waiting.eq(due & ~told),
            self.corrected.eq(corrected.any()),
            self.uncorrected.eq(fatal.any() | told.any()),
            event.valid.eq(first | told.any()),
            event.p.code.eq(Event.WORD_LOST),
        ]
        for block in reversed(Protected):
            with m.If(due[block]):
                m.d.comb += told.eq(Mux(first, 0, 1 << block))
                m.d.sync += event.p.argument.eq(block)
        with m.If(first):
            m.d.sync += event.p.code.eq(Event.FATAL)
            for block in reversed(Protected):
                with m.If(fatal[block]):
                    m.d.sync += event.p.argument.eq(block)
        return m
