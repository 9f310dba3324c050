# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A testbench context that settles a design once for all that a bench sets (:func:`settled_late`).

Amaranth's own evaluates the whole design after each ``ctx.set``, which is most of what a bench of
many ports costs; its expressions it walks anew at each call.
"""

from amaranth.hdl import Const, ShapeCastable, Signal, Value, ValueCastable
from amaranth.sim._async import TestbenchContext

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


class _Context(TestbenchContext):
    def __init__(self, ctx):
        super().__init__(ctx._design, ctx._engine, ctx._process)
        self._changed = False
        state = self._engine.state
        self._slots, self._slot_of = state.slots, state.get_signal

    def settle(self):
        if self._changed:
            self._changed = False
            self._engine.step_design()

    def get(self, expr):
        if self._changed:
            self.settle()
        if type(expr) is Signal:
            return self._slots[self._slot_of(expr)].curr
        return super().get(expr)

    def set(self, expr, value):
        if isinstance(expr, ValueCastable) and isinstance(shape := expr.shape(), ShapeCastable):
            value = shape.const(value)
        if type(value) is not int:
            value = Const.cast(value).value
        self._engine.set_value(Value.cast(expr), value)
        self._changed = True
