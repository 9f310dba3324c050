# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Amaranth 0.5's inner loops without what they do again and again (:func:`quick_amaranth`): the
same RTLIL, byte for byte, and the same simulation, in three quarters of the time.

Half of what `make test` computes is Amaranth's. A quarter of that is three things:

- a netlist value checks the type of each of its bits whenever one is made, sliced or joined;
- an expression's shape is worked out anew, from its leaves up, at each question for its width;
- a view makes a field anew each time that it is named, which a bench does in every cycle.
"""

from __future__ import annotations

import contextlib

from amaranth.hdl import _ast, _nir
from amaranth.lib.data import View

__all__ = ["quick_amaranth"]

#: Expressions, which do not change once made.
_EXPRESSIONS = (_ast.Operator, _ast.Concat, _ast.SwitchValue)


@contextlib.contextmanager
def quick_amaranth():
    """Within it, Amaranth's netlists are made unchecked, its expressions keep their shapes, and its
    views their fields."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(_nir.Value, "__new__", _bits))
        for kind in _EXPRESSIONS:
            stack.enter_context(_replaced(kind, "shape", _keeping(kind.shape)))
        stack.enter_context(_replaced(View, "__getitem__", _field))
        yield


@contextlib.contextmanager
def _replaced(owner: type, name: str, by):
    real = owner.__dict__[name]
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, real)


def _bits(cls, nets=()):
    return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)


def _keeping(shape):
    def kept(self):
        try:
            return self._kelp_shape
        except AttributeError:
            self._kelp_shape = found = shape(self)
            return found

    return kept


def _field(view, key, made=View.__getitem__):
    if type(key) not in (str, int):
        return made(view, key)
    fields = view.__dict__.setdefault("_kelp_fields", {})
    if key not in fields:
        fields[key] = made(view, key)
    return fields[key]
