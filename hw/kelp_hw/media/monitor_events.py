# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The endpoint's counts as the performance monitor's vendor events. Latency none while one thing
happens at a time; what happens at once is told one a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.cxlio.pmu import EVENT_BITS, VENDOR_COUNTERS
from kelp_spec.registers import COUNTERS

__all__ = ["MonitorEvents"]


class MonitorEvents(wiring.Component):
    """Event `e` of the vendor's group once for each of the counters `VENDOR_COUNTERS[e]` that
    counts one more. Several of them in a cycle are told one after another: none is lost.

    Latency: `LATENCY`; interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    counted : in
        The endpoint's `o_counted`.
    o : out
        Events of this cycle by their bits.
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__({"counted": In(len(COUNTERS)), "o": Out(EVENT_BITS)})

    def elaborate(self, platform):
        m = Module()
        names = [name for name, _ in COUNTERS]
        for event, counters in VENDOR_COUNTERS.items():
            pulses = [self.counted[names.index(name)] for name in counters]
            if len(pulses) == 1:
                m.d.comb += self.o[event].eq(pulses[0])
                continue
            # A prefetch source that tells in each cycle would be another engine than this one's.
            owed, due = Signal(6, name=f"owed_{event}"), Signal(7, name=f"due_{event}")
            m.d.comb += [due.eq(owed + sum(pulses)), self.o[event].eq(due != 0)]
            m.d.sync += [
                owed.eq(Mux(due == 0, 0, due - 1)),
                Assert(due <= 1 << len(owed), "more events than can be told"),
            ]
        return m
