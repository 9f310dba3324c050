# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the quantiser and the dequantiser share: how a host element splits, and which of some
magnitudes is the largest. Expressions without a register: no cycle."""

from amaranth.hdl import C, Cat, Mux, Value

from kelp_spec.formats import HostType

__all__ = ["at_least", "gated", "host_exponent", "host_fraction", "is_all_ones", "largest"]


def host_exponent(code: Value, host_type: Value) -> Value:
    """Exponent field of a host element, 8 bits."""
    return Mux(host_type == HostType.BF16, code[7:15], code[10:15])


def host_fraction(code: Value, host_type: Value) -> Value:
    """Fraction of a host element as ten bits, 2^-1 the highest."""
    return Mux(host_type == HostType.BF16, Cat(C(0, 3), code[0:7]), code[0:10])


def is_all_ones(exponent: Value, host_type: Value) -> Value:
    """Whether an exponent field is that of Inf and NaN."""
    return exponent[0:5].all() & ((host_type == HostType.FP16) | exponent[5:8].all())


def largest(of: list[Value]) -> Value:
    """The largest of two to four, one comparison deep: the winners' comparison is chosen among
    those made beforehand."""
    a, b = of[:2]
    ab, larger = at_least(a, b), Mux(at_least(a, b), a, b)
    if len(of) == 2:
        return larger
    if len(of) == 3:
        return Mux(Mux(ab, at_least(a, of[2]), at_least(b, of[2])), larger, of[2])
    c, d = of[2:]
    cd = at_least(c, d)
    return Mux(
        Mux(ab, Mux(cd, at_least(a, c), at_least(a, d)), Mux(cd, at_least(b, c), at_least(b, d))),
        larger,
        Mux(cd, c, d),
    )


def at_least(a: Value, b: Value) -> Value:
    """a >= b, for numbers of an odd width: the bit below makes it even, and the answer the end of a
    carry chain of two bits a cell."""
    return Cat(C(1, 1), a) > Cat(C(0, 1), b)


def gated(value: Value, enable: Value) -> Value:
    """``value`` or zeros. A Mux with zero would become a register's synchronous reset, whose net
    has to wait for the enable's."""
    return value & enable.replicate(len(value))
