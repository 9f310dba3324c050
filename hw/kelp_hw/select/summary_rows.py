# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Summaries on the chip (docs/select.md, "Summaries"). One line a cycle, 2 cycles after its page is
asked for."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS

from ..choice.signatures import SelectLayouts
from ..lib.sram import Sram

__all__ = ["SummaryRows"]


class SummaryRows(wiring.Component):
    """Lines of summaries in a memory of the device, at `(squeue · pages + page) · select_rows +
    line`. A line may be read in the cycle after it was taken.

    Latency: `LATENCY` cycles from a page at `i` to its first line at `o`; one line in each cycle
    (`INTERVAL`), and one written. No error cases.

    Parameters
    ----------
    config : Config

    Members
    -------
    squeue, rows, i_line, i, o : as of `SummaryMemory`; `i_line` is always ready
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = c = config
        layouts = SelectLayouts(lines=c.select_lines, rows=c.select_rows, id_bits=c.page_bits)
        super().__init__(
            {
                "squeue": In(c.squeue_bits),
                "rows": In(range(c.select_rows)),
                "i_line": In(stream.Signature(layouts.summary_line)),
                "i": In(stream.Signature(c.page_bits)),
                "o": Out(stream.Signature(layouts.summary_line)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, bits = self.config, self.config.page_bits
        m.submodules.rows = rows = Sram(depth=c.page_words * c.select_rows, shape=LINE_BITS)

        def row(page, line):
            return ((self.squeue << bits) | page) * c.select_rows + line

        line, moves = Signal(range(c.select_rows)), Signal()
        last = line == self.rows
        asked, asked_page, asked_line = Signal(), Signal(bits), Signal.like(line)
        out_free = ~self.o.valid | self.o.ready
        m.d.comb += [
            moves.eq(~asked | out_free),
            rows.read_en.eq(self.i.valid & moves),
            rows.read_address.eq(row(self.i.p, line)),
            self.i.ready.eq(moves & last),
            self.i_line.ready.eq(1),
            rows.write_en.eq(self.i_line.valid),
            rows.write_address.eq(row(self.i_line.p.id, self.i_line.p.line)),
            rows.write_data.eq(self.i_line.p.code),
        ]
        with m.If(moves):
            m.d.sync += [asked.eq(self.i.valid), asked_page.eq(self.i.p), asked_line.eq(line)]
            with m.If(self.i.valid):
                m.d.sync += line.eq(Mux(last, 0, line + 1))
        with m.If(out_free):
            m.d.sync += [
                self.o.valid.eq(asked),
                self.o.p.code.eq(rows.read_data),
                self.o.p.id.eq(asked_page),
                self.o.p.line.eq(asked_line),
                self.o.p.last.eq(asked_line == self.rows),
            ]
        return m
