# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The performance monitor: registers, and counters of what happens in each cycle. An event is
counted after 2 cycles; every event of every cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import CxlIoConfig
from kelp_spec.cxlio.pmu import COUNTER_BITS, EVENT_BITS, NO_FILTER, pmu_map, pmu_registers

from .register_bank import RegisterBank
from .signatures import Access

__all__ = ["Pmu", "counted_layout"]

_DECODER_BITS = 4


def counted_layout(config: CxlIoConfig) -> data.ArrayLayout:
    """For each event capability: the events of this cycle by their bits, and the HDM decoder that
    they belong to."""
    pmu = pmu_map(config)
    each = data.StructLayout({"events": EVENT_BITS, "decoder": _DECODER_BITS})
    return data.ArrayLayout(each, len(pmu.capabilities))


class Pmu(wiring.Component):
    """Counters as docs/cxl.md, "The performance monitor", has them. One that is enabled and not
    frozen adds how many of its events happened in the cycle; with a threshold above 1, or with
    invert or edge, one for each cycle in which the condition holds, or begins to.

    Latency: `LATENCY` cycles from an event to its count, 1 from `lane` to `read_data`. Interval:
    `INTERVAL`.

    Parameters
    ----------
    config : CxlIoConfig
        One with a monitor.

    Members
    -------
    access : In Access
    counted : in
        What happened, by capability.
    interrupt : out
        Pulse: a counter with `irq` has overflowed.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: CxlIoConfig):
        if not config.pmu:
            raise ValueError(f"configuration {config.name!r} has no monitor; legal: one with pmu")
        self.config = config
        super().__init__(
            {
                "access": In(Access(lane_bits=9)),
                "counted": In(counted_layout(config)),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        pmu = pmu_map(self.config)
        m.submodules.bank = bank = RegisterBank(block=pmu_registers(self.config))
        wiring.connect(m, wiring.flipped(self.access), bank.access)
        n = len(pmu.counters)
        frozen, over, stops, tells = bank.values.freeze, Signal(n), Signal(n), Signal(n)
        for i, what in enumerate(pmu.counters):
            p = f"counter{i}"
            add = self._added(m, bank, p, what)
            running = Signal(name=f"running{i}")
            value, adds = bank.values[p], bank.adds[p]
            m.d.comb += [
                bank.locks[p + "_running"].eq(~frozen[i]),
                running.eq(bank.values[p + "_config_enable"] & ~frozen[i]),
                adds.eq(Mux(running, add, 0)),
                over[i].eq((value + adds)[COUNTER_BITS]),
                stops[i].eq(over[i] & bank.values[p + "_config_stop"]),
                tells[i].eq(over[i] & bank.values[p + "_config_irq"]),
            ]
        m.d.comb += [
            bank.sets.overflow.eq(over),
            bank.load.eq(stops.any()),
            bank.loads.freeze.eq(~Cat(frozen & 0)),
        ]
        m.d.sync += [
            self.interrupt.eq(tells.any()),
            Assert((over & frozen) == 0, "a frozen counter overflows"),
        ]
        return m

    def _added(self, m, bank, p, what):
        """What counter `p` would add for the events of the cycle before."""
        values = bank.values
        if what is None:
            # Capability 0 is all that is offered; another index counts nothing.
            here = self.counted[0]
            events = Mux(values[p + "_config_index"] == 0, here.events, 0)
            chosen = events & values[p + "_config_events"]
        else:
            here = self.counted[what[0]]
            chosen = here.events & (1 << what[1])
        wanted = values[p + "_filter"][:16]
        let = (wanted == NO_FILTER) | (wanted == here.decoder)
        number, threshold = Signal(6), values[p + "_config_threshold"]
        m.d.sync += number.eq(Mux(let, sum(chosen[bit] for bit in range(EVENT_BITS)), 0))
        holds, held, edge = Signal(), Signal(), values[p + "_config_edge"]
        invert = values[p + "_config_invert"]
        m.d.comb += holds.eq((number >= Mux(threshold == 0, 1, threshold)) ^ invert)
        m.d.sync += held.eq(holds)
        each = invert | edge | (threshold > 1)
        return Mux(each, holds & ~(edge & held), number)
