# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block whose testbench is one of Amaranth's simulator's, compiled by Verilator
(:func:`simulate`): for benches of so many cycles that Amaranth's own simulator takes longer than a
build does."""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

from amaranth.hdl import Const, ShapeCastable, Value, ValueCastable
from amaranth.hdl._ast import Operator, Slice
from amaranth.lib.wiring import In

from kelp_hw.export.quick_amaranth import quick_amaranth
from kelp_hw.export.rtlil import component_ports
from kelp_hw.export.verilog import to_verilog
from kelp_rtl.verilator import QUICK_OPT, Cpp, verilate_model

from .places import Places

__all__ = ["simulate"]

_DRIVER = Path(__file__).with_name("compiled.cpp")
_WORDS = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def simulate(component, bench, *, seed: int = 1) -> None:
    """Run the coroutine ``bench(ctx)`` on ``component``, which has a signature.

    ``ctx`` has what such benches use of Amaranth's testbench context, for the component's ports and
    their fields: ``get``, ``set``, ``await ctx.tick()``. The block begins as after reset; what has
    no reset value is random by ``seed``. Other signals are out of reach.

    Raises :class:`AssertionError` where an ``Assert`` of the block fails.
    """
    context = _Context(_library(component), component, seed)
    try:
        with quick_amaranth():
            _run(bench(context), context)
    finally:
        context.close()


def _run(running, context):
    try:
        while True:
            running.send(None)
            context.cycle()
    except StopIteration:
        context.settle()


class _Place(NamedTuple):
    """Bits of a port that an expression is."""

    cells: Any  #: of the port; nothing where it is a constant
    size: int = 0  #: of it, in bytes
    low: int = 0
    mask: int = 0
    shape: Any = None  #: what makes of them what a bench sees, if anything does
    signed: bool = False
    constant: int = 0


class _Tick:
    def __await__(self):
        yield


class _Context:
    def __init__(self, library, component, seed):
        self._library, self._block = library, library.block_new(seed)
        ports = component_ports(component)
        at = (ctypes.c_void_p * len(ports))()
        library.block_ports(self._block, at)
        self._ports, self._changed = {}, True
        self._places = Places(self._place)
        self._words = {}  # of the ports that are unsigned numbers of at most 64 bits
        for (signal, member), address in zip(ports.values(), at, strict=True):
            size = _size(len(signal))
            cells = (ctypes.c_char * size).from_address(address)
            # The signal is kept with it: another one could come to have its id.
            self._ports[id(signal)] = cells, size, signal
            if size <= 8 and not signal.shape().signed:
                word = _WORDS[size].from_address(address)
                self._words[id(signal)] = word, (1 << len(signal)) - 1
            if member.flow is In:
                self.set(signal, signal.init)

    def close(self):
        self._library.block_delete(self._block)

    def tick(self):
        return _Tick()

    def cycle(self):
        self._changed = False
        self._judge(self._library.block_tick(self._block))

    def settle(self):
        if self._changed:
            self._changed = False
            self._judge(self._library.block_settle(self._block))

    @staticmethod
    def _judge(failed):
        if failed:
            raise AssertionError("an Assert of the block failed: see what Verilator printed")

    def _place(self, expression):
        value, low, shape = Value.cast(expression), 0, None
        if isinstance(value, Const):  # the `ready` of a stream that is always taken
            return _Place(None, constant=value.value)
        width, signed = len(value), value.shape().signed
        if isinstance(expression, ValueCastable):
            given = expression.shape()
            shape = given if isinstance(given, ShapeCastable) else None
        while isinstance(value, Slice | Operator):
            if isinstance(value, Slice):
                low, value = low + value.start, value.value
            elif value.operator in ("s", "u"):  # as_signed, as_unsigned
                (value,) = value.operands
            else:
                break
        if id(value) not in self._ports:
            raise ValueError(f"{value!r} is no port of the block, nor a field of one")
        cells, size, _ = self._ports[id(value)]
        return _Place(cells, size, low, (1 << width) - 1, shape, signed)

    def get(self, expression):
        self.settle()
        if word := self._words.get(id(expression)):
            return word[0].value
        place = self._places[expression]
        if place.cells is None:
            return place.constant
        bits = int.from_bytes(place.cells.raw, "little") >> place.low & place.mask
        if place.shape is not None:
            return place.shape.from_bits(bits)
        return bits - (place.mask + 1) if place.signed and bits > place.mask >> 1 else bits

    def set(self, expression, value):
        if word := self._words.get(id(expression)):
            cell, mask = word
            value = int(value) & mask
            if cell.value != value:
                cell.value, self._changed = value, True
            return
        place = self._places[expression]
        cells, size, low, mask, shape, *_ = place
        if cells is None:
            raise ValueError(f"{expression!r} is a constant")
        if shape is not None:
            value = Const.cast(shape.const(value)).value
        held = int.from_bytes(cells.raw, "little")
        cells.raw = (held & ~(mask << low) | (int(value) & mask) << low).to_bytes(size, "little")
        self._changed = True


def _size(bits):
    """Bytes of a port in Verilator's C++."""
    return next((size for size in (1, 2, 4, 8) if bits <= 8 * size), -(-bits // 32) * 4)


@functools.cache
def _built(verilog, names, kind):
    clock = bool(re.search(r"^  input clk;", verilog, re.M))
    ports = " ".join(f"P({name.replace('__', '___05F')})" for name in names)
    header = f"#pragma once\n#define CLOCK {int(clock)}\n#define PORTS(P) {ports}\n"
    library = ctypes.CDLL(
        str(
            verilate_model(
                verilog,
                Cpp(sources=[_DRIVER], headers={"ports.h": header}),
                name=f"compiled-{kind}",
                opt=QUICK_OPT,
            )
        )
    )
    library.block_new.restype = ctypes.c_void_p
    library.block_new.argtypes = [ctypes.c_int]
    for name in ("block_delete", "block_settle", "block_tick"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.block_ports.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    return library


def _library(component):
    verilog = to_verilog(component, checked=True)
    return _built(verilog, tuple(component_ports(component)), type(component).__name__)
