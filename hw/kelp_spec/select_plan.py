# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How a host plans summaries (docs/select.md, "Plans"): which bits of a key tell most about what a
query scores. A device takes any plan; this one is the host library's, and the studies'."""

from __future__ import annotations

import numpy as np

from .formats import ELEMENTS
from .select import (
    BLOCK_EXPONENT_BITS,
    CODE_BITS,
    COUNT_BITS,
    MEAN_BITS,
    PLAN_FIELDS,
    PLANNED_BITS,
    PLANNED_FRACTION,
    STEP_BITS,
    record_bytes,
)

__all__ = ["PLANNED_TOKENS", "plan_lines"]

PLANNED_TOKENS = 512  #: more keys than these are thinned out
_COUNTS, _STEPS = 1 << COUNT_BITS, 1 << STEP_BITS
_MOST_EXPONENT = 130


def plan_lines(keys: np.ndarray, queries: np.ndarray, bits: int = CODE_BITS) -> np.ndarray:
    """uint8 [lines, 64], the plan's lines, from some keys [tokens, head_dim] of a KV head and some
    of its queries [n, head_dim], float: each bit of a code goes where it lessens the squared error
    of a score most. A study may leave the last of a code's bits unused and say `bits`."""
    keys = _padded(keys[:: max(1, len(keys) // PLANNED_TOKENS)])
    weights = (_padded(queries) ** 2).mean(axis=0)
    lines = [
        _line(keys[:, at : at + ELEMENTS], weights[at : at + ELEMENTS], bits)
        for at in range(0, keys.shape[1], ELEMENTS)
    ]
    return np.frombuffer(b"".join(lines), np.uint8).reshape(-1, 64)


def _padded(rows: np.ndarray) -> np.ndarray:
    """float64 [n, dims], whole lines of finite numbers."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like others
        rows = np.asarray(rows, np.float64)
    rows = np.nan_to_num(rows, nan=0.0, posinf=6e4, neginf=-6e4)
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % ELEMENTS)))


def _line(keys: np.ndarray, weights: np.ndarray, bits: int) -> bytes:
    most = np.abs(keys).max()
    # What int8 would store of the largest has 6 places after the point, and is 127 at most.
    exponent = int(np.ceil(np.log2(most / 127))) + 6 if most else 0
    exponent = min(max(exponent, -(1 << BLOCK_EXPONENT_BITS - 1)), _MOST_EXPONENT)
    end = 1 << PLANNED_BITS - 1
    element = np.clip(
        np.floor(keys * 2.0 ** (6 + PLANNED_FRACTION - exponent)), -end, end - 1
    ).astype(np.int64)
    end = 1 << MEAN_BITS - 1
    mean = np.clip(np.rint(element.mean(axis=0) / (1 << PLANNED_FRACTION)), -end, end - 1)
    mean = mean.astype(np.int64)
    off = element - (mean << PLANNED_FRACTION)
    count, step = _spend(off, weights, bits)
    values = {"exponent": exponent, "planned": 1}
    for k in range(ELEMENTS):
        values |= {f"mean_{k}": int(mean[k]), f"step_{k}": int(step[k])}
        values |= {f"count_{k}": int(count[k])}
    return record_bytes(PLAN_FIELDS, values, 64)


def _spend(off: np.ndarray, weights: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(count, step) of each element, `bits` in all, from distances to its mean."""
    error = np.empty((_COUNTS, ELEMENTS))
    steps = np.zeros((_COUNTS, ELEMENTS), np.int64)
    error[0] = (off**2).mean(axis=0)
    for count in range(1, _COUNTS):
        half = 1 << count - 1
        each = []
        for step in range(_STEPS):
            code = np.clip(off >> step, -half, half - 1)
            each.append((((code + 0.5) * 2.0**step - off) ** 2).mean(axis=0))
        steps[count], error[count] = np.argmin(each, axis=0), np.min(each, axis=0)
    error *= weights
    count, at = np.zeros(ELEMENTS, np.int64), np.arange(ELEMENTS)
    for _ in range(bits):
        gain = error[count, at] - error[np.minimum(count + 1, _COUNTS - 1), at]
        best = int(np.argmax(gain))
        if gain[best] <= 0:
            break
        count[best] += 1
    return count, steps[count, at]
