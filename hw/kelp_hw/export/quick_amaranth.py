# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Amaranth 0.5's inner loops without what they do again and again (:func:`quick_amaranth`).

The RTLIL is the same, byte for byte, in three quarters of the time; simulations are the same. What
is left out:

- a netlist value checks the type of each of its bits whenever one is made, sliced or joined;
- an expression's shape is worked out anew, from its leaves up, at each question for its width;
- a view makes a field anew each time that it is named, which a bench does in every cycle.
"""

from __future__ import annotations

import contextlib

from amaranth.hdl import _ast, _nir
from amaranth.lib.data import View

from .replaced import Replaced

__all__ = ["quick_amaranth"]


@contextlib.contextmanager
def quick_amaranth():
    """Within it, Amaranth's netlists are made unchecked, its expressions keep their shapes, and its
    views their fields."""
    with _REPLACED:
        yield


def _unchecked(new):
    def bits(cls, nets=()):
        return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)

    return bits


def _keeping(shape):
    def kept(self):
        try:
            return self._kelp_shape
        except AttributeError:
            self._kelp_shape = found = shape(self)
            return found

    return kept


def _fields_kept(made):
    def field(view, key):
        if type(key) not in (str, int):
            return made(view, key)
        fields = view.__dict__.setdefault("_kelp_fields", {})
        if key not in fields:
            fields[key] = made(view, key)
        return fields[key]

    return field


_REPLACED = Replaced(
    [
        (_nir.Value, "__new__", _unchecked),
        # Expressions, which do not change once made.
        *((kind, "shape", _keeping) for kind in (_ast.Operator, _ast.Concat, _ast.SwitchValue)),
        (View, "__getitem__", _fields_kept),
    ]
)
