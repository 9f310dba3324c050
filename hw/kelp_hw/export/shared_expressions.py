# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One cell for an expression that is used more than once (:func:`shared_expressions`).

Amaranth 0.5 looks up the clock of everything that it emits, and copies an expression at each of its
uses while it does, and its parts at each of theirs: ``(~a).replicate(16)`` is sixteen inverters,
and a Python variable that is read twice is its logic twice. Synthesis merges them again; until
then, they are more than half of the endpoint's cells and two fifths of its Verilog.
"""

from __future__ import annotations

import contextlib

from amaranth.hdl import _ast
from amaranth.hdl._xfrm import DomainLowerer

from .replaced import Replaced

__all__ = ["shared_expressions"]

_EXPRESSIONS = frozenset({_ast.Operator, _ast.Concat, _ast.SwitchValue, _ast.Slice, _ast.Part})


@contextlib.contextmanager
def shared_expressions():
    """Within it, what Amaranth emits has each expression once a module, where it is one object in
    Python. `to_rtlil` is within it; a board's top, which Amaranth's platforms convert, is not."""
    with _REPLACED:
        yield


def _once(lowered):
    def on_value(self, value):
        if type(value) not in _EXPRESSIONS:
            return lowered(self, value)
        # Held beside the answer, so that no other object gets the identity of one of them.
        if id(value) not in self._kelp_lowered:
            self._kelp_lowered[id(value)] = lowered(self, value), value
        return self._kelp_lowered[id(value)][0]

    return on_value


def _apart(transformed):
    def on_fragment(self, fragment):
        # A cell that two modules shared would be one's, and come to the other by ports; and their
        # clocks of one name may differ.
        around, self._kelp_lowered = self.__dict__.get("_kelp_lowered"), {}
        try:
            return transformed(self, fragment)
        finally:
            self._kelp_lowered = around

    return on_fragment


_REPLACED = Replaced([(DomainLowerer, "on_value", _once), (DomainLowerer, "on_fragment", _apart)])
