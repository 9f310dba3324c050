# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Shorter paths in a placed netlist: cells on long paths move towards what they are wired to, whatever stands there changes places with them.

`python -m kelp_fpga.refinement PLACED OUTPUT`, a step of :mod:`.build` between placement and routing. On a device that is 70 % full nextpnr's placer
leaves a few per cent of the paths a third longer than the rest. Most passes look at those alone, two at every cell, for shorter wires where many meet.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from .placed_netlist import Placed
from .placed_timing import Timing, wire

__all__ = ["PASSES", "Refinement", "refine"]

PASSES = 6
_SHARE = 0.99       #: of the ends that are early enough
_SLOPE = 0.7        #: ns: a path that is longer by this costs e times as much
_NEAR = 2.0         #: ns before that share's arrival from which a path is looked at
_WIRE = 0.06        #: cost of a tile of a net's half perimeter, late or not: what gives way must not get long wires, or nothing can be routed
_WIDE = 32          #: loads of a net from which on its wires are not weighed
_MOST_LOADS = 200   #: of a cell that moves
_SLICES = ([0, 1], [2, 3], [4, 5], [6, 7])
_ENOUGH = -1e-3     #: cost that a move must save


class Refinement:
    """Passes over a placed netlist, over the cells of its late paths or over all.

    Parameters
    ----------
    placed : Placed
        Changed in place; it is legal after every pass when it was before.
    seed : int
    """

    def __init__(self, placed: Placed, *, seed: int = 1):
        self.placed, self.timing, self._random = placed, Timing(placed), random.Random(seed)
        self._net_cell = [placed.driver[arc.net] for arc in placed.arcs]
        self._sink = [arc.cell for arc in placed.arcs]
        self._of: dict[int, list[int]] = defaultdict(list)      # cell → arcs whose wire moves with it
        self._loads: dict[int, int] = defaultdict(int)
        pins: dict[int, set[int]] = defaultdict(set)            # net → cells
        for n, arc in enumerate(placed.arcs):
            if arc.wire < 0:
                self._of[arc.cell].append(n)
                self._of[placed.driver[arc.net]].append(n)
                self._loads[placed.driver[arc.net]] += 1
                pins[arc.net] |= {arc.cell, placed.driver[arc.net]}
        self._pins = {net: sorted(cells) for net, cells in pins.items() if 1 < len(cells) <= _WIDE}
        self._nets: dict[int, list[int]] = defaultdict(list)    # cell → nets that are weighed
        for net, cells in self._pins.items():
            for cell in cells:
                self._nets[cell].append(net)
        self._look()

    def _look(self) -> None:
        ns, paths = self.timing.paths()
        self.arrivals = paths[self.timing.ends]
        self._late = float(np.quantile(self.arrivals, _SHARE)) if len(self.arrivals) else 0.0
        self._ns, self._paths = ns.tolist(), paths.tolist()
        self._perimeter = {net: self._half_perimeter(net, {}) for net in self._pins}
        self.worst = float(self.arrivals.max(initial=0.0))

    def run(self, *, everything: bool = False) -> tuple[int, int]:
        """One pass over the cells of late paths, or of all, the latest first: how many cells were looked at, and how many have moved."""
        urgency: dict[int, float] = defaultdict(float)
        least = -math.inf if everything else self._late - _NEAR
        for n in np.nonzero(np.array(self._paths) > least)[0].tolist():
            for cell in (self._sink[n], self._net_cell[n]):
                urgency[cell] = max(urgency[cell], self._paths[n])
        cells = sorted(urgency, key=lambda cell: (-urgency[cell], cell))
        moved = sum(self._move(cell) for cell in cells)
        self._look()
        return len(cells), moved

    def _cost(self, path: float) -> float:
        return _SLOPE * math.exp(min((path - self._late) / _SLOPE, 30.0))

    @property
    def wires(self) -> int:
        """Tiles: half perimeters of all nets that are weighed."""
        return sum(self._perimeter.values())

    def _half_perimeter(self, net: int, at: dict[int, tuple[int, int]]) -> int:
        x, y = self.placed.x, self.placed.y
        xs, ys = zip(*(at.get(cell) or (x[cell], y[cell]) for cell in self._pins[net]), strict=True)
        return max(xs) - min(xs) + max(ys) - min(ys)

    def _change(self, moves: list[tuple[int, int, int]]) -> float:
        """Cost of (cell, x, y), all at once."""
        at = {cell: (x, y) for cell, x, y in moves}
        x, y, seen = self.placed.x, self.placed.y, set()
        total = _WIRE * sum(self._half_perimeter(net, at) - self._perimeter[net] for net in {net for cell in at for net in self._nets[cell]})
        for cell in at:
            for n in self._of[cell]:
                if n in seen:
                    continue
                seen.add(n)
                source, sink = self._net_cell[n], self._sink[n]
                more = wire(*(at.get(source) or (x[source], y[source])), *(at.get(sink) or (x[sink], y[sink]))) - self._ns[n]
                if more:
                    path = self._paths[n]
                    if max(path, path + more) > self._late - 2 * _NEAR:
                        total += self._cost(path + more) - self._cost(path)
        return total

    def _settle(self, cells: list[int]) -> None:
        """After cells have moved: their wires, and the paths over those."""
        x, y = self.placed.x, self.placed.y
        for cell in cells:
            for net in self._nets[cell]:
                self._perimeter[net] = self._half_perimeter(net, {})
            for n in self._of[cell]:
                source, sink = self._net_cell[n], self._sink[n]
                ns = wire(x[source], y[source], x[sink], y[sink])
                self._paths[n] += ns - self._ns[n]
                self._ns[n] = ns

    def _goal(self, cells: set[int]) -> tuple[float, float] | None:
        """The middle of what these cells are wired to, late wires first."""
        sx = sy = sw = 0.0
        for cell in cells:
            for n in self._of[cell]:
                other = self._net_cell[n] if self._sink[n] == cell else self._sink[n]
                if other not in cells:
                    weight = self._cost(self._paths[n]) + 0.002
                    sx, sy, sw = sx + weight * self.placed.x[other], sy + weight * self.placed.y[other], sw + weight
        return (sx / sw, sy / sw) if sw else None

    def _tiles(self, x: int, y: int, goal: tuple[float, float], count: int) -> list[tuple[int, int]]:
        """Some tiles between a place and its goal, most of them near the goal."""
        draw, found = self._random, set()
        for _ in range(count):
            part, reach = draw.random() ** 0.7, draw.choice((1, 2, 4))
            found.add((round(x + (goal[0] - x) * part + draw.uniform(-reach, reach)), round(y + (goal[1] - y) * part + draw.uniform(-reach, reach))))
        return sorted(found & self.placed.tiles - {(x, y)})

    def _move(self, cell: int) -> bool:
        placed = self.placed
        if placed.types[cell] == "DP16KD":
            return self._move_block_ram(cell)
        site = placed.x[cell], placed.y[cell], placed.z[cell]
        if site[2] < 0 and site[:2] not in placed.ram_writer:
            return False
        freedom = placed.freedom[cell]
        if placed.types[cell] == "TRELLIS_FF" and placed.tied[cell]:
            freedom = placed.freedom[placed.table[site]]
        if freedom == 3:
            return False
        if freedom == 2:
            return self._swap_best(site[:2], [*range(8)], lambda tile, places: self._group(tile, places, 2), [[*range(8)]], 24, within_rams=True)
        if freedom == 1:
            first = site[2] & ~1
            return self._swap_best(site[:2], [first, first + 1], lambda tile, places: self._group(tile, places, 1), _SLICES, 30)
        register = placed.register.get(site)
        if register is not None and placed.tied[register]:
            kind = "both"
        else:
            kind = "register" if placed.types[cell] == "TRELLIS_FF" else "table"
        return self._swap_best(site[:2], [site[2]], lambda tile, places: self._single(tile, places[0], kind), [[z] for z in range(8)], 40,
                               within_rams=kind == "table")

    def _single(self, tile: tuple[int, int], z: int, kind: str) -> list[tuple[int, int]] | None:
        """What stands at one site, as (cell, place) from the first; None when it may not go."""
        site = *tile, z
        table, register = self.placed.table.get(site), self.placed.register.get(site)
        tied = register is not None and self.placed.tied[register]
        if kind != "both" and tied or kind != "register" and table is not None and self.placed.freedom[table]:
            return None
        return [(n, 0) for n, wanted in ((table, kind != "register"), (register, kind != "table")) if wanted and n is not None]

    def _group(self, tile: tuple[int, int], places: list[int], most: int) -> list[tuple[int, int]] | None:
        found = []
        for n, z in enumerate(places):
            if (table := self.placed.table.get((*tile, z))) is not None:
                if self.placed.freedom[table] > most:
                    return None
                found.append((table, n))
            if (register := self.placed.register.get((*tile, z))) is not None:
                found.append((register, n))
        if most == 2 and tile in self.placed.ram_writer:
            found.append((self.placed.ram_writer[tile], 0))
        return found

    def _swap_best(self, here: tuple[int, int], places: list[int], contents, choices, count: int, *, within_rams: bool = False) -> bool:
        """Exchange what stands at `places` with what stands at one of `choices` in another tile, where that saves most."""
        mine = contents(here, places)
        if not mine or any(self._loads[n] > _MOST_LOADS for n, _ in mine):
            return False
        goal = self._goal({n for n, _ in mine})
        if goal is None:
            return False
        best, found = _ENOUGH, None
        for tile in self._tiles(*here, goal, count):
            if not within_rams and tile in self.placed.ram_writer:
                continue
            alone = [(n, *tile) for n, _ in mine]
            if self._change(alone) >= best:
                continue
            for theirs_at in choices:
                theirs = contents(tile, theirs_at)
                if theirs is None or any(self._loads[n] > _MOST_LOADS for n, _ in theirs):
                    continue
                saved = self._change([*alone, *((n, *here) for n, _ in theirs)])
                if saved < best:
                    self._swap(here, places, mine, tile, theirs_at, theirs)
                    if self.placed.legal(*tile) and self.placed.legal(*here):
                        best, found = saved, (tile, theirs_at, theirs)
                    self._swap(here, places, theirs, tile, theirs_at, mine)
        if found is None:
            return False
        tile, theirs_at, theirs = found
        self._swap(here, places, mine, tile, theirs_at, theirs)
        self._settle([n for n, _ in (*mine, *theirs)])
        return True

    def _swap(self, here, places, mine, there, theirs_at, theirs) -> None:
        for n, _ in (*mine, *theirs):
            self.placed.take(n)
        for n, k in mine:
            self.placed.put(n, *there, theirs_at[k])
        for n, k in theirs:
            self.placed.put(n, *here, places[k])

    def _move_block_ram(self, cell: int) -> bool:
        """Exchange it with the block RAM with which that saves most."""
        x, y = self.placed.x, self.placed.y
        best, found = _ENOUGH, None
        for other in self.placed.block_rams:
            if other != cell:
                saved = self._change([(cell, x[other], y[other]), (other, x[cell], y[cell])])
                if saved < best:
                    best, found = saved, other
        if found is None:
            return False
        self.placed.exchange(cell, found)
        self._settle([cell, found])
        return True


