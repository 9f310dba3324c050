# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Single-error-correcting, double-error-detecting code over one SRAM word (spec §4):
expressions without a register; one word a cycle."""

from __future__ import annotations

from itertools import combinations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

__all__ = ["LaneSecded", "Secded"]


class Secded:
    """A Hsiao code for words of `width` data bits. Its methods build combinational logic.

    Every column of the parity-check matrix has odd weight and columns are chosen so that the rows
    are balanced: one XOR tree of about 3·width/check_bits inputs per check bit, and "odd syndrome"
    alone tells a single error from a double one. Zero data has zero check bits, so a cleared word
    is a code word. The code word is the data in the low bits, then the check bits.

    A single flipped bit anywhere in the code word is corrected, two are detected. Three or more are
    detected when their syndrome is not that of a single one.

    All of it is combinational. The syndrome and the repair are two methods, so that a register may
    stand between them.

    Parameters
    ----------
    width : int
        Data bits, 4 … 64.

    Attributes
    ----------
    check_bits, code_bits : int
    columns : tuple[int, ...]
        The syndrome of a flip of each code bit.
    """

    def __init__(self, width: int):
        if not isinstance(width, int) or isinstance(width, bool) or not 4 <= width <= 64:
            raise ValueError(f"width = {width!r} is refused; legal: 4 … 64")
        self.width = width
        check = 4
        # odd-weight columns left when the unit vectors are taken
        while (1 << (check - 1)) - check < width:
            check += 1
        self.check_bits = check
        self.code_bits = width + check
        self.columns = (*_balanced(width, check), *(1 << r for r in range(check)))
        self.layout = data.StructLayout({"data": width, "check": check})

    def _rows(self, value: Value, columns) -> Value:
        """One tree for each check bit, so that synthesis can make it as flat as its inputs
        allow."""
        return Cat(
            Cat(bit for bit, column in zip(value, columns, strict=True) if column >> r & 1).xor()
            for r in range(self.check_bits)
        )

    def encode(self, value) -> Value:
        """The code word of `value`."""
        value = Value.cast(value)[: self.width]
        return Cat(value, self._rows(value, self.columns[: self.width]))

    def syndrome(self, code) -> Value:
        """Zero for a code word."""
        return self._rows(Value.cast(code)[: self.code_bits], self.columns)

    def repair(self, code, syndrome) -> tuple[Value, Value, Value]:
        """(data with a single error corrected, single error, uncorrectable error) from a code word
        as read and its syndrome."""
        syndrome = Value.cast(syndrome)
        hit = Cat(
            syndrome == Const(column, self.check_bits) for column in self.columns[: self.width]
        )
        single, double = (
            self._looked_up(which, syndrome)
            for which in (
                set(self.columns),
                set(range(1, 1 << self.check_bits)) - set(self.columns),
            )
        )
        return Value.cast(code)[: self.width] ^ hit, single, double

    def _looked_up(self, which: set[int], syndrome: Value) -> Value:
        """Whether the syndrome is one of `which`. Of seven bits that is two levels of an FPGA's
        tables. A constant loses leading zeros in Verilog, and lint says so: of a table whose last
        bit is 0 the complement is written."""
        rows = 1 << self.check_bits
        table, last = sum(1 << each for each in which), rows - 1 in which
        found = Const(table if last else ~table & ((1 << rows) - 1), rows).bit_select(syndrome, 1)
        return found if last else ~found


class LaneSecded:
    """A code like :class:`Secded`'s for words of `width` data bits in lanes of eight, whose logic
    shares what lanes have in common, and of which a simulator takes a lane in one operation.

    A column is a number of the lane and one of the bit in it, four bits each: one of them of even
    and the other of odd weight. Parities of lanes give one half of a syndrome, those of the lanes'
    sum the other. What it corrects and detects is what :class:`Secded` does.

    Parameters
    ----------
    width : int
        Data bits, 58 … 64: a :class:`Secded` of fewer has fewer check bits.

    Attributes
    ----------
    check_bits : int
    columns : tuple[int, ...]
        The syndrome of a flip of each code bit.
    """

    LEAST, MOST = 58, 64
    check_bits = 8

    _ODD = (1, 2, 4, 7, 8, 11, 13, 14)
    _LANES = (3, 5, 6, 9, 10, 12, 15, 7)  #: the last one's bits are even: with it they are odd

    def __init__(self, width: int):
        if not self.LEAST <= width <= self.MOST:
            raise ValueError(f"width = {width!r} is refused; legal: {self.LEAST} … {self.MOST}")
        self.width = width
        data = [
            lane << 4 | bit ^ (lane == self._LANES[-1]) for lane in self._LANES for bit in self._ODD
        ]
        self.columns = (*data[:width], *(1 << r for r in range(self.check_bits)))

    def check(self, m: Module, value) -> Value:
        """The check bits of `value`, with logic in `m`."""
        word, total, parities = Signal(self.MOST), Signal(8), Signal(8)
        lanes = [word.word_select(k, 8) for k in range(8)]
        sums = [*lanes]
        while len(sums) > 1:
            sums = [a ^ b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        m.d.comb += [
            word.eq(value),
            total.eq(sums[0]),
            parities.eq(Cat(lane.xor() for lane in lanes)),
        ]
        low = [
            Cat(total[k] for k, bit in enumerate(self._ODD) if bit >> r & 1).xor() for r in range(4)
        ]
        high = [
            Cat(parities[k] for k, lane in enumerate(self._LANES) if lane >> r & 1).xor()
            for r in range(4)
        ]
        return Cat(low[0] ^ parities[-1], *low[1:], *high)

    def repair(self, m: Module, value, syndrome) -> tuple[Value, Value, Value]:
        """(data with a single error corrected, single error, uncorrectable error) from the data as
        read and `syndrome`, a Signal, with logic in `m`."""
        low, high = syndrome[:4], syndrome[4:]
        odd, even, turned = Signal(8), Signal(8), Signal(self.width)
        single, double = Signal(), Signal()
        m.d.comb += [
            odd.eq(Cat(low == bit for bit in self._ODD)),
            even.eq(Cat(low == bit ^ 1 for bit in self._ODD)),
            turned.eq(
                Cat(
                    Mux(high == lane, even if lane == self._LANES[-1] else odd, 0)
                    for lane in self._LANES
                )
            ),
            single.eq(turned.any() | Cat(syndrome == 1 << r for r in range(8)).any()),
            double.eq(syndrome.any() & ~single),
        ]
        return value ^ turned, single, double


def _balanced(width: int, check: int) -> list[int]:
    """`width` distinct odd-weight columns of weight 3 and up, lightest first, each taken so that
    the heaviest row stays light."""
    load = [0] * check
    columns = []
    for weight in range(3, check + 1, 2):
        left = [sum(1 << r for r in rows) for rows in combinations(range(check), weight)]
        while left and len(columns) < width:
            best = min(
                left,
                key=lambda c: sorted((load[r] + (c >> r & 1) for r in range(check)), reverse=True),
            )
            left.remove(best)
            columns.append(best)
            load = [n + (best >> r & 1) for r, n in enumerate(load)]
    return columns
