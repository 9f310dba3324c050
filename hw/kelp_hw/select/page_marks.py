# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A set of pages: marked in any order, given in ascending order (docs/select.md, "Scores"). A mark
in 2 cycles; then 1 page a cycle, and 2 cycles for each 32 places."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.protected import BlockFault, ProtectedMemory, gather, used
from .signatures import checked

__all__ = ["PageMarks"]

_ROW = 32


class PageMarks(wiring.Component):
    """Takes pages, the same one as often as comes, until one that is `last`; then gives each once,
    the lowest first, and forgets them. `count` says how many there are.

    Latency: `LATENCY` cycles from the last mark to the first page at `o` where it is among the
    first 32; 2 more for each 32 before it. One mark in `INTERVAL` cycles. Errors: marks beyond
    correction are fatal, since whoever waits for a page would wait for ever; a reset in between
    leaves what was marked, so every list ends before it is used.

    Parameters
    ----------
    pages : int
        A power of two, 64 and more.
    protect : bool
        Its rows have check bits.

    Members
    -------
    i : in, stream
        A page, and whether it is the last mark.
    o : out, stream
        A page, and whether it is the last that is marked.
    count : out
        Pages marked, whole from the first at `o` on.
    fault : out, BlockFault
    """

    LATENCY = 3
    INTERVAL = 2

    def __init__(self, *, pages: int, protect: bool = False):
        self.pages = checked("pages", pages, 2 * _ROW, 1 << 20)
        if pages & (pages - 1):
            raise ValueError(f"pages = {pages} is refused; legal: a power of two")
        self.page_bits, self.protect = (pages - 1).bit_length(), protect
        marked = data.StructLayout({"page": self.page_bits, "last": 1})
        super().__init__(
            {
                "i": In(stream.Signature(marked)),
                "o": Out(stream.Signature(marked)),
                "count": Out(range(pages + 1)),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = ProtectedMemory(
            depth=self.pages // _ROW, shape=_ROW, protect=self.protect
        )
        low = (_ROW - 1).bit_length()
        place, left = Signal(self.page_bits - low), Signal(range(self.pages + 1))
        row, lowest, bit = Signal(_ROW), Signal(low), Signal(_ROW)
        m.d.comb += bit.eq(1 << self.i.p.page[:low])
        for k in reversed(range(_ROW)):
            with m.If(row[k]):
                m.d.comb += lowest.eq(k)
        m.d.comb += [
            rows.read_en.eq(1),
            rows.read_address.eq(place),
            rows.write_address.eq(place),
            self.o.p.page[:low].eq(lowest),
            self.o.p.page[low:].eq(place),
            self.o.p.last.eq(left == 1),
        ]
        with m.FSM() as fsm:
            with m.State("CLEAR"):
                m.d.comb += rows.write_en.eq(1)
                m.d.sync += place.eq(place + 1)
                with m.If(place == self.pages // _ROW - 1):
                    m.next = "MARK"
            with m.State("MARK"):
                m.d.comb += rows.read_address.eq(self.i.p.page[low:])
                with m.If(self.i.valid):
                    m.next = "SET"
            with m.State("SET"):
                new = (rows.read_data & bit) == 0
                m.d.comb += [
                    self.i.ready.eq(1),
                    rows.write_address.eq(self.i.p.page[low:]),
                    rows.write_data.eq(rows.read_data | bit),
                    rows.write_en.eq(1),
                ]
                m.d.sync += [left.eq(left + new), place.eq(0)]
                m.next = "MARK"
                with m.If(self.i.p.last):
                    m.d.sync += self.count.eq(left + new)
                    m.next = "READ"
            with m.State("READ"):
                m.next = "ROW"
            with m.State("ROW"):
                m.d.sync += row.eq(rows.read_data)
                m.d.comb += rows.write_en.eq(1)
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(row.any())
                with m.If(self.o.valid & self.o.ready):
                    m.d.sync += [row.eq(row & (row - 1)), left.eq(left - 1)]
                with m.If(~row.any()):
                    m.d.sync += place.eq(place + 1)
                    m.next = "READ"
                with m.If(self.o.ready & self.o.valid & self.o.p.last):
                    m.next = "MARK"
        gather(m, self.fault, used(rows.fault, fsm.ongoing("SET") | fsm.ongoing("ROW")))
        return m
