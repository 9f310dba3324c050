# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A pipeline that moves as a whole, through which a line goes at once or in several beats. One beat
a cycle and stage."""

from amaranth.hdl import Assert, C, Const, Module, Mux, Shape, Signal, Value

from kelp_spec.formats import Format

__all__ = ["RigidPipeline"]


class RigidPipeline:
    """Valid bits, beats and registers of ``stages`` stages between two streams.

    It stands still as a whole while ``o`` is valid and not ready, so ``i.ready`` is one gate away
    from ``o`` however long the pipeline is, and a full-rate stream has no bubbles. All registers
    share that one enable: gating each stage by its valid bit as well would put a second long net
    into the path from ``o.ready``.

    Stage 0 is the line at ``i``; stage ``stages`` is the line in the registers of ``o``. A line
    stays at ``i`` for ``beats`` cycles and is accepted in the last of them; its beats follow one
    another through the stages without gaps, and the line is at ``o`` when the last of them has
    come.

    Parameters
    ----------
    beats : int
        Parts in which a line goes through the stages; a power of two.
    cut : int
        The stage in which the line is still whole, and whose ``beat`` says which part of it goes
        on: 0, or 1 where all of the line must be seen first.

    Attributes
    ----------
    beat : by stage, from ``cut`` to ``stages`` - 1; which part of its line is in the stage.
    ``beat[0]`` counts the cycles of a line at ``i``.
    """

    def __init__(self, m: Module, i, o, stages: int, *, beats: int = 1, cut: int = 0):
        self._m, self._beats = m, beats
        self._moves = Signal(name="moves")
        # A line that goes at once needs no count, and Verilog knows no signal without bits.
        self.beat = {
            k: C(0, 1) if beats == 1 else Signal(range(beats), name=f"beat{k}")
            for k in sorted({0, *range(cut, stages)})
        }
        valid = {
            0: i.valid,
            **{k: Signal(name=f"valid{k}") for k in range(1, stages)},
            stages: o.valid,
        }
        self._accepted = i.valid & self._last(0)
        m.d.comb += [self._moves.eq(o.ready | ~o.valid), i.ready.eq(self._moves & self._last(0))]
        with m.If(self._moves):
            if beats > 1:
                with m.If(i.valid):
                    m.d.sync += self.beat[0].eq(self.beat[0] + 1)
                if cut:
                    with m.If(valid[1]):
                        m.d.sync += self.beat[1].eq(self.beat[1] + 1)
                m.d.sync += [self.beat[k].eq(self.beat[k - 1]) for k in range(cut + 1, stages)]
            if cut:
                m.d.sync += valid[1].eq(self._accepted | (valid[1] & ~self._last(1)))
            m.d.sync += [valid[k].eq(valid[k - 1]) for k in range(cut + 1, stages)]
            m.d.sync += o.valid.eq(valid[stages - 1] & self._last(stages - 1))
        # Before the first clock the inputs are whatever power-up made them.
        started = Signal()
        m.d.sync += started.eq(1)
        with m.If(i.valid & started):
            m.d.sync += Assert(i.payload.format <= max(Format))

    def _last(self, k: int) -> Value:
        return C(1, 1) if self._beats == 1 else self.beat[k] == self._beats - 1

    def until(self, k: int, last: Value | int) -> Value | None:
        """For :meth:`load`: the beat in stage k is ``last`` or one before it. None where every beat
        is."""
        return (
            None
            if self._beats == 1 or (isinstance(last, int) and last >= self._beats - 1)
            else self.beat[k] <= last
        )

    def part(self, k: int, whole: Value) -> Value:
        """Of ``whole``, which holds the parts of all beats, lowest first, the one of the beat in
        stage k."""
        parts = [
            whole[n : n + len(whole) // self._beats]
            for n in range(0, len(whole), len(whole) // self._beats)
        ]
        for bit in self.beat[k] if self._beats > 1 else ():
            parts = [Mux(bit, odd, even) for even, odd in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def load(self, register: Value, value: Value, when: Value | None = None) -> None:
        """One stage on, ``register`` has ``value``; with ``when`` only where it is true."""
        with self._m.If(self._moves if when is None else self._moves & when):
            self._m.d.sync += register.eq(value)

    def register(self, k: int, value: Value, name: str, when: Value | None = None) -> Value:
        """``value`` of the beat in stage k, as it is known in stage k + 1; a constant is known in
        all of them."""
        if isinstance(value, Const):
            return value
        register = Signal(Shape.cast(value.shape()), name=f"{name}{k + 1}", reset_less=True)
        self.load(register, value, when)
        return register

    def first(self, k: int, value: Value, name: str) -> Signal:
        """``value`` of a line's first beat in stage k, as it is known in stage k + 1 of all its
        beats."""
        return self.register(k, value, name, None if self._beats == 1 else self.beat[k] == 0)

    def accepted(self, value: Value, name: str) -> Signal:
        """``value`` of the line at ``i``, as it is known of all its beats in stage 1, which is the
        ``cut``."""
        return self.register(0, value, name, None if self._beats == 1 else self._accepted)

    def carry(self, first: int, last: int, value: Value, name: str) -> dict[int, Value]:
        """``value`` of the beat in stage ``first`` as it is known in every stage from ``first`` to
        ``last``."""
        known = {first: Value.cast(value)}
        for k in range(first, last):
            known[k + 1] = self.register(k, known[k], name)
        return known
