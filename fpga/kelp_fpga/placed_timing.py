# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How late each signal of a placed netlist is, before it is routed."""

from __future__ import annotations

import numpy as np

from .placed_netlist import Placed

__all__ = ["Timing", "wire"]

#: ns: a wire's base, a tile of its way up to five, a tile beyond; half of what nextpnr supposes while it places, as routed reports have it.
_BASE, _NEAR, _FAR, _SAME_TILE = 0.42, 0.14, 0.07, 0.4


def wire(x1: int, y1: int, x2: int, y2: int) -> float:
    """ns from a cell at one place to a cell at another."""
    dx, dy = abs(x1 - x2), abs(y1 - y2)
    if not dx and not dy:
        return _SAME_TILE
    return _BASE + (_NEAR * dx if dx < 5 else 0.35 + _FAR * dx) + (_NEAR * dy if dy < 5 else 0.35 + _FAR * dy)


class Timing:
    """Arrivals of a netlist whose cells move; the graph is sorted once.

    Parameters
    ----------
    placed : Placed
    """

    def __init__(self, placed: Placed):
        self._placed = placed
        arcs = placed.arcs
        self._net, self._cell, self._to = (np.array([getattr(arc, what) for arc in arcs]) for what in ("net", "cell", "to"))
        self._ns, self._fixed = (np.array([getattr(arc, what) for arc in arcs]) for what in ("ns", "wire"))
        self._driver, self._start = np.array(placed.driver), np.array(placed.start)
        inner = self._to >= 0
        level = np.zeros(len(self._driver), int)
        for _ in range(len(self._driver)):
            deeper = level.copy()
            np.maximum.at(deeper, self._to[inner], level[self._net[inner]] + 1)
            if (deeper == level).all():
                break
            level = deeper
        else:
            raise ValueError("the netlist has a loop without a register")
        self.ends = np.nonzero(~inner)[0]   #: arcs that end in a register or a memory
        by_to = np.nonzero(inner)[0]
        self._forward = _runs(by_to, level[self._to[by_to]])
        self._backward = _runs(by_to, level[self._net[by_to]])[::-1]

    def wires(self) -> np.ndarray:
        """ns of each arc's wire."""
        x, y = np.array(self._placed.x), np.array(self._placed.y)
        dx, dy = np.abs(x[self._driver[self._net]] - x[self._cell]), np.abs(y[self._driver[self._net]] - y[self._cell])
        ns = _BASE + np.minimum(_NEAR * dx, 0.35 + _FAR * dx) + np.minimum(_NEAR * dy, 0.35 + _FAR * dy)
        return np.where(self._fixed >= 0, self._fixed, np.where((dx == 0) & (dy == 0), _SAME_TILE, ns))

    def paths(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each arc: its wire, and the longest path over it, both in ns."""
        ns = self.wires()
        arrival = self._start.copy()
        for run in self._forward:
            np.maximum.at(arrival, self._to[run], arrival[self._net[run]] + ns[run] + self._ns[run])
        left = np.zeros(len(arrival))
        np.maximum.at(left, self._net[self.ends], ns[self.ends])
        for run in self._backward:
            np.maximum.at(left, self._net[run], ns[run] + self._ns[run] + left[self._to[run]])
        return ns, arrival[self._net] + ns + self._ns + np.where(self._to >= 0, left[np.maximum(self._to, 0)], 0.0)


def _runs(arcs: np.ndarray, level: np.ndarray) -> list[np.ndarray]:
    """The arcs of each level, lowest first."""
    order = np.argsort(level, kind="stable")
    return np.split(arcs[order], np.nonzero(np.diff(level[order]))[0] + 1) if len(arcs) else []
