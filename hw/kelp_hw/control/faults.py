# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the check bits of the device's memories found: counts, events, and the fatal latch (spec §9,
docs/protection.md). Faults in every cycle: `fatal` is combinational, counts and events follow after
1 cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
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

    Latency: `LATENCY` (0) from `faults` to `fatal`, `EVENT_LATENCY` to the others. Faults in each
    cycle (`INTERVAL`): those of one kind in one cycle are one, of the first block in the order of
    `Protected`. The first fatal fault alone is an event FATAL, each poisoned word an UNCORRECTED
    one; `argument` is the block. A poisoned word in the cycle of that FATAL has none.

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
        lasting, event = Signal(), self.o_event
        m.d.comb += self.fatal.eq(lasting | fatal.any())
        m.d.sync += [
            lasting.eq(self.fatal),
            self.corrected.eq(corrected.any()),
            self.uncorrected.eq((fatal | poisoned).any()),
            event.valid.eq((fatal.any() & ~lasting) | poisoned.any()),
            event.p.code.eq(Event.UNCORRECTED),
        ]
        for block in reversed(Protected):
            with m.If(poisoned[block]):
                m.d.sync += event.p.argument.eq(block)
        with m.If(fatal.any() & ~lasting):
            m.d.sync += event.p.code.eq(Event.FATAL)
            for block in reversed(Protected):
                with m.If(fatal[block]):
                    m.d.sync += event.p.argument.eq(block)
        return m
