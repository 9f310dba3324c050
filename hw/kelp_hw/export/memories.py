# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The memories of a design, read off its RTLIL: what a memory compiler is asked for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from .netlist import Cell, Instance, Module, instances

__all__ = ["Memory", "Read", "Shape", "memories_of", "shapes_of", "verilog_instances"]

#: What a macro's read port gives of the row that is written in the same cycle.
_MACROS = {"kelp_sram": "new", "kelp_sram_collision_x": "undefined"}


@dataclass(frozen=True)
class Read:
    """A read port. `clocked`: the row is out one cycle after its address, else in the same cycle.
    `collision`: what it gives of the row that is written in the same cycle: ``new``, ``old`` or
    ``undefined``."""

    clocked: bool
    collision: str


@dataclass(frozen=True)
class Shape:
    """What two memories have in common that one macro can stand for. `macro`: its module, or None
    for an array that the Verilog infers. `granularity`: bits that a write enable covers, 0 of a
    table that nothing writes."""

    macro: str | None
    rows: int
    bits: int
    reads: tuple[Read, ...]
    writes: int
    granularity: int


@dataclass(frozen=True)
class Memory:
    """One memory. `path`: names of blocks from the top down, the memory's own last."""

    path: tuple[str, ...]
    shape: Shape


def verilog_instances(memories: list[Memory], top: str, verilog: str) -> list[str]:
    """Where each memory stands in the `verilog` of the same design, below its top, as a
    hierarchical name: an escaped part of it ends in a space."""
    called = dict(re.findall(r"(?m)^  \\(\S+)  (\w+|\\\S+ ) \($", verilog))
    return [
        ".".join(
            [
                *(called[".".join((top, *m.path[:n]))] for n in range(1, len(m.path))),
                m.path[-1] if re.fullmatch(r"\w+", m.path[-1]) else f"\\{m.path[-1]} ",
            ]
        )
        for m in memories
    ]


def memories_of(modules: dict[str, Module], top: str) -> list[Memory]:
    """Every memory below `top`, by path. ValueError names an instance of a module that is neither
    in the design nor a macro."""
    found = []
    for place in instances(modules, top):
        found += _of(place, modules)
    return sorted(found, key=lambda memory: memory.path)


def shapes_of(memories: list[Memory]) -> list[tuple[Shape, int]]:
    """(shape, how many memories have it), the most bits first."""
    counted = Counter(memory.shape for memory in memories)
    return sorted(
        counted.items(), key=lambda item: (-item[0].rows * item[0].bits * item[1], repr(item[0]))
    )


def _of(place: Instance, modules: dict[str, Module]) -> list[Memory]:
    module, found = place.module, []
    for cell in module.cells:
        if not cell.kind.startswith("\\") or cell.kind in modules:
            continue
        macro = cell.kind[1:]
        if macro not in _MACROS:
            raise ValueError(f"instance of {macro} is refused; legal: {', '.join(_MACROS)}")
        rows, bits = cell.number("DEPTH"), cell.number("WIDTH")
        shape = Shape(macro, rows, bits, (Read(True, _MACROS[macro]),), 1, bits)
        found.append(Memory((*place.path, cell.name[1:]), shape))
    for name, (rows, bits) in module.memories.items():
        ports = [cell for cell in module.cells if cell.parameters.get("MEMID") == name]
        reads = tuple(_read(cell) for cell in ports if cell.kind == "$memrd_v2")
        writes = [cell for cell in ports if cell.kind == "$memwr_v2"]
        granularity = min((_granularity(module, cell) for cell in writes), default=0)
        shape = Shape(None, rows, bits, reads, len(writes), granularity)
        found.append(Memory((*place.path, name[1:]), shape))
    return found


def _read(cell: Cell) -> Read:
    if not cell.number("CLK_ENABLE"):
        return Read(False, "old")
    if cell.number("TRANSPARENCY_MASK"):
        return Read(True, "new")
    return Read(True, "undefined" if cell.number("COLLISION_X_MASK") else "old")


def _granularity(module: Module, write: Cell) -> int:
    """Bits of the row that one enable covers: the shortest run of bits with the same."""
    return min(len(list(run)) for _, run in groupby(module.bits(write.ports["EN"])))
