# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The registers at the pads between the SDRAM controller and its chip: 1 cycle each way."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import io, wiring
from amaranth.lib.wiring import In

from .sdram_core import SdramPins

__all__ = ["SdramPads"]

#: `SdramPins` → the name of the chip's port in amaranth-boards, whose ports know which of them are
#: active low.
_OUTPUTS = {
    "cke": "clk_en",
    "cs_n": "cs",
    "ras_n": "ras",
    "cas_n": "cas",
    "we_n": "we",
    "ba": "ba",
    "a": "a",
    "dqm": "dqm",
}


class SdramPads(wiring.Component):
    """Everything but the clock leaves from a register in its pad and is taken by one, so that all
    leave together, at a time that no placement changes.

    Latency: `LATENCY` cycle each way, which :class:`.sdram_core.SdramCore` counts on; a value each
    `INTERVAL` cycles.

    Parameters
    ----------
    ports : object
        The chip's ports by amaranth-boards' names: `clk_en`, `cs`, `ras`, `cas`, `we`, `ba`, `a`,
        `dqm`, `dq`.

    Members
    -------
    pins : In(SdramPins)
        The controller's.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, ports):
        self._ports = ports
        super().__init__({"pins": In(SdramPins())})

    def elaborate(self, platform):
        m = Module()
        for ours, theirs in _OUTPUTS.items():
            m.submodules[theirs] = pad = io.FFBuffer("o", getattr(self._ports, theirs))
            value = getattr(self.pins, ours)
            # a buffer's 1 is active, whatever the pin's is
            m.d.comb += pad.o.eq(~value if ours.endswith("_n") else value)
        m.submodules.dq = dq = io.FFBuffer("io", self._ports.dq)
        m.d.comb += [dq.o.eq(self.pins.dq_o), dq.oe.eq(self.pins.dq_oe), self.pins.dq_i.eq(dq.i)]
        return m
