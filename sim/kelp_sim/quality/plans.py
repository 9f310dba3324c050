# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which format each layer, head, key and value is stored in: :class:`Plan`; and the cheapest plan
within a loss, from measured losses of single parts.

A *unit* is what may have a format of its own: (layer, 0 for K or 1 for V, head). Losses of units
are taken to add up; a plan is measured before it is recommended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .formats import NAMES, bits, stored

__all__ = ["Plan", "cheapest", "cheapest_ranges", "uniform"]

Unit = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """``names[layer][kv][head]``."""

    label: str
    names: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    def store(self, layer: int, kv: np.ndarray) -> np.ndarray:
        """What comes back of float16 [2, kv_heads, tokens, head_dim]; float32. The signature of
        :data:`kelp_sim.quality.llama.Store`."""
        out = np.empty(kv.shape, np.float32)
        for half in (0, 1):
            for name in set(self.names[layer][half]):
                heads = [h for h, n in enumerate(self.names[layer][half]) if n == name]
                out[half, heads] = stored(name, kv[half, heads])
        return out

    @property
    def bits(self) -> float:
        """Mean stored bits of an element."""
        return float(
            np.mean([bits(name) for layer in self.names for half in layer for name in half])
        )

    @property
    def key(self) -> str:
        return ";".join("/".join(",".join(half) for half in layer) for layer in self.names)

    def with_units(self, label: str, units, name: str) -> Plan:
        """The same with ``name`` for some units."""
        chosen = set(units)
        names = tuple(
            tuple(
                tuple(
                    name if (layer, half, head) in chosen else old for head, old in enumerate(heads)
                )
                for half, heads in enumerate(both)
            )
            for layer, both in enumerate(self.names)
        )
        return Plan(label, names)


def uniform(text: str, layers: int, kv_heads: int) -> Plan:
    """One format for all, or K/V apart as ``int8/int4``."""
    k, _, v = text.partition("/")
    for name in (k, v or k):
        if name not in NAMES:
            raise ValueError(
                f"format {name!r} is unknown; legal: {', '.join(NAMES)}, or K and V apart as "
                + "int8/int4"
            )
    return Plan(text, ((((k,) * kv_heads), ((v or k,) * kv_heads)),) * layers)


def cheapest(losses: dict[Unit, float], budget: float) -> list[Unit]:
    """As many units as fit into ``budget``, the least loss first. A loss below 0 is noise and
    counts as 0."""
    chosen, spent = [], 0.0
    for unit in sorted(losses, key=lambda u: (losses[u], u)):
        spent += max(0.0, losses[unit])
        if spent > budget:
            break
        chosen.append(unit)
    return sorted(chosen)


def cheapest_ranges(losses: dict[Unit, float], budget: float, ranges: int) -> list[Unit]:
    """The same where a session has ``ranges`` of layers, K and V apart, heads together: most
    (layer, K|V) within ``budget``, then least loss.

    By dynamic programming over layers.
    """
    layers = 1 + max(layer for layer, _, _ in losses)
    cost = np.zeros((layers, 2))
    for (layer, half, _), loss in losses.items():
        cost[layer, half] += max(0.0, loss)
    # state: (choice of the last layer as bits K=1, V=2; ranges used; parts chosen) → (loss,
    # choices)
    best: dict[tuple[int, int, int], tuple[float, tuple[int, ...]]] = {}
    for choice in range(4):
        best[choice, 1, _parts(choice)] = (_loss(cost[0], choice), (choice,))
    for layer in range(1, layers):
        following: dict[tuple[int, int, int], tuple[float, tuple[int, ...]]] = {}
        for (last, used, parts), (loss, choices) in best.items():
            for choice in range(4):
                state = choice, used + (choice != last), parts + _parts(choice)
                entry = loss + _loss(cost[layer], choice), (*choices, choice)
                if state[1] <= ranges and (state not in following or entry < following[state]):
                    following[state] = entry
        best = following
    fitting = [
        (-parts, loss, choices) for (_, _, parts), (loss, choices) in best.items() if loss <= budget
    ]
    choices = min(fitting)[2]
    return sorted(unit for unit in losses if choices[unit[0]] >> unit[1] & 1)


def _parts(choice: int) -> int:
    return choice.bit_count()


def _loss(cost: np.ndarray, choice: int) -> float:
    return float(sum(cost[half] for half in (0, 1) if choice >> half & 1))
