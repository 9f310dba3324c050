# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Shorter paths and wires in a placed netlist, by exchanges of cells.

`python -m ecp5_refinement PLACED OUTPUT`, between placement and routing. On a device that is 70 %
full nextpnr's placer leaves a few per cent of the paths a third longer than the rest, and wires
that can be shorter. What stands there is exchanged, at temperatures that fall (:mod:`.annealing`);
the rules of :mod:`.placed_netlist` hold before, after and within.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from . import annealed_design, annealing
from .annealed_design import ARC, CELL, NET, Design
from .placed_netlist import Placed
from .placed_timing import Order

__all__ = ["EPOCHS", "Refinement", "refine"]

EPOCHS = 170
_HOT, _COLD = 0.06, 0.01  #: temperatures at the first epoch and the last but `_STILL`
_STILL = 10  #: epochs that make no move which costs anything
#: ns, from the first epoch to the last: a path that is longer by this costs e times as much. What
#: is late by much and shared by many comes into order while paths can still give way to each other;
#: the latest ones count alone at the end.
_SLOPE = 0.7, 0.2
_MOVES = 4  #: in an epoch, of each cell that may move
_REACH = 6, 1  #: tiles
_SHARE = 0.99  #: of the ends that are early enough,
_EARLY = 11.0  #: or that arrive before this, ns at speed 6
_NEAR = 1.5  #: ns before that share's arrival from which a path's cells are drawn more often
_OFTEN = 0.4  #: of the draws
#: cost of a tile of a net's half perimeter, late or not: what gives way must not get long wires, or
#: nothing can be routed
_TILE = 0.06
_ENOUGH = 70.0  #: wires over a tile from which on its nets cost more
_WIDE = 32  #: cells of a net from which on its half perimeter is not weighed
_MOST_LOADS = 200  #: of a cell that moves
_TOGETHER = 5  #: one of so many cells that only move with their tile is drawn
#: that a block RAM is drawn as often as another cell: it has few places to go to, and dozens of
#: wires that must allow it
_BLOCK_RAM_TIMES = 20
_KINDS = {"TRELLIS_COMB": 0, "TRELLIS_FF": 1, "TRELLIS_RAMW": 2, "DP16KD": 3}
_STAYS = 3


def _numbers(values: list) -> list[int]:
    """The same number for equal values."""
    known: dict = {}
    return [known.setdefault(value, len(known)) for value in values]


