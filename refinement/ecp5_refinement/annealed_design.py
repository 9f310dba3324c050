# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A placed ECP5 in arrays: wires, paths and half perimeters of :mod:`.annealing`, compiled."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

__all__ = [
    "ARC",
    "CELL",
    "NET",
    "Design",
    "appraise",
    "compiled",
    "length_of",
    "measure",
    "path_of",
    "price_of",
    "spread",
    "wire",
    "wire_of",
]

_SOURCES = (Path(__file__), Path(__file__).with_name("annealing.py"))
_KEPT = str(
    Path(numba.config.CACHE_DIR or Path(__file__).parent / "__pycache__")
    / f"kelp-{hashlib.sha256(b''.join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]}"
)

#: ns: a wire's base, a tile of its way up to `_KNEE` in a direction, a tile beyond, and a wire
#: within a tile: the means of what router1 made of 9 600 wires on paths of more than 9.5 ns
#: (docs/timing.md).
_BASE, _NEAR, _FAR, _KNEE, _SAME_TILE = 0.69, 0.10, 0.05, 4, 0.52
_UNSEEN = 4.0  #: ns before the late ones from which a path costs anything
_CROWDED = 2.0  #: added to a tile of half perimeter where twice as many wires are as should be

#: One record for each cell, net and arc, so that what a move reads lies together. `…_end`: lists
#: are parts of `Design.members`.
CELL = np.dtype(
    [
        (name, "i4")
        for name in (
            "x",
            "y",
            "z",
            "enable",
            "reset",
            "level",
            "into",
            "into_end",
            "drives",
            "drives_end",
            "weighed",
            "weighed_end",
        )
    ]
    + [("price", "f4")]
    + [(name, "i1") for name in ("kind", "freedom", "tied", "takes_m", "run", "run_at")]
)
NET = np.dtype(
    [(name, "i4") for name in ("after", "after_end", "pins", "pins_end", "seen")]
    + [(name, "f4") for name in ("start", "arrival", "left", "length")]
)
ARC = np.dtype(
    [(name, "i4") for name in ("net", "source", "cell", "to", "seen")]
    + [(name, "f4") for name in ("through", "fixed", "wire", "path")]
)


class Design(NamedTuple):
    """A placed netlist. Sites are `8 * (y * width + x) + z`; -1 is no cell.

    Cells: place, what registers of a slice (`enable`) and of a tile (`reset`) must agree on, lists
    of arcs into it, of nets it drives and of nets whose half perimeter is weighed, what its paths
    cost (`price`), and what :class:`.placed_netlist.Placed` says of it. Nets: lists of the arcs
    after it and of its cells, when it leaves its driver, arrival, the longest way from it to an end
    (`left`), and its weighed half perimeter (`length`). Arcs: ns through the cell (`through`), of a
    wire that does not depend on places (`fixed`, else -1), of its wire, and of the longest path
    over it.
    """

    cells: np.ndarray
    nets: np.ndarray
    arcs: np.ndarray
    forward: np.ndarray  #: arcs, each after those that lead to its net
    members: np.ndarray
    table: np.ndarray  #: site → cell
    register: np.ndarray  #: site → cell
    writer: np.ndarray  #: tile → cell that writes its RAM
    usable: np.ndarray  #: tile → whether cells may go there
    block_rams: np.ndarray
    #: sums over all tiles above and to the left of what is added to a tile of half perimeter there
    crowd: np.ndarray
    random: np.ndarray  #: one word
    slope: np.ndarray  #: one number, ns: a path that is longer by this costs e times as much
    width: int  #: tiles
    height: int


def compiled(function=None, **options):
    """Decorator: numba's `njit`, what is compiled being kept. numba asks whether a function's own
    file has changed, not those that it calls functions of: so each state of both files has a folder
    of its own, and only while it decorates: whatever else a process compiles stays where it
    belongs."""
    if function is None:
        return lambda each: compiled(each, **options)
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _KEPT
    try:
        return numba.njit(cache=True, **options)(function)
    finally:
        numba.config.CACHE_DIR = before


@compiled(inline="always")
def wire(x1, y1, x2, y2):
    """ns from a cell at one place to a cell at another."""
    dx, dy = abs(x1 - x2), abs(y1 - y2)
    bent = _KNEE * (_NEAR - _FAR)
    far = _BASE + min(_NEAR * dx, bent + _FAR * dx) + min(_NEAR * dy, bent + _FAR * dy)
    return far if dx + dy else _SAME_TILE


