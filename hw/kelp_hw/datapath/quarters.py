# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Where a payload lies in its DRAM line: all of it, a half or a quarter. Expressions only: no
register, no cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Value

from kelp_spec.formats import LINE_BITS, Format

__all__ = [
    "QUARTERS",
    "QUARTER_BITS",
    "aligned_payload",
    "alignment_of",
    "placed_payload",
    "placement_of",
    "quarters_of",
]

QUARTERS = 4  #: grain of the line buffer: the smallest payload, an int4 line
QUARTER_BITS = LINE_BITS // QUARTERS


def is_eight_bit(code: Value) -> Value:
    return (code == Format.FP8_E4M3) | (code == Format.FP8_E5M2) | (code == Format.INT8)


def quarters_of(code: Value, part: Value) -> Value:
    """Which quarters of its DRAM line a payload takes: all (raw16), half `part`, or quarter `part`
    (int4)."""
    half = Mux(part[0], 0b1100, 0b0011)
    return Mux(
        code == Format.INT4,
        Cat(part == n for n in range(QUARTERS)),
        Mux(is_eight_bit(code), half, 0b1111),
    )


def alignment_of(code: Value, part: Value) -> Value:
    """What steers :func:`aligned_payload`: the first quarter of the payload, and whether it is an
    upper half. To be registered: each bit has 128 loads."""
    int4, upper = code == Format.INT4, is_eight_bit(code) & part[0]
    return Cat(int4 & part[0], Mux(int4, part[1], upper), upper)


def aligned_payload(line: Value, alignment: Value) -> Value:
    """A payload of a DRAM line, moved to the lowest bits; what lies above it is left as it is."""
    q = [line.word_select(n, QUARTER_BITS) for n in range(QUARTERS)]
    odd, high, upper = alignment
    return Cat(
        Mux(high, Mux(odd, q[3], q[2]), Mux(odd, q[1], q[0])), Mux(upper, q[3], q[1]), q[2], q[3]
    )


def placement_of(code: Value) -> Value:
    """What steers :func:`placed_payload`: int4, eight bits, either. To be registered."""
    return Cat(code == Format.INT4, is_eight_bit(code), (code == Format.INT4) | is_eight_bit(code))


def placed_payload(payload: Value, placement: Value) -> Value:
    """A payload repeated over the DRAM line, so that every quarter that it may be meant for holds
    the right bits."""
    q = [payload.word_select(n, QUARTER_BITS) for n in range(QUARTERS)]
    int4, eight, narrow = placement
    return Cat(
        q[0],
        Mux(int4, q[0], q[1]),
        Mux(narrow, q[0], q[2]),
        Mux(int4, q[0], Mux(eight, q[1], q[3])),
    )