class Refinement:
    """A placed netlist in arrays, and epochs of exchanges.

    Parameters
    ----------
    placed : Placed
        Changed by `store`.
    seed : int
        Of the moves that are drawn.

    Attributes
    ----------
    design : annealed_design.Design
    arrivals : ndarray
        ns at speed 6 of each end, setup not counted. `worst`: the latest; `wires`: half perimeters
        of the weighed nets, tiles.
    """

    def __init__(self, placed: Placed, *, seed: int = 1):
        self.placed, order = placed, Order(placed)
        self._ends = order.ends
        #: Of the ends those that no clock network leads to: what a reset takes is its buffer's
        #: place, and no measure of the rest.
        self._judged = np.array(
            [n for n in order.ends if placed.types[placed.driver[placed.arcs[n].net]] != "DCCA"],
            int,
        )
        width, height = max(placed.x) + 1, max(placed.y) + 1
        cells, nets, arcs, members = self._records(order)
        # On a free site stands a cell without a wire: block RAMs change places with it as with each
        # other.
        free = sorted(
            set(placed.block_ram_sites) - {(placed.x[n], placed.y[n]) for n in placed.block_rams}
        )
        nothing = np.zeros(len(free), CELL)
        nothing["x"], nothing["y"] = np.array(free, "i4").reshape(-1, 2).T
        nothing["kind"], nothing["freedom"] = _KINDS["DP16KD"], _STAYS
        block_rams = np.array(
            [*placed.block_rams, *range(len(cells), len(cells) + len(free))], "i4"
        )
        cells = np.concatenate([cells, nothing])
        self.design = Design(
            cells,
            nets,
            arcs,
            order.forward.astype("i4"),
            members,
            *self._sites(width, height),
            block_rams,
            np.zeros((height + 1, width + 1)),
            np.array([0x9E3779B97F4A7C15 * (2 * seed + 1) & (1 << 64) - 1], np.uint64),
            np.array([_SLOPE[0]]),
            width,
            height,
        )
        self.scratch = annealing.scratch(len(arcs), len(nets))
        #: Cells to draw from.
        self.movable = np.array(
            [n for n in range(len(placed.cells)) if self._leads(n)]
            + placed.block_rams * (_BLOCK_RAM_TIMES - 1),
            "i4",
        )
        self._look()

    def _records(self, order: Order) -> tuple[np.ndarray, ...]:
        placed = self.placed
        cells, nets, arcs = (
            np.zeros(len(each), kind)
            for each, kind in ((placed.cells, CELL), (placed.driver, NET), (placed.arcs, ARC))
        )
        into, after, drives, weighed, pins = (defaultdict(list) for _ in range(5))
        for net, cell in enumerate(placed.driver):
            drives[cell].append(net)
        for n, arc in enumerate(placed.arcs):
            into[arc.cell].append(n)
            after[arc.net].append(n)
            arcs[n] = (
                arc.net,
                placed.driver[arc.net],
                arc.cell,
                arc.to,
                0,
                arc.ns,
                arc.wire,
                0.0,
                0.0,
            )
        for net, its_arcs in after.items():
            its = (
                sorted({placed.driver[net], *(placed.arcs[n].cell for n in its_arcs)})
                if any(placed.arcs[n].wire < 0 for n in its_arcs)
                else ()
            )
            if 1 < len(its) <= _WIDE:
                pins[net] = its
                for cell in its:
                    weighed[cell].append(net)
        members: list[int] = []
        listed = (
            (cells, "into", into),
            (cells, "drives", drives),
            (cells, "weighed", weighed),
            (nets, "after", after),
            (nets, "pins", pins),
        )
        for records, name, lists in listed:
            for n in range(len(records)):
                records[n][name] = len(members)
                members += lists.get(n, ())
                records[n][f"{name}_end"] = len(members)
        for name in ("x", "y", "z", "freedom", "tied", "takes_m", "run", "run_at"):
            cells[name] = getattr(placed, name)
        cells["kind"] = [_KINDS.get(kind, 4) for kind in placed.types]
        registers = [placed.shared.get(n, (None, None)) for n in range(len(cells))]
        cells["enable"], cells["reset"] = (
            _numbers([each[which] for each in registers]) for which in (0, 1)
        )
        np.maximum.at(cells["level"], np.array(placed.driver, int), order.level)
        nets["start"] = placed.start
        loads = np.bincount(arcs["source"], minlength=len(cells))
        cells["freedom"][(loads > _MOST_LOADS) | (cells["run"] > annealing.LONGEST)] = _STAYS
        return cells, nets, arcs, np.array(members, "i4")

    def _leads(self, n: int) -> bool:
        """Whether a cell is drawn; of those that move with their tile only some are."""
        cell, kind = self.design.cells[n], self.placed.types[n]
        if kind not in _KINDS or cell["freedom"] == _STAYS:
            return kind == "DP16KD"
        return cell["freedom"] < 2 or kind == "TRELLIS_RAMW" or n % _TOGETHER == 0

    def _sites(self, width: int, height: int) -> tuple[np.ndarray, ...]:
        placed = self.placed
        table, register = (np.full(8 * width * height, -1, "i4") for _ in range(2))
        writer, usable = np.full(width * height, -1, "i4"), np.zeros(width * height, bool)
        for sites, cells in ((table, placed.table), (register, placed.register)):
            for (x, y, z), cell in cells.items():
                sites[8 * (y * width + x) + z] = cell
        for (x, y), cell in placed.ram_writer.items():
            writer[y * width + x] = cell
        for x, y in placed.tiles:
            usable[y * width + x] = True
        return table, register, writer, usable

    def _look(self) -> None:
        self.wires = int(annealed_design.spread(self.design, _ENOUGH))
        annealed_design.measure(self.design)
        self.arrivals = self.design.arcs["path"][self._ends]
        self._late = (
            max(_EARLY, float(np.quantile(self.design.arcs["path"][self._judged], _SHARE)))
            if len(self._judged)
            else 0.0
        )
        self.worst = float(self.arrivals.max(initial=0.0))

    def _picks(self) -> np.ndarray:
        """Cells to draw from: those of late paths as often as `_OFTEN` says."""
        late = self.design.arcs[self.design.arcs["path"] > self._late - _NEAR]
        cells = np.unique(np.concatenate([late["source"], late["cell"]]))
        cells = np.intersect1d(cells, self.movable)
        times = round(len(self.movable) * _OFTEN / (1 - _OFTEN) / max(1, len(cells)))
        return np.concatenate([self.movable, np.repeat(cells, times)])

    def run(self, temperature: float, reach: float, slope: float = _SLOPE[0]) -> int:
        """One epoch at a temperature (as of `annealing.anneal`), with moves of up to `reach` tiles,
        a path of `slope` ns more costing e times as much: how many moves were made."""
        if not len(self.movable):
            return 0
        self.design.slope[0] = slope
        annealed_design.appraise(self.design, self._late)
        made = annealing.anneal(
            self.design,
            self.scratch,
            self._late,
            _TILE,
            temperature,
            round(reach),
            self._picks(),
            _MOVES * len(self.movable),
        )
        self._look()
        return made

    def store(self) -> None:
        """Into `placed`."""
        self.placed.arrange(
            *(self.design.cells[name][: len(self.placed.cells)].tolist() for name in "xyz")
        )


def _check(placed: Placed, when: str) -> None:
    if wrong := [
        tile
        for tile in sorted(placed.tiles | {site[:2] for site in placed.register})
        if not placed.legal(*tile)
    ]:
        raise ValueError(
            f"{len(wrong)} tiles are not legal {when}, the first one {wrong[0]}: "
            + "ecp5_refinement.placed_netlist does not know this device's rules"
        )


def refine(module: dict, *, epochs: int = EPOCHS, tell=lambda line: None) -> Refinement:
    """Refine a placed design.

    Parameters
    ----------
    module : dict
        The top of nextpnr's JSON; its cells' places are changed.
    epochs : int
    tell : callable
        Takes a line for each tenth epoch.

    Raises
    ------
    ValueError
        When a tile is not legal before or after, which is a fault of this step.
    """
    placed = Placed(module)
    _check(placed, "before refinement")
    refinement, moved = Refinement(placed), 0
    for n in range(epochs + 1):
        if n % 10 == 0 or n == epochs:
            said = " ".join(
                f">{ns}: {int((refinement.arrivals > ns).sum())}"
                for ns in (11, 12, 12.5, 13, 14, 15, 16, 17)
            )
            tell(
                f"after {n} epochs: worst {refinement.worst:.2f} ns at speed 6; ends {said}; "
                + f"half perimeters {refinement.wires}; moves made {moved}"
            )
        if n < epochs:
            part = min(1.0, n / max(1, epochs - _STILL))
            temperature = 0.0 if part == 1.0 else _HOT * (_COLD / _HOT) ** part
            moved += refinement.run(
                temperature, *(first * (last / first) ** part for first, last in (_REACH, _SLOPE))
            )
    refinement.store()
    _check(placed, "after refinement")
    placed.store()
    return refinement
