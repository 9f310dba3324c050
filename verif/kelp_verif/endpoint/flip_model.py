# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint with every memory within reach: which there are, and their bits turned over."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kelp_rtl.device import Driver, DriverError
from kelp_rtl.library import Variant

from .inventory import memory_name

__all__ = ["FLIPS", "FlipDriver", "Memory", "memories"]

_HERE = Path(__file__).parent
_ARRAY = re.compile(r"^(  reg (?:\[\d+:0\] )?\\?\w+ +\[\d+:0\]);$", re.M)


def _reach(verilog: str) -> str:
    """The Verilog with every array public; nothing else is, which would make the model slow."""
    return _ARRAY.sub(r"\1 /*verilator public_flat_rw*/;", verilog)


#: Without assertions: after a flip they would speak where hardware is silent.
FLIPS = Variant(
    name="flips",
    edit=_reach,
    sources=(_HERE / "flips.cpp", _HERE / "flips.vlt"),
    arguments=("--no-assert",),
)


class _Array(ctypes.Structure):
    _fields_ = [
        ("scope", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("rows", ctypes.c_void_p),
        ("width", ctypes.c_uint32),
        ("depth", ctypes.c_uint32),
        ("row_bytes", ctypes.c_uint32),
    ]


class FlipDriver(Driver):
    """A driver of a FLIPS that tells what was answered where a program broke off."""

    VARIANT = FLIPS

    def run(self, program, **options):
        """As `Driver` has it."""
        self._last = None
        try:
            result = super().run(program, **options)
        except DriverError:
            arrays = self._program[2]
            self._last = tuple(
                arrays[name] for name in ("response", "accept_order", "read_data", "response_cycle")
            )
            raise
        self._last = result.response, result.accept_order, result.data, result.response_cycle
        return result

    def answered(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Responses of the last program, their order of acceptance, data and cycles."""
        return self._last


@dataclass(frozen=True)
class Memory:
    """One memory of a running model: `width` bits a row, `rows` as bytes, live and writable."""

    name: str
    width: int
    depth: int
    rows: np.ndarray

    def flip(self, row: int, *bits: int) -> None:
        for bit in bits:
            self.rows[row, bit // 8] ^= 1 << bit % 8


def memories(driver: Driver) -> dict[str, Memory]:
    """Every memory of `driver`'s model, which is a FLIPS, by name."""
    call = driver._call
    call.flip_arrays.restype, call.flip_arrays.argtypes = (
        ctypes.c_uint64,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
    )
    context = call.kelp_context(driver._simulation)
    arrays = (_Array * call.flip_arrays(context, None, 0))()
    call.flip_arrays(context, arrays, len(arrays))
    found = {}
    for a in arrays:
        rows = np.ctypeslib.as_array(
            (ctypes.c_uint8 * (a.depth * a.row_bytes)).from_address(a.rows)
        ).reshape(a.depth, a.row_bytes)
        name = memory_name(*a.scope.decode().split(".")[2:], a.name.decode())
        found[name] = Memory(name, a.width, a.depth, rows)
    return dict(sorted(found.items()))
