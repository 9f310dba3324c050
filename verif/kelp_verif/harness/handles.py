# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""cocotb's handles, quicker at what benches do in every cycle: they mean what they meant."""

from cocotb import handle as _handle
from cocotb._gpi_triggers import current_gpi_trigger
from cocotb.triggers import ReadOnly
from cocotb.types import Logic, LogicArray, Range

__all__ = ["quicken"]

_BITS = {"0": Logic("0"), "1": Logic("1")}
_plainly_set = _handle.ValueObjectBase.value.fset
_plainly_equal = Logic.__eq__
_child = _handle.HierarchyObject.__getattr__
_ranges: dict[int, Range] = {}


def quicken() -> None:
    """From now on: a whole number is written without a detour by way of cocotb's types, a bit is
    one of two objects, an array's range is that of all arrays of its width, and a child's name is
    looked up once. A bench spends half of its time on these otherwise (cocotb 2.1)."""
    if not _handle._trust_inertial:
        return  # writes wait for a phase of their own
    _handle.HierarchyObject.__getattr__ = _kept_child
    _handle.LogicObject.value = property(_bit, _set)
    _handle.LogicArrayObject.value = _handle.PackedObject.value = property(_array, _set)
    Logic.__eq__ = _equal


def _kept_child(self, name):
    found = _child(self, name)
    if isinstance(found, _handle.SimHandleBase):
        self.__dict__[name] = found
    return found


def _bit(self):
    found = self._handle.get_signal_val_binstr()
    return _BITS[found] if found in _BITS else Logic(found)


def _array(self):
    if _handle.do_indexing_changed_warning:
        return self.get()
    found = self._handle.get_signal_val_binstr()
    bits = len(found)
    if bits not in _ranges:
        _ranges[bits] = Range(bits - 1, "downto", 0)
    array = LogicArray.__new__(LogicArray)
    array._value_as_array = array._value_as_int = None
    array._value_as_str, array._range, array._warn_indexing = found, _ranges[bits], False
    return array


def _set(self, value):
    if value.__class__ is int or value.__class__ is bool:
        try:
            write, most = self._quick
        except AttributeError:
            write, most = self._quick = _writer(self)
        if 0 <= value <= most and current_gpi_trigger().__class__ is not ReadOnly:
            write(value)
            return
    _plainly_set(self, value)


def _writer(self):
    """What writes a number, and the largest that it does."""
    deposit, bits = _handle._GPISetAction.DEPOSIT.value, len(self)
    if self.is_const:
        return None, -1
    if isinstance(self, _handle.LogicObject) or bits <= 32:
        put = self._handle.set_signal_val_int
        # from 2**31 on it is a negative one
        return lambda value: put(deposit, value), (1 << min(bits, 31)) - 1
    text, put = f"0{bits}b", self._handle.set_signal_val_binstr
    return lambda value: put(deposit, format(value, text)), (1 << bits) - 1


def _equal(self, other):
    if other.__class__ is int or other.__class__ is bool:
        return _BITS["1" if other else "0"]._repr == self._repr if 0 <= other <= 1 else False
    return _plainly_equal(self, other)
