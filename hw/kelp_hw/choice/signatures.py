# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Payloads that blocks of this room and of `select` hand on to one another (docs/select.md)."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data

from kelp_spec.formats import ELEMENTS, LINE_BITS
from kelp_spec.select import (
    ALIGNED_BITS,
    BLOCK_EXPONENT_BITS,
    CODE_BITS,
    CODED_LINES,
    COUNT_BITS,
    MASS_BITS,
    MEAN_BITS,
    SCORE_BITS,
    SCORE_FRACTION,
    STEP_BITS,
)

__all__ = ["ELEMENT", "EXPONENT", "MOST_LINES", "PLAN", "SelectLayouts", "checked", "give"]

ELEMENT = signed(8)  #: of a block
EXPONENT = signed(SCORE_BITS - SCORE_FRACTION)  #: of a mass
MOST_LINES = 32  #: of a token
#: a line of a plan (`kelp_spec.select.PLAN_FIELDS`); `spare` is zeros
PLAN = data.StructLayout(
    {
        "mean": data.ArrayLayout(signed(MEAN_BITS), ELEMENTS),
        "step": data.ArrayLayout(STEP_BITS, ELEMENTS),
        "count": data.ArrayLayout(COUNT_BITS, ELEMENTS),
        "exponent": signed(BLOCK_EXPONENT_BITS),
        "planned": 1,
        "spare": LINE_BITS
        - (MEAN_BITS + STEP_BITS + COUNT_BITS) * ELEMENTS
        - BLOCK_EXPONENT_BITS
        - 1,
    }
)


def checked(name: str, value, low: int, high: int) -> int:
    """`value` where it is an integer of `low` … `high`; else a ValueError that says so."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} = {value!r} is refused; legal: {low} … {high}")
    return value


def give(m: Module, o, out, out_valid, moves) -> None:
    """The end of a pipeline, whose last registers are `out`: what waits there goes aside where
    there is room, so that whether the pipeline `moves` depends on registers alone. No cycle is
    lost, nor is one taken."""
    aside, aside_valid = Signal.like(out, reset_less=True), Signal()
    m.d.comb += [
        moves.eq(~aside_valid | ~out_valid),
        o.valid.eq(aside_valid | out_valid),
        o.p.eq(Mux(aside_valid, aside.as_value(), out.as_value())),
    ]
    with m.If(aside_valid):
        m.d.sync += aside_valid.eq(~o.ready)
    with m.Else():
        m.d.sync += [aside_valid.eq(out_valid & ~o.ready), aside.eq(out)]


class SelectLayouts:
    """Layouts for `heads` query heads of a KV head, tokens of at most `lines` lines, summaries of
    at most `rows` lines, and a name of `id_bits` bits that travels with each page."""

    def __init__(
        self,
        *,
        heads: int = 1,
        lines: int = 1,
        rows: int = 1,
        id_bits: int = 1,
        mass_bits: int = MASS_BITS,
    ):
        self.heads = checked("heads", heads, 1, 64)
        self.lines = checked("lines", lines, 1, MOST_LINES)
        self.rows = checked("rows", rows, 1, 1 << 16)
        self.id_bits = checked("id_bits", id_bits, 1, 32)
        self.mass_bits = checked("mass_bits", mass_bits, 17, 48)
        at = {"line": range(self.lines), "last": 1, "id": self.id_bits}
        elements = data.ArrayLayout(ELEMENT, ELEMENTS)
        exponent = signed(BLOCK_EXPONENT_BITS)
        #: one line of a query head
        self.query_line = data.StructLayout(
            {"head": range(heads), "line": range(self.lines), "element": elements}
            | {"exponent": exponent}
        )
        #: one line of a plan, the last one of them `last`
        self.plan_line = data.StructLayout({"plan": PLAN, "line": range(self.lines), "last": 1})
        #: one line of a token
        self.line = data.StructLayout({"element": elements, "exponent": exponent, "nan": 1} | at)
        #: one stored line of a key: payload and scale of int8 or int4
        self.stored_line = data.StructLayout({"payload": 8 * ELEMENTS, "scale": 16, "int4": 1} | at)
        #: one line of a summary, as memory has it: the codes of CODED_LINES lines of keys
        codes = data.ArrayLayout(CODE_BITS, CODED_LINES)
        self.summary_line = data.StructLayout(
            {"code": codes, "line": range(self.rows), "last": 1, "id": self.id_bits}
        )
        #: m · 2^−sh is what a product of query and key is multiplied by
        self.scale = data.StructLayout({"m": 16, "sh": 5})
        scores = data.ArrayLayout(signed(SCORE_BITS), heads)
        #: a token's scores
        self.scores = data.StructLayout({"score": scores, "id": self.id_bits})
        #: a token's products, summed
        self.token_sum = signed(ALIGNED_BITS + (self.lines - 1).bit_length())
        #: of a page, bit by bit of its lines: whether the token that ends there is looked at
        self.near = self.rows * CODED_LINES
        #: a page's estimates, and the sums of its best tokens that they are of
        self.estimates = data.StructLayout(
            {"score": scores, "best": data.ArrayLayout(self.token_sum, heads)}
            | {"near": self.near, "id": self.id_bits}
        )
        #: the same, whether the next one is of another page, and whether it stands for the page
        self.page_scores = data.StructLayout(
            {"score": scores, "last": 1, "alone": 1, "id": self.id_bits}
        )
        #: a page's mass for each head: z · 2^(e − 15)
        self.page_mass = data.StructLayout(
            {
                "e": data.ArrayLayout(EXPONENT, heads),
                "z": data.ArrayLayout(self.mass_bits, heads),
                "id": self.id_bits,
            }
        )
