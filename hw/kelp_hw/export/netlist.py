# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The RTLIL that Amaranth emits, as data: modules, cells and what drives what, for those who ask
what a design is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .widths import parts

__all__ = ["Cell", "Instance", "Module", "instances", "read_rtlil"]

#: (wire, bit) of a module, or None for a bit of a constant.
Bit = tuple[str, int] | None


@dataclass
class Cell:
    """One cell: its kind with the leading ``$`` or ``\\``; parameters and connections by their
    names, as text."""

    kind: str
    name: str
    parameters: dict[str, str] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)

    def number(self, parameter: str) -> int:
        """A parameter that is an integer or a constant of bits; in the latter an undefined bit
        counts as 0."""
        text = self.parameters[parameter]
        _, quote, bits = text.partition("'")
        return int(bits.replace("x", "0") or "0", 2) if quote else int(text)


@dataclass
class Module:
    """One module. `inputs`, `outputs`: its ports. `assigns`: (left side, right side, what decides
    whether it is made: the controls of the cases round it). `memories`: name → (rows, bits of a
    row)."""

    name: str
    widths: dict[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    assigns: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    memories: dict[str, tuple[int, int]] = field(default_factory=dict)

    def bits(self, value: str) -> list[Bit]:
        """The bits of a value, lowest first."""
        found: list[Bit] = []
        for name, low, count in reversed(parts(value, self.widths)):
            found += [None] * count if low is None else [(name, low + n) for n in range(count)]
        return found


@dataclass(frozen=True)
class Instance:
    """A module where it stands: names of the instances from the top down to it."""

    path: tuple[str, ...]
    module: Module


def read_rtlil(text: str) -> dict[str, Module]:
    """Modules by name, of RTLIL as :func:`.rtlil.to_rtlil` emits it: combinational processes only,
    one statement a line. ValueError names a statement that it does not know."""
    modules: dict[str, Module] = {}
    module, cell, controls = Module(""), None, []
    for line in text.split("\n"):
        word, _, rest = line.lstrip().partition(" ")
        if word == "connect":
            left, right = _two(rest)
            if cell is None:
                module.assigns.append((left, right, ()))
            else:
                cell.ports[left[1:]] = right
        elif word == "parameter":
            name, value = rest.removeprefix("signed ").split(" ", 1)
            cell.parameters[name[1:]] = value.strip('"').replace("\\\\", "\\")
        elif word == "assign":
            module.assigns.append((*_two(rest), tuple(controls)))
        elif word == "wire":
            words = rest.split()
            module.widths[words[-1]] = int(words[words.index("width") + 1])
            for direction, ports in (("input", module.inputs), ("output", module.outputs)):
                if direction in words[:-1]:
                    ports.append(words[-1])
        elif word == "cell":
            cell = Cell(*rest.split())
            module.cells.append(cell)
        elif word == "switch":
            controls.append(rest)
        elif word == "end":
            if controls:
                controls.pop()
            else:
                cell = None
        elif word == "memory":
            words = rest.split()
            module.memories[words[-1]] = int(words[3]), int(words[1])
        elif word == "module":
            module = modules[rest] = Module(rest)
        elif word not in ("", "attribute", "case", "process"):
            raise ValueError(f"{line!r} is refused; legal: RTLIL as Amaranth emits it")
    return modules


def _two(text: str) -> tuple[str, str]:
    """The two values of a statement."""
    if text.startswith("{"):
        left, _, right = text.partition(" } ")
        return left + " }", right
    first = re.match(r"\S+(?: \[[\d:]+\])?", text)[0]
    return first, text[len(first) + 1 :]


def instances(modules: dict[str, Module], top: str) -> list[Instance]:
    """Every module of the design below `top`, once for each place where it stands, the top
    first."""
    found = [Instance((), modules["\\" + top])]
    for place in found:
        found += [
            Instance((*place.path, cell.name.removeprefix("\\")), modules[cell.kind])
            for cell in place.module.cells
            if cell.kind in modules
        ]
    return found