@compiled(inline="always")
def wire_of(cells, arc):
    """ns of an arc's wire, its ends being where they are."""
    source, sink = cells[arc.source], cells[arc.cell]
    return arc.fixed if arc.fixed >= 0 else wire(source.x, source.y, sink.x, sink.y)


@compiled(inline="always")
def path_of(nets, arc):
    """ns of the longest path over an arc."""
    return (
        nets[arc.net].arrival + arc.wire + arc.through + (nets[arc.to].left if arc.to >= 0 else 0.0)
    )


@compiled(inline="always")
def price_of(path, late, slope):
    """What a path costs: e times as much for `slope` ns more."""
    return slope * np.exp(min((path - late) / slope, 30.0)) if path > late - _UNSEEN else 0.0


@compiled(inline="always")
def _box(cells, members, first, last):
    """The first and the last column and row of a net."""
    cell = cells[members[first]]
    x1 = x2 = cell.x
    y1 = y2 = cell.y
    for n in range(first + 1, last):
        cell = cells[members[n]]
        x1, x2, y1, y2 = min(x1, cell.x), max(x2, cell.x), min(y1, cell.y), max(y2, cell.y)
    return x1, x2, y1, y2


@compiled
def length_of(cells, members, first, last, crowd):
    """Half perimeter, with what is added where many wires are."""
    if last - first < 2:
        return 0.0
    x1, x2, y1, y2 = _box(cells, members, first, last)
    more = crowd[y2 + 1, x2 + 1] - crowd[y1, x2 + 1] - crowd[y2 + 1, x1] + crowd[y1, x1]
    return (x2 - x1 + y2 - y1) * (1.0 + more / ((x2 - x1 + 1) * (y2 - y1 + 1)))


@compiled
def spread(design, enough):
    """How many wires are over each tile, were each net's spread over its box; where there are more
    than `enough`, half perimeters count for more from now on. Half perimeters of all nets,
    tiles."""
    over, total = np.zeros((design.height + 1, design.width + 1)), 0
    for n in range(len(design.nets)):
        net = design.nets[n]
        if net.pins_end - net.pins > 1:
            x1, x2, y1, y2 = _box(design.cells, design.members, net.pins, net.pins_end)
            total += x2 - x1 + y2 - y1
            each = (x2 - x1 + y2 - y1) / ((x2 - x1 + 1) * (y2 - y1 + 1))
            over[y1, x1] += each
            over[y2 + 1, x1] -= each
            over[y1, x2 + 1] -= each
            over[y2 + 1, x2 + 1] += each
    for y in range(design.height):
        for x in range(design.width):
            if x:
                over[y, x] += over[y, x - 1]
        for x in range(design.width):
            if y:
                over[y, x] += over[y - 1, x]
    design.crowd[:] = 0.0
    for y in range(design.height):
        row = 0.0
        for x in range(design.width):
            row += _CROWDED * max(0.0, over[y, x] / enough - 1.0)
            design.crowd[y + 1, x + 1] = design.crowd[y, x + 1] + row
    return total


@compiled
def measure(design):
    """Every wire, arrival, path and half perimeter afresh."""
    cells, nets, arcs = design.cells, design.nets, design.arcs
    for n in range(len(nets)):
        nets[n].arrival, nets[n].left = nets[n].start, 0.0
        nets[n].length = length_of(
            cells, design.members, nets[n].pins, nets[n].pins_end, design.crowd
        )
    for n in design.forward:
        arc = arcs[n]
        arc.wire = wire_of(cells, arc)
        if arc.to >= 0:
            nets[arc.to].arrival = max(
                nets[arc.to].arrival, nets[arc.net].arrival + arc.wire + arc.through
            )
    for n in design.forward[::-1]:
        arc = arcs[n]
        nets[arc.net].left = max(
            nets[arc.net].left, arc.wire + arc.through + (nets[arc.to].left if arc.to >= 0 else 0.0)
        )
    for n in range(len(arcs)):
        arcs[n].path = path_of(nets, arcs[n])


@compiled
def appraise(design, late):
    """What the paths over its wires cost each cell."""
    cells = design.cells
    for n in range(len(cells)):
        cells[n].price = 0.0
    for n in range(len(design.arcs)):
        arc = design.arcs[n]
        if arc.fixed < 0:
            price = price_of(arc.path, late, design.slope[0])
            cells[arc.cell].price += price
            cells[arc.source].price += price