def refine(module: dict, *, passes: int = PASSES, tell=lambda line: None) -> Refinement:
    """Refine a placed design; the third and fourth pass are over all cells, which shortens wires where many meet.

    Parameters
    ----------
    module : dict
        The top of nextpnr's JSON; its cells' places are changed.
    passes : int
    tell : callable
        Takes a line for each pass.

    Raises
    ------
    ValueError
        When a tile is not legal before or after, which is a fault of this step.
    """
    placed = Placed(module)

    def check(when: str) -> None:
        if wrong := [tile for tile in sorted(placed.tiles | {site[:2] for site in placed.register}) if not placed.legal(*tile)]:
            raise ValueError(f"{len(wrong)} tiles are not legal {when}, the first one {wrong[0]}: kelp_fpga.placed_netlist does not know this device's rules")

    check("before refinement")
    refinement = Refinement(placed)
    for n in range(passes + 1):
        said = " ".join(f">{ns}: {int((refinement.arrivals > ns).sum())}" for ns in (12.5, 13, 14, 15, 16, 17))
        tell(f"after {n} passes: worst {refinement.worst:.2f} ns at speed 6; ends {said}; half perimeters {refinement.wires}")
        if n < passes:
            cells, moved = refinement.run(everything=n in (2, 3))
            tell(f"pass {n + 1}: {moved} of {cells} cells moved")
    check("after refinement")
    placed.store()
    return refinement


def main(source: str, target: str) -> int:
    design = json.loads(Path(source).read_text(encoding="utf-8"))
    [top] = [module for module in design["modules"].values() if int(module.get("attributes", {}).get("top", "0"), 2)]
    refine(top, tell=lambda line: print(line, flush=True))
    Path(target).write_text(json.dumps(design), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
