# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the quantiser and the dequantiser share: a pipeline that moves as a whole, and how a host element splits."""

from amaranth.hdl import Assert, C, Cat, Module, Mux, Shape, Signal, Value

from kelp_spec.formats import Format, HostType

__all__ = ["RigidPipeline", "at_least", "gated", "host_exponent", "host_fraction", "is_all_ones", "largest_of_4"]


class RigidPipeline:
    """Valid bits and registers of ``stages`` stages between two streams.

    It stands still as a whole while ``o`` is valid and not ready, so ``i.ready`` is one gate away from ``o`` however long the pipeline is, and
    a full-rate stream has no bubbles. All registers share that one enable: gating each stage by its valid bit as well would put a second
    long net into the path from ``o.ready``.

    Stage 0 is the line at ``i``; stage ``stages`` is the line in the registers of ``o``.
    """

    def __init__(self, m: Module, i, o, stages: int):
        self._m = m
        self._moves = Signal(name="moves")
        valid = [i.valid, *(Signal(name=f"valid{k}") for k in range(1, stages)), o.valid]
        m.d.comb += [self._moves.eq(o.ready | ~o.valid), i.ready.eq(self._moves)]
        with m.If(self._moves):
            m.d.sync += [later.eq(earlier) for earlier, later in zip(valid, valid[1:], strict=False)]
        # Before the first clock the inputs are whatever power-up made them.
        started = Signal()
        m.d.sync += started.eq(1)
        with m.If(i.valid & started):
            m.d.sync += Assert(i.payload.format <= max(Format))

    def load(self, register: Value, value: Value) -> None:
        """One stage on, ``register`` has ``value``."""
        with self._m.If(self._moves):
            self._m.d.sync += register.eq(value)

    def register(self, k: int, value: Value, name: str) -> Signal:
        """``value`` of the line in stage k, as it is known in stage k + 1."""
        register = Signal(Shape.cast(value.shape()), name=f"{name}{k + 1}", reset_less=True)
        self.load(register, value)
        return register

    def carry(self, first: int, last: int, value: Value, name: str) -> dict[int, Value]:
        """``value`` of the line in stage ``first`` as it is known in every stage from ``first`` to ``last``."""
        known = {first: Value.cast(value)}
        for k in range(first, last):
            known[k + 1] = self.register(k, known[k], name)
        return known


def host_exponent(code: Value, host_type: Value) -> Value:
    """Exponent field of a host element, 8 bits."""
    return Mux(host_type == HostType.BF16, code[7:15], code[10:15])


def host_fraction(code: Value, host_type: Value) -> Value:
    """Fraction of a host element as ten bits, 2^-1 the highest."""
    return Mux(host_type == HostType.BF16, Cat(C(0, 3), code[0:7]), code[0:10])


def is_all_ones(exponent: Value, host_type: Value) -> Value:
    """Whether an exponent field is that of Inf and NaN."""
    return exponent[0:5].all() & ((host_type == HostType.FP16) | exponent[5:8].all())


def largest_of_4(a: Value, b: Value, c: Value, d: Value) -> Value:
    """The largest of four, one comparison deep: the winners' comparison is chosen among four made beforehand."""
    ab, cd = at_least(a, b), at_least(c, d)
    return Mux(Mux(ab, Mux(cd, at_least(a, c), at_least(a, d)), Mux(cd, at_least(b, c), at_least(b, d))), Mux(ab, a, b), Mux(cd, c, d))


def at_least(a: Value, b: Value) -> Value:
    """a >= b, for numbers of an odd width: the bit below makes it even, and the answer the end of a carry chain of two bits a cell."""
    return Cat(C(1, 1), a) > Cat(C(0, 1), b)


def gated(value: Value, enable: Value) -> Value:
    """``value`` or zeros. A Mux with zero would become a register's synchronous reset, whose net has to wait for the enable's."""
    return value & enable.replicate(len(value))
