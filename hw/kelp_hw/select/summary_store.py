# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which pages have a summary that still holds, and where summaries lie (docs/select.md,
"Summaries"). A look at eight pages a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Shape, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config

from ..choice.signatures import SelectLayouts
from ..layouts import Layouts
from ..lib.power_of_two import power_of_two
from ..lib.protected import BlockFault
from ..lib.secded import Secded
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
    one that was to be read while the one before is not cleared yet, because keys of pages beside it
    (the same modulo `ROW`) are written in each cycle: it is found out anew. Where one was to be
    written, all are zeros for the SELECT under way. A summary only advises, and has no check bits.
    For how many lines it holds is a code word of `Secded` with `config.protect`, and it holds where
    that is the very word: up to three flipped bits make a summary anew, and never let a former
    owner's hold.

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
    set, set_page, set_holds : in
        The summary of `set_page` was made for them, and holds from now on, or does not; in a cycle
        without a page at `i_clear`.
    i_line : in, stream of summary_line
        Lines of a summary; `id` is the page.
    settled : out
        Every line that was taken may be read, or its summary does not hold.
    i : in, stream of pages
        While lines are settled.
    o : out, stream of summary_line
    ready : out
    starves : out, with `config.select_port`
        Lines have not settled for `PATIENCE` cycles, because of keys of pages beside a summary that
        is to be cleared: no further writes of keys are to begin.
    axi, o_failed, fault : as SummaryMemory's, with `config.select_port`
    """

    LATENCY = 2
    INTERVAL = 1
    CLEARS = ("lines_*",)  #: memories in it that are written whole before it is ready
    ROW = 8  #: pages that are looked at together
    PATIENCE = 63

    def __init__(self, *, config: Config):
        self.config = c = config
        self.layouts = SelectLayouts(lines=c.select_lines, rows=c.select_rows, id_bits=c.page_bits)
        line = self.layouts.summary_line
        self.row_bits = (power_of_two("ROW", self.ROW) - 1).bit_length()
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
                "set_holds": In(1),
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
            "starves": Out(1),
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
        count = range(c.select_lines + 1)
        code = Secded(max(4, Shape.cast(count).width)) if c.protect else None
        held = [
            Sram(
                depth=c.page_words // self.ROW, shape=code.code_bits if code else count, block=True
            )
            for _ in range(self.ROW)
        ]
        holds = self.token_lines + 1  #: the word of one that holds; of one that does not it is 0
        if code:
            holds = code.encode(Cat(holds, Const(0, code.width)))

        def page_word(squeue, page):
            return (squeue << bits) | page

        # - which of them hold ---------------------------------------------------------------------
        scrub = Signal(range(c.page_words // self.ROW))
        clear = self.i_clear
        #: of the page that is cleared or set; of one that memory lost
        word, lost = Signal(range(c.page_words)), Signal(range(c.page_words))
        changes, drops = Signal(), Signal()
        m.d.comb += [
            changes.eq(clear.valid | self.set),
            word.eq(
                Mux(
                    clear.valid,
                    page_word(clear.p.squeue, clear.p.page),
                    page_word(self.squeue, self.set_page),
                )
            ),
        ]
        if c.select_port:
            beside = word[: self.row_bits] != lost[: self.row_bits]
            self._port_of(m, rows, lost, drops, self.ready & (~changes | beside))
        else:
            m.d.comb += self.settled.eq(1)
        for k, lines in enumerate(held):
            m.submodules[f"lines_{k}"] = lines
            own = changes & (word[: self.row_bits] == k)
            dropped = drops & (lost[: self.row_bits] == k)
            row = Mux(own, word[self.row_bits :], lost[self.row_bits :])
            m.d.comb += [
                lines.read_en.eq(self.look),
                lines.read_address.eq(Cat(self.look_row, self.squeue)),
                self.holds[k].eq(lines.read_data == holds),
                lines.write_en.eq(~self.ready | own | dropped),
                lines.write_data.eq(Mux(self.set & self.set_holds & own, holds, 0)),
                lines.write_address.eq(Mux(self.ready, row, scrub)),
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

    def _port_of(self, m, rows, word, drops, free):
        """Memory's port, and what it lost: summaries that are cleared when nothing else changes
        one beside it (`free`). One that was not written keeps lines from settling, and nobody reads
        what was there before, which may be a former owner's; one that was not read is only read
        once more."""
        bits, failed = self.config.page_bits, rows.o_failed
        connect(m, rows.axi, flipped(self.axi))
        unwritten, unread = Signal(), Signal()  # a page of either kind waits for that
        to_write, to_read, lost = (
            Signal(failed.p.shape(), name=name) for name in ("to_write", "to_read", "lost")
        )
        m.d.comb += [
            self.o_failed.valid.eq(failed.valid),
            self.o_failed.p.eq(failed.p),
            self.fault.eq(rows.fault),
            lost.eq(Mux(unwritten, to_write.as_value(), to_read.as_value())),
            word.eq((lost.squeue << bits) | lost.page),
            drops.eq(free & (unread | unwritten)),
            self.settled.eq(rows.settled & ~unwritten & ~(failed.valid & failed.p.write)),
        ]
        waited = Signal(range(self.PATIENCE + 1))
        m.d.comb += self.starves.eq(waited == self.PATIENCE)
        m.d.sync += waited.eq(Mux(unwritten & ~drops, waited + ~self.starves, 0))
        with m.If(drops):
            m.d.sync += [unwritten.eq(0), unread.eq(unread & unwritten)]
        with m.If(self.begins):
            m.d.sync += rows.blank.eq(0)
        with m.If(failed.valid & failed.p.write):
            m.d.sync += rows.blank.eq(1)
            m.d.sync += [unwritten.eq(1), to_write.eq(failed.p)]
        with m.If(failed.valid & ~failed.p.write):
            m.d.sync += [unread.eq(1), to_read.eq(failed.p)]
