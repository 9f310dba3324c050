# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Slow paths of a synthesised ECP5 netlist, before it is placed: seconds instead of an hour, and
every block of the whole design at once."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Netlist", "SlowPath"]

#: Clock to output of what ends a path, ns, speed grade 6.
_START = {"TRELLIS_FF": 0.52, "DP16KD": 5.6}
_MEMORIES = ("DP16KD", "TRELLIS_DPR16X4")
_CLOCKS = ("CLK", "CLKA", "CLKB", "WCK")
_LUT = 0.24
_SETUP = {"DI": 0.1}
#: Carry chains: input to chain, along it, and out of it.
_CARRY_IN, _CARRY_ON, _CARRY_OUT = 0.45, 0.07, 0.45
_MULTIPLY = 5.0
#: Through the multiplexers that make one wider table of two: they stand beside their tables.
_WIDE = {"PFUMX": ("ALUT", "BLUT"), "L6MUX21": ("D0", "D1")}
_WIDE_MUX = 0.19


def _wire(loads: int) -> float:
    """Delay of a net by how many pins it feeds: what placements of this project's blocks came to on
    average, not a bound."""
    return 0.55 + 0.22 * math.log2(max(1, loads))


@dataclass(frozen=True)
class SlowPath:
    """The slowest path into a group of registers or memory pins whose names differ by numbers
    alone."""

    end: str
    #: DI data, CE enable, LSR reset of a register; a pin of a memory
    pin: str
    ends: int  #: how many the group has
    ns: float
    nets: tuple[tuple[float, int, str], ...]  #: from the start: arrival, loads, name


