# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which pages have a summary that still holds, and where summaries lie (docs/select.md,
"Summaries"). A look at eight pages a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config

from ..choice.signatures import SelectLayouts
from ..layouts import Layouts
from ..lib.protected import BlockFault
from ..lib.sram import Sram
from .summary_memory import SummaryMemory, failed_layout, summary_axi
from .summary_rows import SummaryRows

__all__ = ["SummaryStore"]


class SummaryStore(wiring.Component):
    """A summary for each page of the device, and for how many lines of a token it holds, if at all:
    a write of a key clears that, and so does the scrub of a page, so no summary of a former owner
    is looked at, nor a line of one that was made of fewer.

    Latency: `LATENCY` cycles from a page at `i` to its first line at `o`, and memory's where
    `config.select_port`; one line in each cycle (`INTERVAL`). A look is answered in the next cycle,
    of `ROW` pages. A summary is set and cleared in a cycle each, never in the same one. After reset
    `ready` rises when no summary holds, `config.page_words / ROW` cycles later.
    Errors: a summary of which memory answered a line with an error does not hold any more, but for
    one that was to be read while the one before is not cleared yet, because keys are written in
    each cycle: it is found out anew. Where one was to be written, all are zeros for the SELECT
    under way. A summary only advises, and has no check bits.

    Parameters
    ----------
    config : Config

    Members
    -------
    squeue, token_lines, rows : in
        Of the pages at `i`, `i_line`, `look` and `set`; they hold still meanwhile, and until lines
        are `settled`. `rows` is one less than the lines of a summary.
    begins : in
        A SELECT begins.
    i_clear : in, always-ready stream of page
    look, look_row, holds : in, in, out
        `holds` says of each page whose number's upper bits were looked at in the cycle before
        whether its summary does, for tokens of `token_lines`; bit k of page `ROW · look_row + k`.
    set, set_page : in
        The summary of `set_page` holds for them; in a cycle without a page at `i_clear`.
    i_line : in, stream of summary_line
        Lines of a summary; `id` is the page.
    settled : out
        Every line that was taken may be read, or its summary does not hold.
    i : in, stream of pages
        While lines are settled.
    o : out, stream of summary_line
    ready : out
    axi, o_failed, fault : as SummaryMemory's, with `config.select_port`
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
                "begins": In(1),
                "i_clear": In(stream.Signature(Layouts(c).page, always_ready=True)),
                "look": In(1),
                "look_row": In(c.page_bits - self.row_bits),
                "holds": Out(self.ROW),
                "set": In(1),
                "set_page": In(c.page_bits),
                "i_line": In(stream.Signature(line)),
                "settled": Out(1),
                "i": In(stream.Signature(c.page_bits)),
                "o": Out(stream.Signature(line)),
                "ready": Out(1),
            }
            | (self._port(c) if c.select_port else {})
        )

    @staticmethod
    def _port(config: Config) -> dict:
        failed = stream.Signature(failed_layout(config), always_ready=True)
        return {
            "axi": Out(summary_axi(config)),
            "o_failed": Out(failed),
            "fault": Out(BlockFault),
        }

    def elaborate(self, platform):
        m = Module()
        c, bits = self.config, self.config.page_bits
        rows = SummaryMemory(config=c) if c.select_port else SummaryRows(config=c)
        m.submodules.rows = rows
        connect(m, flipped(self.i_line), rows.i_line)
        connect(m, flipped(self.i), rows.i)
        connect(m, rows.o, flipped(self.o))
        m.d.comb += [rows.squeue.eq(self.squeue), rows.rows.eq(self.rows)]
        held = [
            Sram(depth=c.page_words // self.ROW, shape=range(c.select_lines + 1), block=True)
            for _ in range(self.ROW)
        ]

        def page_word(squeue, page):
            return (squeue << bits) | page

        # - which of them hold ---------------------------------------------------------------------
        scrub = Signal(range(c.page_words // self.ROW))
        clear = self.i_clear
        word, drops = Signal(range(c.page_words)), Signal()
        m.d.comb += word.eq(
            Mux(
                clear.valid,
                page_word(clear.p.squeue, clear.p.page),
                page_word(self.squeue, self.set_page),
            )
        )
        if c.select_port:
            self._port_of(m, rows, word, drops)
        else:
            m.d.comb += self.settled.eq(1)
        for k, lines in enumerate(held):
            m.submodules[f"lines_{k}"] = lines
            own = (clear.valid | self.set | drops) & (word[: self.row_bits] == k)
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
        return m

    def _port_of(self, m, rows, word, drops):
        """Memory's port, and what it lost: summaries that are cleared when nothing else changes
        one. One that was not written keeps lines from settling, and nobody reads what was there
        before, which may be a former owner's; one that was not read is only read once more."""
        bits, failed = self.config.page_bits, rows.o_failed
        connect(m, rows.axi, flipped(self.axi))
        spare = self.ready & ~self.i_clear.valid & ~self.set
        unwritten, unread = Signal(), Signal()  # a page of either kind waits for that
        to_write, to_read, lost = (
            Signal(failed.p.shape(), name=name) for name in ("to_write", "to_read", "lost")
        )
        m.d.comb += [
            self.o_failed.valid.eq(failed.valid),
            self.o_failed.p.eq(failed.p),
            self.fault.eq(rows.fault),
            lost.eq(Mux(unwritten, to_write.as_value(), to_read.as_value())),
            drops.eq(spare & (unread | unwritten)),
            self.settled.eq(rows.settled & ~unwritten & ~(failed.valid & failed.p.write)),
        ]
        with m.If(drops):
            m.d.comb += word.eq((lost.squeue << bits) | lost.page)
            m.d.sync += [unwritten.eq(0), unread.eq(unread & unwritten)]
        with m.If(self.begins):
            m.d.sync += rows.blank.eq(0)
        with m.If(failed.valid & failed.p.write):
            m.d.sync += rows.blank.eq(1)
            m.d.sync += [unwritten.eq(1), to_write.eq(failed.p)]
        with m.If(failed.valid & ~failed.p.write):
            m.d.sync += [unread.eq(1), to_read.eq(failed.p)]
