# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Summaries of all pages, and which of them still hold (docs/select.md, "Summaries"). One line a
cycle out, 2 cycles after its page is asked for."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS

from ..choice.signatures import SelectLayouts
from ..layouts import Layouts
from ..lib.sram import Sram

__all__ = ["SummaryStore"]


class SummaryStore(wiring.Component):
    """A summary for each page of the device, and for how many lines of a token it holds, if at all:
    a write of a key clears that, and so does the scrub of a page, so no summary of a former owner
    is looked at, nor a line of one that was made of fewer.

    Latency: `LATENCY` cycles from a page at `i` to its first line at `o`; one line in each cycle
    (`INTERVAL`). A look is answered in the next cycle, of `ROW` pages. A summary is set and cleared
    in a cycle each, never in the same one. After reset `ready` rises when no summary holds,
    `config.page_words / ROW` cycles later.
    No error cases; a summary only advises, and has no check bits.

    Parameters
    ----------
    config : Config

    Members
    -------
    squeue, token_lines, rows : in
        Of the pages at `i`, `i_line`, `look` and `set`; they hold still meanwhile. `rows` is one
        less than the lines of a summary.
    i_clear : in, always-ready stream of page
    look, look_row, holds : in, in, out
        `holds` says of each page whose number's upper bits were looked at in the cycle before
        whether its summary does, for tokens of `token_lines`; bit k of page `ROW · look_row + k`.
    set, set_page : in
        The summary of `set_page` holds for them; in a cycle without a page at `i_clear`.
    i_line : in, always-ready stream of summary_line
        Lines of a summary; `id` is the page.
    i : in, stream of pages
    o : out, stream of summary_line
    ready : out
    """

    LATENCY = 2
    INTERVAL = 1
    ROW = 8  #: pages that are looked at together

    def __init__(self, *, config: Config):
        self.config = c = config
        self.layouts = SelectLayouts(lines=c.select_lines, rows=c.select_rows, id_bits=c.page_bits)
        line = self.layouts.summary_line
        self.row_bits = (self.ROW - 1).bit_length()
        super().__init__(
            {
                "squeue": In(c.squeue_bits),
                "token_lines": In(range(c.select_lines)),
                "rows": In(range(c.select_rows)),
                "i_clear": In(stream.Signature(Layouts(c).page, always_ready=True)),
                "look": In(1),
                "look_row": In(c.page_bits - self.row_bits),
                "holds": Out(self.ROW),
                "set": In(1),
                "set_page": In(c.page_bits),
                "i_line": In(stream.Signature(line, always_ready=True)),
                "i": In(stream.Signature(c.page_bits)),
                "o": Out(stream.Signature(line)),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, bits = self.config, self.config.page_bits
        m.submodules.rows = rows = Sram(depth=c.page_words * c.select_rows, shape=LINE_BITS)
        held = [
            Sram(depth=c.page_words // self.ROW, shape=range(c.select_lines + 1), block=True)
            for _ in range(self.ROW)
        ]

        def page_word(squeue, page):
            return (squeue << bits) | page

        # - which of them hold ---------------------------------------------------------------------
        scrub = Signal(range(c.page_words // self.ROW))
        clear = self.i_clear
        word = Signal(range(c.page_words))
        m.d.comb += word.eq(
            Mux(
                clear.valid,
                page_word(clear.p.squeue, clear.p.page),
                page_word(self.squeue, self.set_page),
            )
        )
        for k, lines in enumerate(held):
            m.submodules[f"lines_{k}"] = lines
            own = (clear.valid | self.set) & (word[: self.row_bits] == k)
            m.d.comb += [
                lines.read_en.eq(self.look),
                lines.read_address.eq(Cat(self.look_row, self.squeue)),
                self.holds[k].eq(lines.read_data == self.token_lines + 1),
                lines.write_en.eq(~self.ready | own),
                lines.write_data.eq(Mux(self.set, self.token_lines + 1, 0)),
                lines.write_address.eq(Mux(self.ready, word[self.row_bits :], scrub)),
            ]
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
            with m.If(scrub == c.page_words // self.ROW - 1):
                m.d.sync += self.ready.eq(1)
        m.d.sync += [
            Assert(self.ready | ~clear.valid, "a key is written before the scrub is over"),
            Assert(~self.set | (self.ready & ~clear.valid), "two changes of summaries at once"),
        ]

        # - summaries ------------------------------------------------------------------------------
        def row(page, line):
            return page_word(self.squeue, page) * c.select_rows + line

        line, moves = Signal(range(c.select_rows)), Signal()
        last = line == self.rows
        asked, asked_page, asked_line = Signal(), Signal(bits), Signal.like(line)
        out_free = ~self.o.valid | self.o.ready
        m.d.comb += [
            moves.eq(~asked | out_free),
            rows.read_en.eq(self.i.valid & moves),
            rows.read_address.eq(row(self.i.p, line)),
            self.i.ready.eq(moves & last),
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
