# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A published figure and what comes of it, and a table of computed rows. The verdict is computed,
never written down.

A figure is **reproduced** when the computed value is the published one as far as that is printed
(half a unit of its last digit), it **depends** when the value computed under a stated condition is,
and it is **refuted** otherwise.
"""

from __future__ import annotations

import operator
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

__all__ = ["Condition", "Finding", "Table", "agrees", "finding"]

_BOUNDS = {">": operator.gt, "≥": operator.ge, "<": operator.lt}


class Condition(NamedTuple):
    """What has to be assumed for another value to come out."""

    text: str
    computed: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``claimed`` as printed; ``computed`` from the inputs; ``condition`` says what gives
    ``under_condition`` instead."""

    topic: str
    what: str
    unit: str
    claimed: str
    computed: float
    verdict: str
    arithmetic: str
    condition: str = ""
    under_condition: float | None = None

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of one question: ``columns`` are (key, heading, format) in order; ``formats`` of ''
    prints as it is. ``notes`` stand below."""

    name: str
    title: str
    columns: tuple[tuple[str, str, str], ...]
    rows: tuple[dict, ...]
    notes: tuple[str, ...] = field(default=())

    def cells(self, row: dict) -> list[str]:
        return [
            "–" if row[key] is None else format(row[key], spec) for key, _, spec in self.columns
        ]


def agrees(claimed: str, computed: float, within: float = 0.0) -> bool:
    """Whether ``computed`` is ``claimed`` as far as it is printed, or ``within`` that share of it
    (for a figure said to be approximate).

    ``claimed`` may be a bound: ">90", "≥48", "<0.1".
    """
    if claimed[0] in _BOUNDS:
        return _BOUNDS[claimed[0]](computed, float(claimed[1:]))
    value = float(claimed)
    _, _, decimals = claimed.partition(".")
    unit = 10.0 ** -len(decimals)
    return abs(computed - value) <= max(0.5 * unit * (1 + 1e-9), within * abs(value))


def finding(
    topic: str,
    what: str,
    unit: str,
    claimed: str,
    computed: float,
    arithmetic: str,
    *,
    within: float = 0.0,
    under: Condition | None = None,
) -> Finding:
    """The finding with its verdict."""
    if agrees(claimed, computed, within):
        verdict, under = "reproduced", None
    elif under is not None and agrees(claimed, under.computed, within):
        verdict = "depends"
    else:
        verdict = "refuted"
    return Finding(
        topic=topic,
        what=what,
        unit=unit,
        claimed=claimed,
        computed=float(computed),
        verdict=verdict,
        arithmetic=arithmetic,
        condition=under.text if under else "",
        under_condition=under.computed if under else None,
    )
