# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Host addresses to device addresses, by the committed HDM decoders or the DVSEC range. Latency 2
cycles, one address a cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import UNIT_BYTES, CxlIoConfig

from .signatures import UNIT_BITS, window_layout

__all__ = ["HdmDecode", "LINE_BITS", "device_line_layout"]

LINE_BITS = 46  #: of the address of a line in a CXL.mem request
_UNIT_LINES = (UNIT_BYTES // 64).bit_length() - 1
_LINES_OF_256 = 2  #: bits of 256 bytes, in lines


def device_line_layout(config: CxlIoConfig) -> data.StructLayout:
    """A line of the device, or that the host's address is none of its windows'."""
    return data.StructLayout({"line": (config.bytes // 64 - 1).bit_length(), "hit": 1})


class HdmDecode(wiring.Component):
    """The device address of each line that a host asks for.

    With the decoders enabled a line belongs to the decoder whose window it is in; its offset
    without the bits that choose the way is its place in that decoder's memory. Otherwise, with
    CXL.mem enabled, the DVSEC range decodes. `hit` is 0 for a line in no window.

    Latency: `LATENCY` cycles; interval: `INTERVAL`. Windows must not change while requests to
    them are under way: a host quiesces before it uncommits.

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    i : In stream
        A line's host address / 64.
    o : Out stream {line, hit}
    windows : in
        Those of HdmDecoders.
    enable : in
        Global enable of the decoders.
    mem_enable : in
        CXL.mem enable of DVSEC 0.
    range_base : in
        Base of the DVSEC range in units of 256 MiB.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: CxlIoConfig):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(LINE_BITS)),
                "o": Out(stream.Signature(device_line_layout(config))),
                "windows": In(data.ArrayLayout(window_layout(config), config.decoders)),
                "enable": In(1),
                "mem_enable": In(1),
                "range_base": In(UNIT_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        move, full = Signal(), Signal()
        m.d.comb += [
            move.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(move | ~full),
        ]
        unit, below = self.i.p[_UNIT_LINES:], self.i.p[:_UNIT_LINES]
        windows = [
            (w.on & self.enable, w.base, w.size, w.dpa, w.ways, w.granularity) for w in self.windows
        ]
        alone = self.mem_enable & ~self.enable
        windows.append((alone, self.range_base, self.config.capacity, 0, 0, 0))
        hit, hits = Signal(), Signal(len(windows))
        dpa = Signal(len(self.windows[0].dpa))
        offset, ways, granularity = Signal(LINE_BITS), Signal(2), Signal(3)
        with m.If(self.i.ready):
            m.d.sync += [full.eq(self.i.valid), hit.eq(0)]
            for i, (on, base, size, start, w, g) in enumerate(windows):
                away = Signal(UNIT_BITS + 1)
                m.d.comb += away.eq(unit - base)
                m.d.comb += hits[i].eq(on & (unit >= base) & (away < size))
                with m.If(hits[i]):
                    m.d.sync += [
                        hit.eq(1),
                        offset.eq(Cat(below, away)),
                        dpa.eq(start),
                        ways.eq(w),
                        granularity.eq(g),
                    ]
        m.d.sync += Assert(
            ~(self.i.valid & self.i.ready) | ((hits & (hits - 1)[: len(hits)]) == 0),
            "a line in two windows",
        )
        # The offset without `ways` bits above the granule.
        squeezed = Array(self._without(offset, ways, _LINES_OF_256 + g) for g in range(8))
        with m.If(move):
            m.d.sync += [
                self.o.valid.eq(full),
                self.o.p.hit.eq(hit),
                self.o.p.line.eq(squeezed[granularity] + Cat(Const(0, _UNIT_LINES), dpa)),
            ]
        return m

    @staticmethod
    def _without(offset, ways, at):
        low, high = offset[:at], offset[at:]
        one = Mux(ways[0], high[1:], high)
        return Cat(low, Mux(ways[1], one[2:], one))
