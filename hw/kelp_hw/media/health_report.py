# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the mailbox says of the device's health. Latency 1 cycle; every cycle's events."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.cxlio.events import UNCORRECTABLE, HealthStatus, MediaStatus
from kelp_spec.metadata import Event
from kelp_spec.registers import COUNTERS

from ..cxlio.signatures import health_layout
from ..layouts import Layouts

__all__ = ["HealthReport"]

_NAMES = [name for name, _ in COUNTERS]
_CORRECTED = _NAMES.index("corrected")
#: Of these an operator is to be told; what a host does wrong is none.
_LOSSES = tuple(
    e for e in UNCORRECTABLE if e not in (Event.POISON_RECEIVED, Event.UNKNOWN_OPCODE, Event.FATAL)
)


class HealthReport(wiring.Component):
    """Maintenance is needed once data were lost, replacement after what is fatal: then, until
    reset, all data are lost. Corrected errors are counted, 2³² - 1 at most. Temperature is what a
    sensor of the integrator's says; life used is 0: SRAM and DRAM do not wear.

    Latency: `LATENCY` cycle; interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    corrected : Signal
        Of `o`. No port: for a bench.

    Members
    -------
    i : In stream of Layouts.event, always taken
    counted : in
        The endpoint's `o_counted`.
    ready : in
        Of the endpoint.
    temperature : in
        Degrees Celsius, signed.
    o : out, health_layout
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.layout = Layouts(config).event
        self.corrected = Signal(32)
        super().__init__(
            {
                "i": In(stream.Signature(self.layout, always_ready=True)),
                "counted": In(len(COUNTERS)),
                "ready": In(1),
                "temperature": In(16),
                "o": Out(health_layout()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        o, fatal = self.o, self.o.status[HealthStatus.REPLACEMENT]
        with m.If(self.i.valid):
            with m.Switch(self.i.p.code):
                with m.Case(*_LOSSES):
                    m.d.sync += o.status[HealthStatus.MAINTENANCE].eq(1)
                with m.Case(Event.FATAL):
                    m.d.sync += fatal.eq(1)
        more = self.counted[_CORRECTED] & ~self.corrected.all()
        m.d.sync += self.corrected.eq(self.corrected + more)
        lost = Mux(self.ready, MediaStatus.NORMAL, MediaStatus.NOT_READY)
        m.d.comb += [
            o.media.eq(Mux(fatal, MediaStatus.ALL_DATA_LOST, lost)),
            o.corrected.eq(self.corrected),
            o.temperature.eq(self.temperature),
        ]
        return m
