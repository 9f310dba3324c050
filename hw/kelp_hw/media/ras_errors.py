# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The endpoint's events as errors of the RAS capability. Latency 1 cycle; one event a cycle."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.cxlio.events import CORRECTABLE, UNCORRECTABLE
from kelp_spec.metadata import Event

from ..cxlio.signatures import error_layout
from ..layouts import Layouts

__all__ = ["RasErrors"]


class RasErrors(wiring.Component):
    """Says of each event which bit of the error status it sets, if any
    (`kelp_spec.cxlio.events.UNCORRECTABLE`, `CORRECTABLE`). The header is the event, as the
    endpoint's layout has it, from bit 0 on. Poison that the mailbox injects is no error.

    Latency: `LATENCY` cycle; interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : In stream of Layouts.event, always taken
    injecting : in
        Of `MediaPort`.
    o : Out stream of error_layout, always taken
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.layout = Layouts(config).event
        super().__init__(
            {
                "i": In(stream.Signature(self.layout, always_ready=True)),
                "injecting": In(1),
                "o": Out(stream.Signature(error_layout(), always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        error, told = self.o.p, self.i.valid
        m.d.sync += [self.o.valid.eq(0), error.eq(0)]
        with m.Switch(self.i.p.code):
            for event, bit in UNCORRECTABLE.items():
                expected = self.injecting if event is Event.POISON_RECEIVED else 0
                with m.Case(event):
                    m.d.sync += [
                        self.o.valid.eq(told & ~expected),
                        error.uncorrectable.eq(1 << bit),
                        error.header.eq(self.i.p.as_value()),
                    ]
            for event, bit in CORRECTABLE.items():
                with m.Case(event):
                    m.d.sync += [self.o.valid.eq(told), error.correctable.eq(1 << bit)]
        return m
