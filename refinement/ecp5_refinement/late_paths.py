# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The late paths of a refined netlist as they will be routed, gathered into groups of ends."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from .placed_netlist import Placed
from .refinement import Refinement

__all__ = ["Group", "Wire", "late_paths"]

_KIND = re.compile(r"_(TRELLIS_FF|LUT4|PFUMX|L6MUX21|CCU2C|DP16KD|TRELLIS_DPR16X4)_.*")
_SLACK = 1e-3  # ns: arrivals are sums of single precision


class Wire(NamedTuple):
    """One of a path: its driver, where that is, its loads, and what the wire takes in ns."""

    driver: str
    x: int
    y: int
    loads: int
    ns: float


class Group(NamedTuple):
    """Ends that begin and end in cells of the same names but for numbers: the latest one's arrival
    in ns without setup, how many there are, its wires."""

    ns: float
    ends: int
    begin: str
    end: str
    wires: list[Wire]


def late_paths(refined: Path, *, above: float) -> list[Group]:
    """The ends that arrive `above` so many ns at speed 6, setup not counted, the latest group
    first, with wires as `annealed_design` predicts them.

    Parameters
    ----------
    refined : Path
        `refined.json` of a build: the netlist with a place for each cell.
    above : float
        ns.

    Raises
    ------
    OSError, ValueError
        The file is not there, or no netlist with a top module.
    """
    modules = json.loads(refined.read_text(encoding="utf-8")).get("modules", {}).values()
    top = next(
        (module for module in modules if int(module.get("attributes", {}).get("top", "0"), 2)), None
    )
    if top is None:
        raise ValueError("no module of it is the top")
    placed = Placed(top)
    names, design = list(top["cells"]), Refinement(placed).design
    arcs, nets = design.arcs, design.nets
    into = defaultdict(list)
    for n in (arcs["to"] >= 0).nonzero()[0]:
        into[int(arcs[n]["to"])].append(int(n))

    gives = nets["arrival"][arcs["net"]] + arcs["wire"] + arcs["through"]

    def path_to(end: int) -> list[int]:
        path = [end]
        while True:
            net = arcs[path[-1]]["net"]
            before = next(
                (n for n in into[int(net)] if abs(gives[n] - nets[net]["arrival"]) < _SLACK), None
            )
            if before is None or nets[net]["arrival"] <= nets[net]["start"] + _SLACK:
                return path[::-1]
            path.append(before)

    def plain(cell: int) -> str:
        return _KIND.sub("", names[cell])

    found = defaultdict(list)
    for end in ((arcs["to"] < 0) & (arcs["path"] > above)).nonzero()[0]:
        path = path_to(int(end))
        group = tuple(
            re.sub(r"\d+", "", plain(cell)) for cell in (arcs[path[0]]["source"], arcs[end]["cell"])
        )
        found[group].append((float(arcs[end]["path"]), path))
    groups = []
    for ends in found.values():
        ns, path = max(ends)
        wires = [
            Wire(
                plain(cell := arcs[n]["source"]),
                placed.x[cell],
                placed.y[cell],
                int(nets[arcs[n]["net"]]["after_end"] - nets[arcs[n]["net"]]["after"]),
                float(arcs[n]["wire"]),
            )
            for n in path
        ]
        groups.append(Group(ns, len(ends), wires[0].driver, plain(arcs[path[-1]]["cell"]), wires))
    return sorted(groups, key=lambda group: -group.ns)
