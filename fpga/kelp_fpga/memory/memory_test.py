# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""March C− over the board's memory: about 430 cycles a line."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.lib.axi import BURST_INCR, SIZE_LINE, AxiSignature
from kelp_spec.formats import LINE_BYTES

__all__ = ["MemoryTest"]

#: (downwards, read and compare with this background or nothing, write this background or nothing)
_ELEMENTS = ((0, None, 0), (0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 0), (0, 0, None))


class MemoryTest(wiring.Component):
    """March C− (up w0; up r0 w1; up r1 w0; down r0 w1; down r1 w0; up r0) on whole lines: finds
    stuck, transition, coupling and address faults of single cells, and bridged data pins, since "0"
    is a pattern that depends on the line's number and the 16-bit column, "1" its complement.

    Latency: ten accesses a line, one at a time: about 430 cycles.

    Parameters
    ----------
    address_bits : int

    Members
    -------
    start : In
        Begin; ignored while busy.
    first, count : In
        Lines, stable while busy.
    busy, done : Out
        `done` from the end of a test until the next begins.
    result : Out
        0 passed, 1 a line did not hold what was written, 2 `count` is 0.
    detail : Out
        The first line that was wrong.
    axi : Out(AxiSignature)
    """

    def __init__(self, *, address_bits: int):
        super().__init__(
            {
                "start": In(1),
                "first": In(19),
                "count": In(20),
                "busy": Out(1),
                "done": Out(1),
                "result": Out(2),
                "detail": Out(19),
                "axi": Out(AxiSignature(address_bits=address_bits, id_bits=1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        axi = self.axi
        element, left, line = Signal(range(len(_ELEMENTS))), Signal(20), Signal(19)

        def of(k, other=0):
            return Array(other if e[k] is None else e[k] for e in _ELEMENTS)[element]

        down, reads, wanted = of(0), Array(e[1] is not None for e in _ELEMENTS)[element], of(1)
        writes, background = Array(e[2] is not None for e in _ELEMENTS)[element], of(2)
        # Neighbouring columns and lines differ in about half of their bits. A line is in hand for a
        # cycle before it is asked for.
        mixed, expected, stores = Signal(16), Signal(16), Signal(16)
        m.d.comb += mixed.eq(line[:16] ^ Cat(line[16:], Const(0, 13)))
        m.d.sync += [
            expected.eq(mixed ^ wanted.replicate(16)),
            stores.eq(mixed ^ background.replicate(16)),
        ]

        def whole(mixture):
            return [mixture ^ (0x9E37 * (k + 1) & 0xFFFF) for k in range(LINE_BYTES // 2)]

        addressed, stored = Signal(), Signal()
        # the words at R that are not as they should be; a cycle later, whether there is one
        differs, wrong = Signal(LINE_BYTES // 2), Signal()
        m.d.sync += [
            *(
                differs[k].eq(axi.r.p.data[16 * k : 16 * k + 16] != word)
                for k, word in enumerate(whole(expected))
            ),
            wrong.eq(differs.any()),
        ]
        self._ask_for_lines(m, line, whole(stores))
        with m.FSM():
            with m.State("IDLE"):
                with m.If(self.start):
                    m.d.sync += [
                        self.busy.eq(1),
                        self.done.eq(0),
                        self.result.eq(Mux(self.count == 0, 2, 0)),
                        element.eq(0),
                    ]
                    m.next = "ELEMENT"
            with m.State("ELEMENT"):
                m.d.sync += [
                    left.eq(self.count),
                    line.eq(Mux(down, self.first + self.count - 1, self.first)),
                ]
                m.next = "LINE"
            with m.State("LINE"):
                m.d.sync += [addressed.eq(0), stored.eq(0)]
                with m.If((left == 0) | (self.result != 0)):
                    m.d.sync += element.eq(element + 1)
                    m.next = "ELEMENT"
                    with m.If((element == len(_ELEMENTS) - 1) | (self.result != 0)):
                        m.d.sync += [self.busy.eq(0), self.done.eq(1)]
                        m.next = "IDLE"
                with m.Elif(reads):
                    m.next = "ASK"
                with m.Else():
                    m.next = "WRITE"
            with m.State("ASK"):
                m.d.comb += axi.ar.valid.eq(1)
                with m.If(axi.ar.ready):
                    m.next = "COMPARE"
            with m.State("COMPARE"):
                with m.If(axi.r.valid):
                    m.next = "COLLECT"
            with m.State("COLLECT"):
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.next = "WRITE"
                with m.If(wrong):
                    m.d.sync += [self.result.eq(1), self.detail.eq(line)]
                    m.next = "LINE"
            with m.State("WRITE"):
                m.d.comb += [axi.aw.valid.eq(writes & ~addressed), axi.w.valid.eq(writes & ~stored)]
                m.d.sync += [
                    addressed.eq(addressed | axi.aw.ready),
                    stored.eq(stored | axi.w.ready),
                ]
                with m.If(~writes | ((addressed | axi.aw.ready) & (stored | axi.w.ready))):
                    m.next = "WRITTEN"
            with m.State("WRITTEN"):
                with m.If(~writes | axi.b.valid):
                    m.d.sync += [left.eq(left - 1), line.eq(Mux(down, line - 1, line + 1))]
                    m.next = "LINE"
        return m

    def _ask_for_lines(self, m, line, data):
        """Every transaction is one whole line: ``line``, and ``data`` where it is written."""
        axi = self.axi
        m.d.comb += [
            axi.ar.p.addr.eq(Cat(Const(0, 6), line)),
            axi.aw.p.addr.eq(Cat(Const(0, 6), line)),
            axi.ar.p.size.eq(SIZE_LINE),
            axi.aw.p.size.eq(SIZE_LINE),
            axi.ar.p.burst.eq(BURST_INCR),
            axi.aw.p.burst.eq(BURST_INCR),
            axi.w.p.strb.eq(~Const(0, LINE_BYTES)),
            axi.w.p.last.eq(1),
            axi.w.p.data.eq(Cat(*data)),
            # One transaction at a time, whose answer comes after its address (and data) were taken:
            # in the state that waits for it.
            axi.r.ready.eq(1),
            axi.b.ready.eq(1),
        ]
