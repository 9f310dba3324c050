# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""First error and header log of the RAS capability. Latency 1 cycle, every cycle's errors."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.component import Correctable, Uncorrectable, component_registers
from kelp_spec.cxlio.config import CxlIoConfig
from kelp_spec.cxlio.fields import Access as Kind

from .signatures import error_layout

__all__ = ["RasLog", "signal_layout"]


def signal_layout() -> data.StructLayout:
    """ERR_COR, ERR_NONFATAL, ERR_FATAL: messages for a PCIe core to send."""
    return data.StructLayout({"correctable": 1, "non_fatal": 1, "fatal": 1})


class RasLog(wiring.Component):
    """Status bits are set whatever the masks say. The first uncorrectable error that is not masked
    leaves its bit's number (the lowest of one cycle) and its header; both stay until the host
    clears that bit, and the next such error is then the first again, from the cycle of that write
    on: the host has read what was there before. Bits that the registers do not have are ignored.

    Latency: `LATENCY` cycle from an error to first pointer, header and signals; status bits come
    with the error. Interval: `INTERVAL`.

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    i : In stream of error_layout, always taken
    values : in
        Those of the component's registers.
    clears : in
        The status bits that the host clears in this cycle.
    sets : out
        Status bits.
    first, header : out
        First error pointer and header log.
    signals : out
        Pulses: errors that are not masked.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: CxlIoConfig):
        block = component_registers(config)
        kept = block.keys(Kind.RW, Kind.W1C, Kind.W1S, Kind.SHARED)
        super().__init__(
            {
                "i": In(stream.Signature(error_layout(), always_ready=True)),
                "values": In(data.StructLayout(kept)),
                "clears": In(data.StructLayout(block.keys(Kind.W1C))),
                "sets": Out(data.StructLayout(block.keys(Kind.W1C))),
                "first": Out(6),
                "header": Out(512),
                "signals": Out(signal_layout()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        values = self.values
        held, first_status = Signal(), Signal()
        new = {e: self.i.valid & self.i.p.uncorrectable[e] for e in Uncorrectable}
        corrected = {e: self.i.valid & self.i.p.correctable[e] for e in Correctable}
        m.d.comb += [self.sets[f"uncorrectable_{e.name.lower()}"].eq(on) for e, on in new.items()]
        m.d.comb += [
            self.sets[f"correctable_{e.name.lower()}"].eq(on) for e, on in corrected.items()
        ]
        seen, fatal, mild = Signal(17), Signal(17), Signal(7)
        for e, on in new.items():
            name = e.name.lower()
            m.d.comb += seen[e].eq(on & ~values[f"uncorrectable_mask_{name}"])
            m.d.comb += fatal[e].eq(seen[e] & values[f"severity_{name}"])
            with m.If(self.first == e):
                status = f"uncorrectable_{name}"
                m.d.comb += first_status.eq(values[status] & ~self.clears[status])
        for e, on in corrected.items():
            m.d.comb += mild[e].eq(on & ~values[f"correctable_mask_{e.name.lower()}"])
        # `held` comes a cycle after the error, as the status bit does.
        keep = Signal()
        m.d.comb += keep.eq(held & first_status)
        m.d.sync += held.eq(keep)
        told, was_held = Signal(6), Signal()
        m.d.sync += [
            told.eq(self.first),
            was_held.eq(keep),
            Assert(~was_held | (self.first == told), "the first error is another"),
            Assert(~(self.signals.fatal | self.signals.non_fatal) | held, "told, and not logged"),
        ]
        with m.If(~keep & seen.any()):
            m.d.sync += [held.eq(1), self.header.eq(self.i.p.header)]
            for e in reversed(Uncorrectable):
                with m.If(seen[e]):
                    m.d.sync += self.first.eq(e)
        m.d.sync += [
            self.signals.correctable.eq(mild.any()),
            self.signals.fatal.eq(fatal.any()),
            self.signals.non_fatal.eq((seen & ~fatal).any()),
        ]
        return m
