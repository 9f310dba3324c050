# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint with every memory within reach: which there are, and their bits turned over."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kelp_rtl.device import Driver, DriverError

from .inventory import memory_name

__all__ = ["FlipDriver", "Memory", "memories"]


class FlipDriver(Driver):
    """A driver that tells what was answered where a program broke off."""

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
    """One memory of a running model: `width` bits a row, `rows` as bytes, live. `propagate` is the
    model's, for what reads them combinationally."""

    name: str
    width: int
    depth: int
    rows: np.ndarray
    propagate: Callable[[], object]

    def flip(self, row: int, *bits: int) -> None:
        for bit in bits:
            self.rows[row, bit // 8] ^= 1 << bit % 8
        self.propagate()


def memories(driver: Driver) -> dict[str, Memory]:
    """Every memory of `driver`'s model, by name."""
    found = {}
    for a in driver.arrays():
        rows = np.ctypeslib.as_array(
            (ctypes.c_uint8 * (a.depth * a.row_bytes)).from_address(a.rows)
        ).reshape(a.depth, a.row_bytes)
        name = memory_name(*a.scope.decode().split(".")[2:], a.name.decode())
        assert name not in found, name
        found[name] = Memory(name, a.width, a.depth, rows, driver.propagate)
    return dict(sorted(found.items()))
