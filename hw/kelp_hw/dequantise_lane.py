# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One element of the dequantiser, stage by stage, as expressions.

A stored element is a magnitude of eight bits: |q|, |q| · (8+m), or an fp8 significand with its hidden one on top. Shifted until its highest
one meets the host's hidden one, it is the host's fraction; where the host is subnormal, it is shifted as far as all of them are.

Shifting is rotation to the left in a ring of 16 bits. Bits 11…0 of the ring are the hidden one, ten bits of fraction and one below; the
magnitude starts in 11…4. An int block below fp16's normal range turns it the other way, and what falls off the end comes round to
bits 15…8, which its elements do not reach any more.
"""

from amaranth.hdl import C, Cat, Mux, Value
from kelp_spec.formats import HostType

__all__ = ["absolute", "coarsely_rotated", "finely_rotated", "fp8_parts", "host_code", "leading_zeros", "multiplied"]


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
    """Of seven bits of magnitude: the significand in eight bits, the exponent counted from the subnormals', and whether it is Inf or NaN.

    A NaN's significand is 1.1, Inf's is 1.0, as those of the host's are.
    """
    field = Mux(is_e5m2, code[2:7], Cat(code[3:7], C(0, 1)))
    fraction = Mux(is_e5m2, Cat(C(0, 1), code[0:2]), code[0:3])
    special = Mux(is_e5m2, field.all(), code.all())
    nan = special & fraction.any()
    hidden = field.any()
    return Cat(C(0, 4), fraction[0:2] & (~nan).replicate(2), fraction[2] | nan, hidden), field | ~hidden, special


def leading_zeros(bits: Value) -> Value:
    """Zeros above the highest one of eight bits; 7 if there is none."""
    count = C(7, 3)
    for k in range(1, 8):
        count = Mux(bits[k], 7 - k, count)
    return count


def coarsely_rotated(magnitude: Value, places: Value) -> Value:
    """The ring, turned by the multiple of four in ``places`` (4 bits)."""
    ring = Cat(C(0, 4), magnitude, C(0, 4))
    ring = Mux(places[3], ring.rotate_left(8), ring)
    return Mux(places[2], ring.rotate_left(4), ring)


def finely_rotated(ring: Value, places: Value) -> Value:
    """The ring, turned by the rest of ``places`` (2 bits)."""
    ring = Mux(places[1], ring.rotate_left(2), ring)
    return Mux(places[0], ring.rotate_left(1), ring)


def host_code(host_type: Value, sign: Value, field: Value, fraction: Value, up: Value) -> Value:
    """The host element. ``up`` rounds, which it only does in results whose upper fraction bits are zero."""
    rounded = Cat((fraction[0:7] + up)[0:7], fraction[7:10])
    return Mux(host_type == HostType.BF16, Cat(fraction[3:10], field[0:8], sign), Cat(rounded, field[0:5], sign))
