# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One element of the dequantiser, stage by stage, as expressions: `Dequantiser` has the registers
between them and the cycles.

A stored element is a magnitude of eight bits: |q|, |q| · (8+m), or an fp8 significand with its
hidden one on top. Shifted until its highest one meets the host's hidden one, it is the host's
fraction; where the host is subnormal, it is shifted as far as all of them are.

Shifting is rotation to the left in a ring of 16 bits. Bits 11…0 of the ring are the hidden one, ten
bits of fraction and one below; the magnitude starts in 11…4. An int block below fp16's normal range
turns it the other way, and what falls off the end comes round to bits 15…8, which its elements do
not reach any more.
"""

from amaranth.hdl import C, Cat, Mux, Value

from kelp_spec.formats import HostType

from .codec_lane import gated

__all__ = [
    "BASE_BITS",
    "absolute",
    "fp8_parts",
    "host_code",
    "leading_zeros",
    "multiplied",
    "rotated",
]

BASE_BITS = 9  #: of the host's exponent field while it may still be too large


def absolute(q: Value) -> Value:
    """|q| of a two's complement number, as wide as it."""
    # Negation inverts what lies above the lowest one.
    return Cat(q[0], *(q[k] ^ (q[-1] & q[0:k].any()) for k in range(1, len(q))))


def multiplied(q: Value, once: Value, thrice: Value) -> Value:
    """q · ``once`` for q in 0…8, with ``once`` in 8…15 and ``thrice`` three times that; 7 bits."""
    low = Mux(q[1], Mux(q[0], thrice, once << 1), Mux(q[0], once, 0))
    high = Mux(q[3], once << 1, Mux(q[2], once, 0))
    return Cat(low[0:2], (low[2:6] + high)[0:5])


def fp8_parts(code: Value, is_e5m2: Value) -> tuple[Value, Value, Value]:
    """Of seven bits of magnitude: the upper four bits of the significand, the exponent counted from
    the subnormals', and whether it is Inf or NaN.

    A NaN's significand is 1.1, Inf's is 1.0, as those of the host's are.
    """
    field = Mux(is_e5m2, code[2:7], Cat(code[3:7], C(0, 1)))
    fraction = Mux(is_e5m2, Cat(C(0, 1), code[0:2]), code[0:3])
    special = Mux(is_e5m2, field.all(), code.all())
    nan = special & fraction.any()
    hidden = field.any()
    return (
        Cat(fraction[0:2] & (~nan).replicate(2), fraction[2] | nan, hidden),
        field | ~hidden,
        special,
    )


def leading_zeros(bits: Value) -> Value:
    """Zeros above the highest one of eight bits; 7 if there is none."""
    count = C(7, 3)
    for k in range(1, 8):
        count = Mux(bits[k], 7 - k, count)
    return count


def rotated(magnitude: Value, places: Value) -> Value:
    """The ring, turned to the left by ``places``."""
    ring = Cat(C(0, 4), magnitude, C(0, 4))
    for bit, distance in ((3, 8), (2, 4), (1, 2), (0, 1)):
        ring = Mux(places[bit], ring.rotate_left(distance), ring)
    return ring


def host_code(
    host_type: Value,
    sign: Value,
    field: Value,
    ring: Value,
    deep: Value,
    special: Value,
    clamps: Value,
    void: Value,
) -> Value:
    """The host element, but for rounding.

    ``field`` is the exponent field of a normal result. ``deep`` says that what is in the upper half
    of the ring fell off the lower end. ``clamps`` asks for the largest finite value where ``field``
    is too large; ``special`` makes fp8's Inf or NaN, ``void`` a NaN of zeros.
    """
    bf16 = host_type == HostType.BF16
    hidden = ring[11] & ~deep
    over = clamps & hidden & (field[8] | field[0:8].all())
    exponent = (gated(field[0:8], hidden) | (special | over | void).replicate(8)) & Cat(
        ~over, C(127, 7)
    )
    fraction = Cat(ring[1:8], gated(ring[8:10], ~deep), (ring[10] & ~deep) | void) | over.replicate(
        10
    )
    return Mux(bf16, Cat(fraction[3:10], exponent, sign), Cat(fraction, exponent[0:5], sign))
