# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One element of the quantiser, stage by stage, as expressions, and the constants that its shared
half must agree on. `Quantiser` has the registers between them and the cycles.

Every format is one right shift of the 11-bit significand followed by one rounding. ``shift`` says
how far, so that the lowest bit of the shifted value has the weight of the lowest stored bit (int4:
a 128th of the power of two in the block's largest element):

========  =========================================================================
int8      INT8_SHIFT + (exponent of the block - exponent of the element)
int4      INT4_SHIFT + the same; it is then divided by the scale
fp8       E4M3_SHIFT or E5M2_SHIFT, and one more for each exponent below the least normal one
========  =========================================================================

The shared half gives ``reach``: that sum without the element's exponent, or for fp8 the least
normal exponent less one, which makes the fp8 exponent field of a normal result the negative of the
distance.
"""

from amaranth.hdl import C, Cat, Mux, Value

from kelp_spec.formats import Format

from .codec_lane import gated

__all__ = [
    "E4M3_SHIFT",
    "E5M2_SHIFT",
    "INT4_SHIFT",
    "INT8_SHIFT",
    "REACH_BITS",
    "byte_parts",
    "distance_of",
    "first_quotient_bit",
    "fp8_field",
    "other_quotient_bits",
    "rounded_byte",
    "shift_of",
    "shifted",
]

INT8_SHIFT = 4  #: 11-bit significand to 7 bits
INT4_SHIFT = 3  #: to 8 bits: the block's significand in units of 1/128
E4M3_SHIFT = 7  #: to 4 bits, hidden one and 3
E5M2_SHIFT = 8  #: to 3 bits, hidden one and 2
REACH_BITS = 9


def distance_of(reach: Value, exponent: Value) -> Value:
    """``reach`` - exponent modulo 512; a subnormal has the exponent of the least normal value."""
    return (reach - exponent)[0:REACH_BITS]


def shift_of(distance: Value, lift: Value, is_fp8: Value, is_e5m2: Value) -> tuple[Value, Value]:
    """How far to shift, 4 bits, where 15 shifts everything out; and whether bit 3 of it means eight
    places up instead of down.

    ``lift`` is for the blocks whose largest element is a small fp16 subnormal: their distances are
    negative.
    """
    # fp8: below zero the result is normal, from zero on the shift is 8 or 9 more than the distance.
    normal = is_fp8 & distance[8]
    subnormal = Mux(
        is_e5m2,
        Cat((distance[0:3] + 1)[0:3] | distance[0:3].all().replicate(3), C(1, 1)),
        Cat(distance[0:3], C(1, 1)),
    )
    far = Mux(is_fp8, distance[3:8].any(), ~lift & distance[4:9].any())
    shift = Mux(
        normal,
        Mux(is_e5m2, E5M2_SHIFT, E4M3_SHIFT),
        Mux(is_fp8, subnormal, distance[0:4]) | far.replicate(4),
    )
    return Cat(shift[0:3], shift[3] & ~lift), shift[3] & lift


def shifted(significand: Value, shift: Value, up: Value) -> tuple[Value, Value, Value]:
    """The significand shifted right: eight bits, the bit below them, and whether anything is lost
    below that.

    With ``up`` it is shifted eight places up first; then no element of the block has bits where
    they would be lost.
    """
    window = Cat(C(0, 1), significand, C(0, 4))
    coarse = gated(window[0:8], up) << 8 | Mux(shift[3], window[8:16], gated(window, ~up))
    lost = shift[3] & window[0:8].any()
    for bit, places in ((2, 4), (1, 2), (0, 1)):
        lost = lost | (shift[bit] & coarse[0:places].any())
        coarse = Mux(shift[bit], coarse[places:], coarse)
    return coarse[1:9], coarse[0], lost


def fp8_field(distance: Value, hidden: Value, is_e5m2: Value, is_fp8: Value) -> tuple[Value, Value]:
    """The exponent field in place (bits 2…6 of the code), and whether it is beyond the format."""
    normal = is_fp8 & hidden & distance[8]
    field = -distance
    placed = gated(Mux(is_e5m2, field[0:5], Cat(C(0, 1), field[0:4])), normal)
    return placed, normal & Mux(is_e5m2, field[5:8].any(), field[4:8].any())


def byte_parts(
    field: Value, over: Value, nan: Value, value: Value, guard: Value, lost: Value, fmt: dict
) -> tuple[Value, ...]:
    """What :func:`rounded_byte` rounds: seven bits of magnitude, whether to round up, whether to
    take the largest code instead.

    ``nan`` is an fp8 element's; int8's is the block's affair.
    """
    int8, e4m3, e5m2 = fmt[Format.INT8], fmt[Format.FP8_E4M3], fmt[Format.FP8_E5M2]
    # The hidden one of a normal fp8 value is counted in the field, so it is left out here.
    body = Cat(
        value[0:2],
        field[0] | (value[2] & ~e5m2),
        field[1] | (value[3] & ~e4m3),
        value[4:7] | field[2:5],
    )
    # From the largest code on, the answer is the largest code whatever comes below; only Inf makes
    # an int8 of more than seven bits.
    full = body[3:7].all() & Mux(
        e5m2, body[2] | body[0:2].all(), body[1:3].all() & (e4m3 | body[0])
    )
    return body, guard & (lost | body[0]), full | over | nan | (int8 & value[7])


def rounded_byte(sign: Value, body: Value, up: Value, clamp: Value, nan: Value, fmt: dict) -> Value:
    """The stored byte: sign and magnitude in fp8, two's complement in int8."""
    int8, e4m3, e5m2 = fmt[Format.INT8], fmt[Format.FP8_E4M3], fmt[Format.FP8_E5M2]
    negative = int8 & sign
    largest = Cat(
        Mux(e4m3, nan, ~(e5m2 & nan)),
        ~negative,
        ~negative & (~e5m2 | nan),
        (~negative).replicate(4),
    )
    # -round(v) = ~v + 1 - up: one adder for either sign.
    total = (Cat(body, C(0, 1)) ^ negative.replicate(8)) + (up ^ negative)
    return Cat(Mux(clamp, largest, total[0:7]), Mux(int8 & ~clamp, total[7], sign))


def first_quotient_bit(value: Value, step: Value) -> tuple[Value, Value]:
    """Of int4's quotient: whether it is 4 or more, and eight bits of what is left to divide.

    ``value`` counts halves of ``step``; half a step is added first, so that dividing rounds.
    """
    dividend = (value + step)[0:9]
    rest = (dividend[3:9] - step)[0:7]
    return ~rest[6], Cat(dividend[0:3], Mux(rest[6], dividend[3:8], rest[0:5]))


def other_quotient_bits(rest: Value, lost: Value, step: Value, step3: Value) -> Value:
    """The two lower bits of int4's quotient. ``step3`` is 3 · step; ``lost`` says that the dividend
    is larger than it looks.

    A tie goes to the even neighbour: what would make the quotient odd has to be exceeded, what
    would make it even has to be met.
    """
    finer = Cat(rest[0] | lost, rest[1:8])
    by_1, by_2, by_3 = finer > Cat(C(0, 1), step), rest[2:8] >= step, finer > Cat(C(0, 1), step3)
    return Cat((by_1 & ~by_2) | by_3, by_2)