class Netlist:
    """A netlist that `synth_ecp5` wrote as JSON, and the arrival time of each of its nets.

    The model knows cells and fan-out, not places. Of the data path (36 000 LUTs) it said 37.7 MHz
    where the placed netlist came to 37.8.

    Parameters
    ----------
    path : Path
    top : str
        The module, flattened.
    """

    def __init__(self, path: Path, top: str = "top"):
        modules = json.loads(path.read_text(encoding="utf-8"))["modules"]
        if top not in modules:
            raise ValueError(f"top = {top!r} is refused; legal: {', '.join(sorted(modules)[:8])}")
        self.cells = modules[top]["cells"]
        self.counts = Counter(cell["type"] for cell in self.cells.values())
        self._names: dict[int, str] = {}
        self._driver: dict[int, tuple[str, str]] = {}
        self._loads: Counter = Counter()
        self._arrival: dict[int, float] = {}
        self._before: dict[int, int | None] = {}  # the net that a net's arrival comes from
        for name, net in modules[top]["netnames"].items():
            for n, bit in enumerate(net["bits"]):
                called = f"{name}[{n}]" if len(net["bits"]) > 1 else name
                if isinstance(bit, int) and (
                    bit not in self._names
                    or ("$" in called, len(called))
                    < ("$" in self._names[bit], len(self._names[bit]))
                ):
                    self._names[bit] = called
        for name, cell in self.cells.items():
            for pin, bits in cell["connections"].items():
                for bit in bits:
                    if isinstance(bit, int) and cell["port_directions"].get(pin) == "output":
                        self._driver[bit] = name, pin
                    elif isinstance(bit, int) and pin not in _CLOCKS:
                        self._loads[bit] += 1
        self._propagate()

    def blocks(self, depth: int = 2) -> dict[str, Counter]:
        """Cells by the first `depth` parts of their hierarchical names."""
        found: dict[str, Counter] = {}
        for name, cell in self.cells.items():
            found.setdefault(
                ".".join(name.split(".")[:depth]) if name.count(".") >= depth - 1 else "", Counter()
            )[cell["type"]] += 1
        return found

    def memories(self) -> Counter:
        """Block RAMs by the memory that they hold."""
        return Counter(
            re.sub(r"\.\d+\.\d+$", "", name)
            for name, cell in self.cells.items()
            if cell["type"] == "DP16KD"
        )

    def slowest(self, matching: str = "") -> list[SlowPath]:
        """One path for each group of ends whose name matches, the slowest first."""
        groups: dict[tuple[str, str], tuple[float, int, int]] = {}
        for ns, pin, bit, name in self._ends():
            key = (
                re.sub(
                    r"(?<=[A-Za-z_])\d+",
                    "N",
                    re.sub(r"\[\d+\]", "", re.sub(r"\.\d+(?=\.|$)", ".N", name)),
                ),
                pin,
            )
            worst, at, count = groups.get(key, (-1.0, bit, 0))
            groups[key] = (ns, bit, count + 1) if ns > worst else (worst, at, count + 1)
        chosen = sorted(
            (
                (ns, key, bit, count)
                for key, (ns, bit, count) in groups.items()
                if re.search(matching, key[0])
            ),
            reverse=True,
        )
        return [
            SlowPath(key[0], key[1], count, ns, self._path(bit)) for ns, key, bit, count in chosen
        ]

    def _ends(self):
        for name, cell in self.cells.items():
            kind = cell["type"]
            for pin, bits in cell["connections"].items():
                if cell["port_directions"].get(pin) != "input" or pin in _CLOCKS:
                    continue
                if kind == "TRELLIS_FF" and pin in ("DI", "CE", "LSR", "M"):
                    called = self._names.get(cell["connections"]["Q"][0], name)
                elif kind in _MEMORIES and not pin.startswith(("RST", "RAD")):
                    called, pin = name, re.sub(r"\d+$", "", pin)
                else:
                    continue
                for bit in bits:
                    if isinstance(bit, int):
                        yield (
                            self._arrival.get(bit, 0.0)
                            + _SETUP.get(pin, _wire(self._loads[bit]) + 0.1),
                            pin,
                            bit,
                            called,
                        )

    def _path(self, bit: int | None) -> tuple[tuple[float, int, str], ...]:
        nets, seen = [], set()
        while bit is not None and bit not in seen:  # what a loop hears of itself leads round
            seen.add(bit)
            nets.append(
                (round(self._arrival.get(bit, 0.0), 2), self._loads[bit], self._names.get(bit, "?"))
            )
            bit = self._before.get(bit)
        return tuple(reversed(nets))

    def _propagate(self) -> None:
        """Arrival times, depth first without recursion; a combinational loop counts as a start."""
        under_way: set[int] = set()
        for first in self._driver:
            todo = [first]
            while todo:
                bit = todo[-1]
                if bit in self._arrival:
                    todo.pop()
                    continue
                inputs = self._inputs(bit)
                missing = [
                    source
                    for source, _ in inputs
                    if source not in self._arrival and source not in under_way
                ]
                if missing and bit not in under_way:
                    under_way.add(bit)
                    todo += missing
                    continue
                start = (
                    _START.get(self.cells[self._driver[bit][0]]["type"], 0.0)
                    if bit in self._driver
                    else 0.0
                )
                self._arrival[bit], self._before[bit] = max(
                    ((self._arrival.get(source, 0.0) + ns, source) for source, ns in inputs),
                    default=(start, None),
                )
                under_way.discard(bit)
                todo.pop()

    def _inputs(self, bit: int) -> list[tuple[int, float]]:
        """What the net's driver hears in the same cycle, and the delay from each of those nets to
        this one."""
        if bit not in self._driver:
            return []
        name, pin = self._driver[bit]
        cell = self.cells[name]
        kind, directions = cell["type"], cell["port_directions"]
        if kind in _START:
            return []
        heard = []
        for port, bits in cell["connections"].items():
            if (
                directions.get(port) != "input"
                or port in _CLOCKS
                or (kind == "TRELLIS_DPR16X4" and port != "RAD")
            ):
                continue
            inner, wired = _LUT, True
            if kind == "CCU2C":
                if port == "CIN":
                    inner, wired = (_CARRY_ON if pin == "COUT" else _CARRY_OUT), False
                elif pin == "COUT" or (pin == "S1" and port.endswith("0")):
                    inner = _CARRY_IN
                elif pin == "S0" and port.endswith("1"):
                    continue
            elif kind in _WIDE:
                inner, wired = _WIDE_MUX, port not in _WIDE[kind]
            elif kind == "MULT18X18D":
                if not re.fullmatch(r"[AB]\d+", port):
                    continue
                inner = _MULTIPLY
            for source in bits:
                if isinstance(source, int):
                    from_carry = self._driver.get(source, ("", ""))[1] == "COUT"
                    heard.append(
                        (
                            source,
                            inner
                            + (_wire(self._loads[source]) if wired else 0)
                            + (_CARRY_OUT if from_carry and wired else 0),
                        )
                    )
        return heard
