# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Summaries in memory, behind a port of their own (docs/select.md, "Summaries"). One line a cycle,
2 cycles and memory's latency after its page is asked for."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from kelp_spec.config import Config

from ..choice.signatures import SelectLayouts
from ..lib.axi import BURST_INCR, RESP_OKAY, SIZE_LINE, AxiSignature
from ..lib.protected import BlockFault, ProtectedFifo, gather

__all__ = ["SummaryMemory", "failed_layout", "summary_axi"]


def summary_axi(config: Config) -> AxiSignature:
    """The port of a configuration's summaries: one line per transaction, all of one id."""
    return AxiSignature(address_bits=ceil_log2(config.summary_lines) + 6, id_bits=1)


def failed_layout(config: Config) -> data.StructLayout:
    """The page of which memory answered a line with an error, and whether that was a write."""
    c = config
    return data.StructLayout({"squeue": c.squeue_bits, "page": c.page_bits, "write": 1})


class SummaryMemory(wiring.Component):
    """Lines of summaries in memory, at `(squeue · pages + page) · select_rows + line`.

    Latency: `LATENCY` cycles, and memory's, from a page at `i` to its first line at `o`; one line
    in each cycle (`INTERVAL`) while `config.select_looks` lines cover that way. A line is written
    in a cycle where memory takes it at once. Errors: where memory answers a read with one, the line
    is zeros; each error is told at `o_failed`, in the cycle after, a write's after a read's of the
    same cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    squeue, rows : in
        Of the pages at `i` and of the lines at `i_line`; they hold still until these have come and
        gone. `rows` is one less than the lines of a summary.
    blank : in
        Lines that come are zeros.
    i_line : in, stream of summary_line
        Lines of a summary; `id` is the page. No page is asked for until they are `settled`.
    i : in, stream of pages
    o : out, stream of summary_line
    axi : out, AxiSignature
    settled : out
        Memory has confirmed every line that was taken, and each error of that is told.
    o_failed : out, always-ready stream
        The page of a line that memory answered with an error, and whether that was a write.
    fault : out, BlockFault
    """

    LATENCY = 2
    INTERVAL = 1
    WRITES = 15  #: lines that memory has not confirmed, at most

    def __init__(self, *, config: Config):
        self.config = c = config
        layouts = SelectLayouts(lines=c.select_lines, rows=c.select_rows, id_bits=c.page_bits)
        line = layouts.summary_line
        super().__init__(
            {
                "squeue": In(c.squeue_bits),
                "rows": In(range(c.select_rows)),
                "blank": In(1),
                "i_line": In(stream.Signature(line)),
                "i": In(stream.Signature(c.page_bits)),
                "o": Out(stream.Signature(line)),
                "axi": Out(summary_axi(c)),
                "settled": Out(1),
                "o_failed": Out(stream.Signature(failed_layout(c), always_ready=True)),
                "fault": Out(BlockFault),
            }
        )

    def _address(self, page, line):
        """In bytes."""
        rows = Const(0, exact_log2(self.config.select_rows))
        line = line[: len(rows)] if len(rows) else rows
        return Cat(Const(0, 6), line, page, self.squeue)

    def elaborate(self, platform):
        m = Module()
        self.untold = Signal()  # a write's error waits for a read's
        self._write(m)
        self._read(m)
        return m

    def _write(self, m):
        """AW and W of a line leave in any order; the line is taken with the later one."""
        aw, w, b, line = self.axi.aw, self.axi.w, self.axi.b, self.i_line
        outstanding = Signal(range(self.WRITES + 1))
        page = Signal(self.config.page_bits)
        room, gone = outstanding != self.WRITES, {}
        for name, channel in (("aw", aw), ("w", w)):
            gone[name] = Signal(name=f"{name}_gone")
            m.d.comb += channel.valid.eq(line.valid & room & ~gone[name])
        went = [gone[name] | channel.ready for name, channel in (("aw", aw), ("w", w))]
        taken = Signal()
        m.d.comb += [
            line.ready.eq(room & went[0] & went[1]),
            taken.eq(line.valid & line.ready),
            aw.p.addr.eq(self._address(line.p.id, line.p.line)),
            aw.p.size.eq(SIZE_LINE),
            aw.p.burst.eq(BURST_INCR),
            w.p.data.eq(line.p.code),
            w.p.strb.eq(~0),
            w.p.last.eq(1),
            b.ready.eq(1),
            self.settled.eq((outstanding == 0) & ~line.valid & ~self.untold),
        ]
        for name, channel in (("aw", aw), ("w", w)):
            with m.If(taken):
                m.d.sync += gone[name].eq(0)
            with m.Elif(channel.valid & channel.ready):
                m.d.sync += gone[name].eq(1)
        m.d.sync += [
            outstanding.eq(outstanding + taken - b.valid),
            Assert(~b.valid | (outstanding != 0), "memory confirms what was not written"),
            Assert(~taken | (outstanding == 0) | (page == line.p.id), "two pages are written"),
        ]
        with m.If(taken):
            m.d.sync += page.eq(line.p.id)
        self.writing = page

    def _read(self, m):
        c, ar, r, o = self.config, self.axi.ar, self.axi.r, self.o
        at = data.StructLayout({"page": c.page_bits, "line": range(c.select_rows), "last": 1})
        # Lines on their way: memory keeps their order, since all have one id.
        m.submodules.asked = asked = ProtectedFifo(
            shape=at, depth=c.select_looks, protect=c.protect
        )
        gather(m, self.fault, asked.fault)
        line, out_free, taken = Signal(range(c.select_rows)), Signal(), Signal()
        last = line == self.rows
        m.d.comb += [
            ar.valid.eq(self.i.valid & asked.w_rdy),
            ar.p.addr.eq(self._address(self.i.p, line)),
            ar.p.size.eq(SIZE_LINE),
            ar.p.burst.eq(BURST_INCR),
            self.i.ready.eq(ar.ready & asked.w_rdy & last),
            asked.w_en.eq(ar.valid & ar.ready),
            asked.w_data.page.eq(self.i.p),
            asked.w_data.line.eq(line),
            asked.w_data.last.eq(last),
            out_free.eq(~o.valid | o.ready),
            r.ready.eq(out_free & asked.r_rdy),
            taken.eq(r.valid & r.ready),
            asked.r_en.eq(taken),
        ]
        with m.If(ar.valid & ar.ready):
            m.d.sync += line.eq(Mux(last, 0, line + 1))
        failed = r.p.resp != RESP_OKAY
        unread = taken & failed
        with m.If(out_free):
            m.d.sync += [
                o.valid.eq(taken),
                o.p.code.eq(Mux(failed | self.blank, 0, r.p.data)),
                o.p.id.eq(asked.r_data.page),
                o.p.line.eq(asked.r_data.line),
                o.p.last.eq(asked.r_data.last),
            ]
        b = self.axi.b
        unwritten = (b.valid & (b.p.resp != RESP_OKAY)) | self.untold
        m.d.sync += [
            Assert(~self.i.valid | self.settled, "a summary is read before it is written"),
            # Of both in one cycle the read is first: what is written stays until it is settled.
            self.untold.eq(unwritten & unread),
            self.o_failed.valid.eq(unread | unwritten),
            self.o_failed.p.squeue.eq(self.squeue),
            self.o_failed.p.page.eq(Mux(unread, asked.r_data.page, self.writing)),
            self.o_failed.p.write.eq(~unread),
        ]
