# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What each bit of a code is worth to a query, by the plan (docs/select.md, "Scores"). One bit
or element a cycle, for all query heads of a group at once."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import (
    ALIGNED_BITS,
    ALIGNED_FRACTION,
    BLOCK_EXPONENT_BITS,
    CODE_BITS,
    COUNT_BITS,
    PLANNED_FRACTION,
)

from .signatures import PLAN, SelectLayouts, checked

__all__ = ["CodeWeights"]

_MOST = (1 << ALIGNED_BITS - 1) - 1
_BASE_BITS = 29  #: of 32 products of 8 × 17 bits, signed


class CodeWeights(wiring.Component):
    """For each query head and line of a token: what a line scores whose code is 0, and what each
    bit of a code adds to it.

    Latency: from the plan's last line to `ready` at most `LATENCY` cycles for each line, which it
    is busy with for so long (`INTERVAL`). Errors: none; bits beyond a code's last are left out.

    Parameters
    ----------
    heads : int
        Query heads of a group.
    lines : int
        Lines of a token at most, a power of two.

    Members
    -------
    i_query : in, always-ready stream of query_line
        Before the plan's last line.
    i_plan : in, always-ready stream of plan_line
        The last one begins the work, anew where it is under way.
    token_lines : out
        Lines of a token, less one.
    base, weight : out
        Of each head and line, ALIGNED_BITS signed; where a token has fewer lines they repeat.
    ready : out
    """

    LATENCY = 68
    INTERVAL = 68

    def __init__(self, *, heads: int, lines: int):
        layouts = self.layouts = SelectLayouts(heads=heads, lines=lines)
        if lines & lines - 1:
            raise ValueError(f"lines = {lines} is refused; legal: powers of two")
        self.heads, self.lines = heads, checked("lines", lines, 1, 32)
        value = signed(ALIGNED_BITS)
        super().__init__(
            {
                "i_query": In(stream.Signature(layouts.query_line, always_ready=True)),
                "i_plan": In(stream.Signature(layouts.plan_line, always_ready=True)),
                "token_lines": Out(range(lines)),
                "base": Out(value).array(heads, lines),
                "weight": Out(value).array(heads, lines, CODE_BITS),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.plans = plans = memory.Memory(shape=PLAN, depth=self.lines, init=())
        write, read = plans.write_port(), plans.read_port()
        line = Signal(range(self.lines))
        m.d.comb += [
            write.en.eq(self.i_plan.valid),
            write.addr.eq(self.i_plan.p.line),
            write.data.eq(self.i_plan.p.plan),
            read.addr.eq(line),
        ]
        plan = read.data
        #: the element, and which bit of its code; how many bits are before it
        element, bit, at = Signal(range(ELEMENTS)), Signal(COUNT_BITS), Signal(range(CODE_BITS + 1))
        count, step, mean = Signal(COUNT_BITS), Signal(3), Signal(signed(8))
        walks, settles, first, over = Signal(), Signal(range(4)), Signal(), Signal()
        m.d.comb += [
            count.eq(plan.count[element]),
            step.eq(plan.step[element]),
            mean.eq(plan.mean[element]),
            first.eq(bit == 0),
            # Bits that have no place take no time.
            over.eq((bit + 1 >= count) | (at == CODE_BITS)),
        ]
        anew = self.i_plan.valid & self.i_plan.p.last
        with m.If(anew):
            m.d.sync += [line.eq(0), self.ready.eq(0), self.token_lines.eq(self.i_plan.p.line)]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                with m.If(anew):
                    m.next = "READ"
            with m.State("READ"):
                m.d.sync += [element.eq(0), bit.eq(0), at.eq(0), settles.eq(0)]
                with m.If(~anew):
                    m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += walks.eq(1)
                with m.If((count != 0) & (at != CODE_BITS)):
                    m.d.sync += at.eq(at + 1)
                m.d.sync += bit.eq(bit + 1)
                with m.If(over):
                    m.d.sync += [bit.eq(0), element.eq(element + 1)]
                    with m.If(element == ELEMENTS - 1):
                        m.next = "SETTLE"
                with m.If(anew):
                    m.next = "READ"
            with m.State("SETTLE"):  # what is on its way
                m.d.sync += settles.eq(settles + 1)
                with m.If(anew):
                    m.next = "READ"
                with m.Elif(settles == 3):
                    m.d.sync += line.eq(line + 1)
                    m.next = "READ"
                    with m.If(line == self.token_lines):
                        m.d.sync += self.ready.eq(1)
                        m.next = "IDLE"
        begins = fsm.ongoing("READ")
        # 1: factors, 2: products and shifts, in place in 3.
        valid1, valid2 = Signal(), Signal()
        put1, put2 = Signal(), Signal()
        at1, at2 = Signal(range(CODE_BITS)), Signal(range(CODE_BITS))
        first1, first2 = Signal(), Signal()
        m.d.sync += [
            valid1.eq(walks),
            valid2.eq(valid1 & ~begins),
            put1.eq((count != 0) & (at != CODE_BITS)),
            put2.eq(put1),
            at1.eq(at),
            at2.eq(at1),
            first1.eq(first),
            first2.eq(first1),
        ]
        factor, by = Signal(signed(17)), Signal(range(16))
        some = count != 0
        m.d.sync += [
            factor.eq(
                (mean << PLANNED_FRACTION + 1)
                + Mux(some, 1 << step, 0)
                - Mux(some, Const(1, 15) << (step + count), 0)
            ),
            by.eq(step + 1 + bit),
        ]
        mine = [(Const(k) & self.token_lines) == line for k in range(self.lines)]
        for head in range(self.heads):
            self._head(
                m, head, plan.exponent, line, element, mine,
                begins=begins, valid=valid2, put=put2, at=at2, first=first2, factor=factor, by=by,
                settling=fsm.ongoing("SETTLE"),
            )  # fmt: skip
        return m

    def _head(self, m, head, exponent, line, element, mine, **now):
        begins, valid, put, at, first = (
            now[name] for name in ("begins", "valid", "put", "at", "first")
        )
        rows = memory.Memory(shape=8 * ELEMENTS + BLOCK_EXPONENT_BITS, depth=self.lines, init=())
        m.submodules[f"query_{head}"] = rows
        write, read, query = rows.write_port(), rows.read_port(), self.i_query.p
        m.d.comb += [
            write.en.eq(self.i_query.valid & (query.head == head)),
            write.addr.eq(query.line),
            write.data.eq(Cat(query.element.as_value(), query.exponent)),
            read.addr.eq(line),
        ]
        own = read.data[8 * ELEMENTS :].as_signed()
        #: places that a product goes up, bounded so that it is nothing or the most beyond
        up = Signal(signed(BLOCK_EXPONENT_BITS + 2), name=f"up_{head}")
        kept = Signal(signed(6), name=f"kept_{head}")
        # It is read a cycle before its first use, and stays for the line.
        m.d.comb += up.eq(own + exponent - (12 + PLANNED_FRACTION + 1 - ALIGNED_FRACTION))
        m.d.sync += kept.eq(
            Mux(up > ALIGNED_BITS, ALIGNED_BITS, Mux(up < -ALIGNED_BITS, -ALIGNED_BITS, up))
        )
        x = Signal(signed(8), name=f"x_{head}")
        x2, up2 = Signal.like(x, name=f"x2_{head}"), Signal(signed(7), name=f"up2_{head}")
        product = Signal(signed(25), name=f"product_{head}")
        m.d.sync += [
            x.eq(read.data[: 8 * ELEMENTS].word_select(element, 8)),
            x2.eq(x),
            up2.eq(kept + now["by"]),
            product.eq(x * now["factor"]),
        ]
        weight = _clamped(_aligned(m, x2, up2, f"weight_{head}"))
        total = Signal(signed(_BASE_BITS), name=f"total_{head}")
        # The sum is whole two cycles before the last one of `settling`.
        aligned = _aligned(m, total, kept, f"base_{head}")
        base = Signal.like(aligned, name=f"base_{head}")
        m.d.sync += base.eq(aligned)
        with m.If(valid & first):
            m.d.sync += total.eq(total + product)
        with m.If(begins):
            m.d.sync += total.eq(0)
        for k in range(self.lines):
            with m.If(mine[k]):
                for each in range(CODE_BITS):
                    with m.If(begins):
                        m.d.sync += self.weight[head][k][each].eq(0)
                    with m.Elif(valid & put & (at == each)):
                        m.d.sync += self.weight[head][k][each].eq(weight)
                with m.If(now["settling"]):
                    m.d.sync += self.base[head][k].eq(_clamped(base))


def _aligned(m, value, up, name):
    """value · 2^up, rounded down."""
    left = Signal(range(ALIGNED_BITS + 1), name=f"{name}_left")
    right = Signal(range(ALIGNED_BITS + 1), name=f"{name}_right")
    shifted = Signal(signed(len(value) + ALIGNED_BITS), name=f"{name}_shifted")
    m.d.comb += [
        left.eq(Mux(up > ALIGNED_BITS, ALIGNED_BITS, up)),
        right.eq(Mux(up < -ALIGNED_BITS, ALIGNED_BITS, -up)),
        shifted.eq(Mux(up < 0, value >> right, value << left)),
    ]
    return shifted


def _clamped(value):
    return Mux(value > _MOST, _MOST, Mux(value < -_MOST, -_MOST, value))
