# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The pages of lists, each once: marked in any order, given in ascending order (docs/select.md,
"Scores"). A mark of each list a cycle; then 1 page a cycle, and 2 more for each 32 places."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.power_of_two import power_of_two
from ..lib.protected import BlockFault, ProtectedMemory, gather, used
from .signatures import checked

__all__ = ["PageMarks"]

_ROW = 32


class PageMarks(wiring.Component):
    """Takes the pages of `lists` lists, the same one as often as comes, each list until one that is
    `last`; then gives each page once, the lowest first, and forgets them.

    Latency: `LATENCY` cycles from the last mark to the first page at `o` where it is among the
    first 32; 2 more for each 32 before it. One mark of each list in a cycle (`INTERVAL`): a list
    has rows of its own. Errors: marks beyond correction are fatal, since whoever waits for a page
    would wait for ever; a reset in between leaves what was marked, so every list ends before it is
    used.

    Parameters
    ----------
    pages : int
        A power of two, 64 and more.
    lists : int
    protect : bool
        Its rows have check bits.

    Members
    -------
    i : in, array of streams
        A page, and whether it is the last of its list.
    o : out, stream
        A page, and whether it is the last that is marked.
    fault : out, BlockFault
    """

    LATENCY = 4
    INTERVAL = 1
    CLEARS = ("rows_*",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, pages: int, lists: int, protect: bool = False):
        power_of_two("_ROW", _ROW)
        self.pages = power_of_two("pages", checked("pages", pages, 2 * _ROW, 1 << 20))
        self.lists = checked("lists", lists, 1, 64)
        self.page_bits, self.protect = (pages - 1).bit_length(), protect
        marked = data.StructLayout({"page": self.page_bits, "last": 1})
        super().__init__(
            {
                "i": In(stream.Signature(marked)).array(lists),
                "o": Out(stream.Signature(marked)),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        low = (_ROW - 1).bit_length()
        s = SimpleNamespace()
        s.place, highest = Signal(self.page_bits - low), Signal(self.page_bits - low)
        s.marks, s.wipes, s.over = Signal(), Signal(), Signal()
        lists = [self._list(m, k, s) for k in range(self.lists)]
        # Several lists mark in one cycle: each has a highest row of its own. That of all is there a
        # cycle after a list's, two before a page is given.
        m.d.sync += highest.eq(_largest(m, [each.highest for each in lists]))
        row, lowest, more = Signal(_ROW), Signal(low), Signal()
        for k in reversed(range(_ROW)):
            with m.If(row[k]):
                m.d.comb += lowest.eq(k)
        m.d.comb += [
            more.eq((row & (row - 1)).any()),
            self.o.p.page.eq(Cat(lowest, s.place)),
            self.o.p.last.eq(~more & (s.place == highest)),
        ]
        with m.FSM() as fsm:
            with m.State("CLEAR"):
                m.d.comb += s.wipes.eq(1)
                m.d.sync += s.place.eq(s.place + 1)
                with m.If(s.place == self.pages // _ROW - 1):
                    m.next = "MARK"
            with m.State("MARK"):
                m.d.comb += s.marks.eq(1)
                with m.If(Cat(each.ended for each in lists).all()):
                    m.next = "READ"
            with m.State("READ"):
                m.next = "ROW"
            with m.State("ROW"):
                m.d.comb += s.wipes.eq(1)
                found = 0
                for each in lists:
                    found |= each.rows.read_data
                m.d.sync += row.eq(found)
                m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(row.any())
                with m.If(self.o.ready):
                    m.d.sync += row.eq(row & (row - 1))
                with m.If(~row.any() | (self.o.ready & ~more)):
                    m.d.sync += s.place.eq(s.place + 1)
                    m.next = "READ"
                with m.If(self.o.valid & self.o.ready & self.o.p.last):
                    m.d.comb += s.over.eq(1)
                    m.d.sync += s.place.eq(0)
                    m.next = "MARK"
        reads = fsm.ongoing("ROW")
        gather(m, self.fault, *(used(each.rows.fault, each.sets | reads) for each in lists))
        return m

    def _list(self, m, k, s):
        """The rows of a list: a page's row is read in a cycle, and written in the next, in which
        the next page's is read, as written where it is the same."""
        low = (_ROW - 1).bit_length()
        m.submodules[f"rows_{k}"] = rows = ProtectedMemory(
            depth=self.pages // _ROW, shape=_ROW, protect=self.protect
        )
        i = self.i[k]
        sets, over, ended = Signal(name=f"sets_{k}"), Signal(name=f"over_{k}"), Signal()
        mark = Signal.like(i.p, name=f"mark_{k}")
        at, highest = mark.page[low:], Signal(self.page_bits - low, name=f"highest_{k}")
        m.d.comb += [
            rows.read_en.eq(1),
            rows.read_address.eq(Mux(s.marks, i.p.page[low:], s.place)),
            rows.write_en.eq(s.wipes | sets),
            rows.write_address.eq(Mux(s.marks, at, s.place)),
            rows.write_data.eq(Mux(s.marks, rows.read_data | (1 << mark.page[:low]), 0)),
            i.ready.eq(s.marks & ~ended),
            ended.eq(over | (sets & mark.last)),
        ]
        m.d.sync += [
            sets.eq(i.valid & i.ready),
            mark.eq(i.p),
            over.eq(ended & ~s.over),
        ]
        with m.If(s.over):
            m.d.sync += highest.eq(0)
        with m.Elif(sets & (at > highest)):
            m.d.sync += highest.eq(at)
        return SimpleNamespace(rows=rows, sets=sets, highest=highest, ended=ended)


def _largest(m, values):
    """The largest of a few values, two and two of them compared."""
    while len(values) > 1:
        found = []
        for a, b in zip(values[::2], values[1::2], strict=False):
            larger = Signal.like(a, name="larger")
            m.d.comb += larger.eq(Mux(a > b, a, b))
            found.append(larger)
        values = found + values[2 * len(found) :]
    return values[0]
