# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A testbench context that settles a design once for all that a bench sets (:func:`settled_late`).

Amaranth's own evaluates the whole design after each ``ctx.set``, which is most of what a bench of
many ports costs; its expressions it walks anew at each call.
"""

from typing import Any, NamedTuple

from amaranth.hdl import Const, ShapeCastable, Signal, Value, ValueCastable
from amaranth.hdl._ast import Slice
from amaranth.sim._async import TestbenchContext

from kelp_verif.harness.places import Places

__all__ = ["settled_late"]


def settled_late(bench):
    """The testbench ``bench``, the only one of its simulation, with a context whose ``set`` takes
    effect at the next ``get`` or wait. Nothing that it can see is another."""

    async def run(ctx):
        await _Steps(bench, _Context(ctx))

    return run


class _Steps:
    """Runs a bench, and settles what it has set whenever it waits."""

    def __init__(self, bench, context):
        self._running, self._context = bench(context), context

    def __await__(self):
        while True:
            try:
                wait = self._running.send(None)
            except StopIteration:
                self._context.settle()
                return
            self._context.settle()
            yield wait


class _Place(NamedTuple):
    """Where the bits of an expression are that is part of one signal."""

    state: Any  #: of the signal; nothing where the expression is more than that
    low: int = 0
    mask: int = 0
    shape: Any = None  #: what makes of the bits what a bench sees, if anything does


class _Context(TestbenchContext):
    def __init__(self, ctx):
        super().__init__(ctx._design, ctx._engine, ctx._process)
        self._changed, self._places = False, Places(self._place)

    def settle(self):
        if self._changed:
            self._changed = False
            self._engine.step_design()

    def get(self, expr):
        if self._changed:
            self.settle()
        state, low, mask, shape = self._places[expr]
        if state is None:
            return super().get(expr)
        bits = state.curr >> low & mask
        return bits if shape is None else shape.from_bits(bits)

    def set(self, expr, value):
        state, low, mask, shape = self._places[expr]
        if state is None or state.is_comb:
            return super().set(expr, value)
        if shape is not None:
            value = shape.const(value)
        if type(value) is not int:
            value = Const.cast(value).value
        state.update(state.next & ~(mask << low) | (value & mask) << low)
        self._changed = True

    def _place(self, expr):
        value, low, shape = Value.cast(expr), 0, None
        if isinstance(expr, ValueCastable) and isinstance(given := expr.shape(), ShapeCastable):
            shape = given
        mask = (1 << len(value)) - 1
        while isinstance(value, Slice):
            value, low = value.value, low + value.start
        if not isinstance(value, Signal) or value.shape().signed:
            return _Place(None)
        engine = self._engine.state
        return _Place(engine.slots[engine.get_signal(value)], low, mask, shape)
