# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Models of a chip at power-up, where no flip-flop and no memory has the value that Verilog begins
with. Only what nothing writes, a table of constants, is as it is written."""

import contextlib
import ctypes
import re

import numpy as np

from kelp_hw.export import passes
from kelp_rtl import library

__all__ = ["Undefined", "rows_of", "undefined"]

# The backend's own `reg`s make Verilog's `always @*` run once; no flip-flop is behind them.
_REGISTER = re.compile(
    r"(?m)^(  reg (?:signed )?(?:\[\d+:\d+\] )?(?!\\\$auto\$verilog_backend)\S+ ?) = [^;]+;$"
)
_MEMORY = re.compile(r"(?ms)^  initial begin\n    (\S+) ?\[\d+\] = .*?^  end\n")


class Undefined(passes.Passes):
    """Takes initial values out of every Verilog. `tables` are the paths of those that stay,
    `registers` and `memories` how many have gone, all of the last one."""

    tables = frozenset()

    def verilog(self, text):
        self.registers = self.memories = 0
        self.tables = set()
        return "".join(self._module(module) for module in re.split(r"(?m)^(?=module )", text))

    def _module(self, text):
        text, registers = _REGISTER.subn(r"\1;", text)
        self.registers += registers
        return _MEMORY.sub(lambda found: self._memory(text, found), text)

    def _memory(self, module, found):
        name = found[1]
        if re.search(rf"(?m)^ +{re.escape(name)} ?\[[^=;]*<= ", module):
            self.memories += 1
            return ""
        path = re.match(r"module \\?([^\s(]+)", module)[1]
        self.tables.add(f"{path}.{name.lstrip(chr(92))}")
        return found[0]

    def scramble(self, model, seed):
        """Makes every row of `model`'s memories random. Verilator begins with the same in all rows
        of one."""
        rng = np.random.default_rng(seed)
        for a in model.arrays():
            if f"{a.scope.decode()}.{a.name.decode()}".removeprefix("TOP.") in self.tables:
                continue
            rows = rows_of(a)
            bits = rng.integers(0, 2, (a.depth, a.width), np.uint8)
            packed = np.packbits(bits, axis=1, bitorder="little")
            rows[:] = 0
            rows[:, : packed.shape[1]] = packed
        model.propagate()


def rows_of(array):
    """The rows of an array of a model, as bytes, which a writer changes in the model."""
    rows = (ctypes.c_uint8 * (array.depth * array.row_bytes)).from_address(array.rows)
    return np.ctypeslib.as_array(rows).reshape(array.depth, array.row_bytes)


@contextlib.contextmanager
def undefined():
    """The `Undefined` that is installed inside."""
    before, now = passes.installed(), Undefined()
    passes.install(now)
    library._built.cache_clear()
    try:
        yield now
    finally:
        passes.install(before)
        library._built.cache_clear()
