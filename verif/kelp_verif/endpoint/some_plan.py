# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Plans of summaries as no host would make them (docs/select.md, "Plans")."""

from __future__ import annotations

import numpy as np

from kelp_spec.formats import ELEMENTS, LINE_BYTES
from kelp_spec.select import (
    BLOCK_EXPONENT_BITS,
    CODE_BITS,
    COUNT_BITS,
    MEAN_BITS,
    PLAN_FIELDS,
    STEP_BITS,
    record_bytes,
)

__all__ = ["no_plan", "some_plan"]

_USED = sum(bits for _, bits in PLAN_FIELDS)


def some_plan(rng: np.random.Generator, lines: int) -> np.ndarray:
    """uint8 [lines, 64], a plan: codes as long as they may be, longer than there is room for, of an
    element alone or of none."""
    return np.array([_line(rng) for _ in range(lines)])


def no_plan(rng: np.random.Generator, lines: int) -> np.ndarray:
    """The same with a line that is none: not planned, or with a bit behind its fields."""
    rows = some_plan(rng, lines)
    bit = int(rng.integers(_USED, 8 * LINE_BYTES)) if rng.random() < 0.5 else _USED - 1
    rows[rng.integers(lines), bit // 8] ^= 1 << bit % 8
    return rows


def _line(rng):
    count = np.zeros(ELEMENTS, np.int64)
    match rng.integers(4):
        case 0:
            for element in rng.integers(ELEMENTS, size=CODE_BITS):
                count[element] = min(count[element] + 1, (1 << COUNT_BITS) - 1)
        case 1:
            count = rng.integers(1 << COUNT_BITS, size=ELEMENTS)
        case 2:
            count[rng.integers(ELEMENTS)] = rng.integers(1 << COUNT_BITS)
        case 3:
            count[:] = rng.integers(2)
    exponents = 1 << BLOCK_EXPONENT_BITS - 1
    exponent = int(
        rng.integers(-8, 24) if rng.random() < 0.8 else rng.integers(-exponents, exponents)
    )
    values = {"exponent": exponent, "planned": 1}
    mean, step = (
        rng.integers(1 << MEAN_BITS, size=ELEMENTS),
        rng.integers(1 << STEP_BITS, size=ELEMENTS),
    )
    for name, each in (("mean", mean), ("step", step), ("count", count)):
        values |= {f"{name}_{k}": int(value) for k, value in enumerate(each)}
    return np.frombuffer(record_bytes(PLAN_FIELDS, values, LINE_BYTES), np.uint8)
