# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The order in which the signals of a placed netlist follow each other."""

from __future__ import annotations

import numpy as np

from .placed_netlist import Placed

__all__ = ["Order"]


class Order:
    """A netlist's wires sorted once; arrivals are measured in that order
    (`annealed_design.measure`).

    Parameters
    ----------
    placed : Placed

    Attributes
    ----------
    level : ndarray
        Per net: tables on the longest way to it.
    forward : ndarray
        All arcs, each after those that lead to its net.
    ends : ndarray
        Arcs that end in a register or a memory.
    """

    def __init__(self, placed: Placed):
        net, to = (
            np.array([getattr(arc, what) for arc in placed.arcs], np.int64)
            for what in ("net", "to")
        )
        inner = to >= 0
        self.level = np.zeros(len(placed.driver), np.int64)
        for _ in range(len(self.level) + 1):
            deeper = self.level.copy()
            np.maximum.at(deeper, to[inner], self.level[net[inner]] + 1)
            if (deeper == self.level).all():
                break
            self.level = deeper
        else:
            raise ValueError("the netlist has a loop without a register")
        self.ends = np.nonzero(~inner)[0]
        self.forward = np.argsort(self.level[net], kind="stable")
