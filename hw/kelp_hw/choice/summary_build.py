# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The summary of a page from its stored keys (docs/select.md, "Summaries"). With all elements at
once one line of a key a cycle; 16 of them are a line of the summary, 7 cycles after the last."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import (
    BLOCK_EXPONENT_BITS,
    CODE_BITS,
    CODED_LINES,
    COUNT_BITS,
    MEAN_BITS,
    PLANNED_BITS,
    PLANNED_FRACTION,
    STEP_BITS,
)

from .block_form import unpack
from .signatures import ELEMENT, PLAN, SelectLayouts

__all__ = ["SummaryBuild"]

_MOST_COUNT = (1 << COUNT_BITS) - 1
_END = 1 << PLANNED_BITS - 1


class SummaryBuild(wiring.Component):
    """Makes a code of each line of a key by the plan, and a page's summary of its codes.

    Latency: `LATENCY` cycles from the last line of a key in a line of the summary to that, one line
    in `INTERVAL` cycles: 7 and 1 with 32 elements. With fewer a line stays for `32 // elements`
    cycles. Errors: none; a line with a NaN counts as zeros.

    Parameters
    ----------
    lines : int
        Lines of a token at most.
    rows : int
        Lines of a summary at most.
    id_bits : int
    elements : int, optional
        Of a line that get their codes in a cycle, 4, 8, 16 or 32.

    Members
    -------
    i_plan : in, always-ready stream of plan_line
        While no page is inside.
    i : in, stream of stored_line
        The lines of a page in their order, each with its place in the token; `last` ends the page,
        not a token.
    o : out, stream of summary_line
        `id` is that of its last line.
    """

    def __init__(self, *, lines: int, rows: int, id_bits: int, elements: int = ELEMENTS):
        layouts = self.layouts = SelectLayouts(lines=lines, rows=rows, id_bits=id_bits)
        self.lines, self.rows, self.id_bits = lines, rows, id_bits
        if elements not in (4, 8, 16, ELEMENTS):
            raise ValueError(f"elements = {elements!r} is refused; legal: 4, 8, 16, {ELEMENTS}")
        self.elements, self._beats = elements, ELEMENTS // elements
        #: the stage in which a line's code is whole: one more where it is summed of parts, and one
        #: less for eight elements and for four
        self._whole = {1: 6, 2: 7, 4: 6, 8: 6}[self._beats]
        super().__init__(
            {
                "i_plan": In(stream.Signature(layouts.plan_line, always_ready=True)),
                "i": In(stream.Signature(layouts.stored_line)),
                "o": Out(stream.Signature(layouts.summary_line)),
            }
        )

    @property
    def LATENCY(self) -> int:
        """Cycles from the last line of a key in a line of the summary to that at `o`."""
        return self._whole + self._beats

    @property
    def INTERVAL(self) -> int:
        """Cycles from one line to the next at full rate."""
        return self._beats

    def elaborate(self, platform):
        m = Module()
        m.submodules.plans = plans = memory.Memory(shape=PLAN, depth=self.lines, init=())
        write, read = plans.write_port(), plans.read_port()
        moves, loads = Signal(), Signal()
        beat, ends = Signal(range(max(2, self._beats))), Signal()
        m.d.comb += [
            moves.eq(self.o.ready | ~self.o.valid),
            self.i.ready.eq(loads),
            write.en.eq(self.i_plan.valid),
            write.addr.eq(self.i_plan.p.line),
            write.data.eq(self.i_plan.p.plan),
            read.addr.eq(self.i.p.line),
            read.en.eq(loads),
        ]
        # 1: elements, 2: as the plan sees them, 3: their codes, then behind one another; the row.
        # From stage 1 a part of the line goes on in each cycle.
        whole = self._whole
        valid = [self.i.valid, *(Signal(name=f"valid{k}") for k in range(1, whole + 1))]
        last, id_ = [self.i.p.last], [self.i.p.id]
        if self._beats == 1:
            m.d.comb += loads.eq(moves)
        else:
            m.d.comb += [
                ends.eq(beat == self._beats - 1),
                loads.eq(moves & (~valid[1] | ends)),
            ]
            with m.If(moves & valid[1]):
                m.d.sync += beat.eq(beat + 1)
        for k in range(whole):
            last.append(Signal(name=f"last{k + 1}", reset_less=True))
            id_.append(Signal(self.id_bits, name=f"id{k + 1}", reset_less=True))
            with m.If(loads if k == 0 else moves):
                m.d.sync += [valid[k + 1].eq(valid[k]), last[k + 1].eq(last[k])]
                m.d.sync += id_[k + 1].eq(id_[k])
        codes = self._codes(m, loads, moves, read.data, beat)
        while len(codes) > 1:
            codes = self._joined(m, moves, codes, registered=len(codes) in (16, 4, 2))
        code = codes[0][0]
        if self._beats > 1:
            begins, ended = beat == 0, ends
            for k in range(2, whole):
                flags = [Signal(name=f"{name}{k}", reset_less=True) for name in ("begins", "ended")]
                with m.If(moves):
                    m.d.sync += [
                        flag.eq(was) for flag, was in zip(flags, (begins, ended), strict=True)
                    ]
                begins, ended = flags
            code = self._summed(m, moves, codes[0], begins)
            with m.If(moves):
                m.d.sync += valid[whole].eq(valid[whole - 1] & ended)
        self._row(m, moves, code, valid[whole], last[whole], id_[whole])
        return m

    def _summed(self, m, moves, part, begins):
        """The codes of a line's parts behind one another, when the last of them is in."""
        code, count = part
        kept = Signal(CODE_BITS, reset_less=True)
        places = Signal(range(ELEMENTS * _MOST_COUNT + 1), reset_less=True)
        shift = places[: CODE_BITS.bit_length() - 1]
        with m.If(moves):
            m.d.sync += [kept.eq(code), places.eq(count)]
            with m.If(~begins):
                m.d.sync += [
                    kept.eq(kept | Mux(places < CODE_BITS, (code << shift)[:CODE_BITS], 0)),
                    places.eq(places + count),
                ]
        return kept

    def _codes(self, m, loads, moves, plan, beat):
        """[(code, how many bits)] of the elements whose turn it is, in stage 3."""
        block = Signal(self.layouts.line)
        unpack(m, self.i.p, block.element, block.exponent, block.nan)
        elements = [Signal(ELEMENT, name=f"element{k}", reset_less=True) for k in range(ELEMENTS)]
        exponent = Signal(signed(BLOCK_EXPONENT_BITS), reset_less=True)
        with m.If(loads):
            m.d.sync += exponent.eq(block.exponent)
            m.d.sync += [
                each.eq(Mux(block.nan, 0, found))
                for each, found in zip(elements, block.element, strict=True)
            ]
        by = Signal(signed(BLOCK_EXPONENT_BITS + 2))
        left, right = Signal(range(PLANNED_BITS + 1)), Signal(range(PLANNED_BITS + 1))
        m.d.comb += [
            by.eq(exponent - plan.exponent + PLANNED_FRACTION),
            left.eq(_bounded(by, PLANNED_BITS)),
            right.eq(_bounded(-by, PLANNED_BITS)),
        ]

        def part(array):
            bits = len(Value.cast(array)) // self._beats
            return Value.cast(array).word_select(beat, bits)

        means, steps, counts = (
            Signal(data.ArrayLayout(shape, self.elements), name=f"{name}s", reset_less=True)
            for name, shape in (
                ("mean", signed(MEAN_BITS)),
                ("step", STEP_BITS),
                ("count", COUNT_BITS),
            )
        )
        with m.If(moves):
            m.d.sync += [
                means.eq(part(plan.mean)),
                steps.eq(part(plan.step)),
                counts.eq(part(plan.count)),
            ]
        mine = part(Cat(elements))
        found = []
        for k in range(self.elements):
            element = mine[8 * k : 8 * k + 8].as_signed()
            shifted = Signal(signed(8 + PLANNED_BITS), name=f"shifted{k}")
            planned = Signal(signed(PLANNED_BITS), name=f"planned{k}", reset_less=True)
            off = Signal(signed(PLANNED_BITS + 1), name=f"off{k}")
            step = Signal(signed(PLANNED_BITS + 1), name=f"step{k}")
            half = Signal(range((1 << _MOST_COUNT - 1) + 1), name=f"half{k}")
            code = Signal(_MOST_COUNT, name=f"code{k}", reset_less=True)
            count = Signal(COUNT_BITS, name=f"count{k}", reset_less=True)
            m.d.comb += [
                shifted.eq(element << left >> right),
                off.eq(planned - (means[k] << PLANNED_FRACTION)),
                step.eq(off >> steps[k]),
                half.eq((1 << counts[k]) >> 1),
            ]
            with m.If(moves):
                m.d.sync += [
                    planned.eq(
                        Mux(shifted >= _END, _END - 1, Mux(shifted < -_END, -_END, shifted))
                    ),
                    code.eq(Mux(step < -half, 0, Mux(step >= half, (half << 1) - 1, step + half))),
                    count.eq(counts[k]),
                ]
                with m.If(counts[k] == 0):
                    m.d.sync += code.eq(0)
            found.append((code, count))
        return found

    def _joined(self, m, moves, codes, *, registered):
        """Two and two behind one another, the first one's bits lowest; no more than a code has."""
        found = []
        for k, ((low, few), (high, more)) in enumerate(zip(codes[::2], codes[1::2], strict=True)):
            width = min(CODE_BITS, 2 * len(low))
            name = f"{len(codes) // 2}_{k}"
            joined = Signal(width, name=f"joined_{name}")
            most = 2 * _MOST_COUNT * (self.elements // len(codes))
            count = Signal(range(most + 1), name=f"n_{name}")
            shift = few[: CODE_BITS.bit_length() - 1]
            m.d.comb += [
                joined.eq(low | Mux(few < CODE_BITS, (high << shift)[:width], 0)),
                count.eq(few + more),
            ]
            if registered:
                kept = Signal.like(joined, name=f"kept_{name}", reset_less=True)
                kept_count = Signal.like(count, name=f"kept_n_{name}", reset_less=True)
                with m.If(moves):
                    m.d.sync += [kept.eq(joined), kept_count.eq(count)]
                joined, count = kept, kept_count
            found.append((joined, count))
        return found

    def _row(self, m, moves, code, valid, last, id_):
        """The codes of a line of the summary, each in its place."""
        at, line = Signal(range(CODED_LINES)), Signal.like(self.o.p.line)
        full = last | (at == CODED_LINES - 1)
        codes = Signal.like(self.o.p.code, name="codes")
        with m.If(moves):
            m.d.sync += self.o.valid.eq(valid & full)
            with m.If(valid):
                m.d.sync += at.eq(Mux(full, 0, at + 1))
                for k in range(CODED_LINES):
                    with m.If(at == k):
                        m.d.sync += codes[k].eq(code)
                    with m.Elif(at == 0):
                        m.d.sync += codes[k].eq(0)
                with m.If(full):
                    m.d.sync += [
                        line.eq(Mux(last, 0, line + 1)),
                        self.o.p.line.eq(line),
                        self.o.p.last.eq(last),
                        self.o.p.id.eq(id_),
                    ]
        m.d.comb += self.o.p.code.eq(codes)


def _bounded(value, most):
    """A shift, 0 … most."""
    return Mux(value < 0, 0, Mux(value > most, most, value))
