# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What has become of each part of a board in its netlist: what it takes, and whether synthesis has
left anything of it.

A part is an instance in the board or in its endpoint, with all that is below it: `bridge`,
`cold_store`, `endpoint.cold` (the endpoint's scheduler). `board` and `endpoint` are what
these two hold themselves; `(top)` is what lies around the board.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

__all__ = ["cells", "counts", "lost", "part_of", "parts"]

#: Cells that hold state, or that nothing but a part's own arithmetic asks for.
_KEPT = {"TRELLIS_FF", "DP16KD", "MULT18X18D", "TRELLIS_DPR16X4"}
#: Comb sites that a cell takes; packing adds the ends of carry chains.
_COMB = {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 4}


def parts(rtlil: str) -> dict[str, bool]:
    """Each part of Amaranth's RTLIL of a top, and whether it holds state there: registers,
    memories, or an instance whose contents are not Amaranth's (a memory's model). What has none is
    combinational, and may go into its neighbours without a trace."""
    modules: dict[str, list[tuple[str, str]]] = {}
    for head, kind, name in re.findall(r"^(module|  cell) (\S+)(?: (\S+))?$", rtlil, re.M):
        if head == "module":
            inside = modules[kind] = []
        else:
            inside.append((kind, name.removeprefix("\\")))

    def own(module: str) -> bool:
        return any(
            "dff" in kind or kind.startswith(("$mem", "\\"))
            for kind, _ in modules[module]
            if kind not in modules
        )

    @cache
    def holds(module: str) -> bool:
        return own(module) or any(holds(kind) for kind, _ in modules[module] if kind in modules)

    def instance(module: str | None, wanted: str) -> str | None:
        return next(
            (kind for kind, name in modules.get(module, ()) if name == wanted and kind in modules),
            None,
        )

    board = instance("\\top", "board")
    found = {}
    for name, module, prefix in (
        ("board", board, ""),
        ("endpoint", instance(board, "endpoint"), "endpoint."),
    ):
        if module is not None:
            found[name] = own(module)
            found |= {
                f"{prefix}{each}": holds(kind)
                for kind, each in modules[module]
                if kind in modules and (prefix or each != "endpoint")
            }
    return found


def part_of(cell: str, known: dict[str, bool]) -> str:
    """The part that a cell of the flat netlist lies in, by its name. A register that is a port of
    its part may have its name from the part above, and lies there."""
    path = cell.split(".")
    if path[0] != "board" or len(path) < 2:
        return "(top)"
    inside = path[1] == "endpoint" and len(path) > 2
    name = ".".join(path[1:3]) if inside else path[1]
    return name if len(path) > 2 + inside and name in known else "endpoint" if inside else "board"


def cells(netlist: Path, known: dict[str, bool]) -> dict[str, Counter]:
    """The cells of each part, by type, in the JSON that `synth_ecp5` wrote for a top."""
    found = {name: Counter() for name in known}
    for cell, of in json.loads(netlist.read_text(encoding="utf-8"))["modules"]["top"][
        "cells"
    ].items():
        if of["type"] != "$scopeinfo":
            found.setdefault(part_of(cell, known), Counter())[of["type"]] += 1
    return found


def lost(known: dict[str, bool], found: dict[str, Counter]) -> list[str]:
    """The parts that hold state in the RTL, of which no register, memory or multiplier is left."""
    return [name for name, state in known.items() if state and not _KEPT & found[name].keys()]


def counts(found: Counter) -> dict[str, int]:
    """What these cells take, by the names of a report."""
    return {
        "luts": sum(sites * found[kind] for kind, sites in _COMB.items()),
        "ffs": found["TRELLIS_FF"],
        "ebr": found["DP16KD"],
        "dsp": found["MULT18X18D"],
    }
