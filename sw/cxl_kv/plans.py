# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Plans of a session's summaries (docs/select.md): of keys and queries at hand, or of a sample that
is read back from the device."""

from __future__ import annotations

import numpy as np

from kelp_spec.formats import LINE_BYTES
from kelp_spec.select import PLAN_FIELDS, record_bytes
from kelp_spec.select_plan import PLANNED_TOKENS, plan_lines

__all__ = ["empty_plan", "plan_of_keys", "plan_of_sample", "turned"]

#: A plan outlives the keys that it is made of: they turn with their positions, so that those to
#: come lie where none do yet. Of one key in so many its mirror image counts too; of few keys, of
#: each.
_MIRRORED, _FEW = 4, 128
#: tokens for which rows are turned
_POSITIONS = 4096
_GOLDEN = (5**0.5 - 1) / 2
_EMPTY = np.frombuffer(record_bytes(PLAN_FIELDS, {"planned": 1}, LINE_BYTES), np.uint8)


def plan_of_keys(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """uint8 [token_lines, 64]: the plan of a KV head with these keys [tokens, head_dim] and its
    queries [n, head_dim], float32."""
    at = np.arange(len(keys))
    if len(keys) > PLANNED_TOKENS:
        at = np.linspace(0, len(keys) - 1, PLANNED_TOKENS).astype(np.int64)
    keys = keys[at]
    mirrored = keys[:: _MIRRORED if len(keys) >= _FEW else 1]
    return plan_lines(np.concatenate([keys, -mirrored]), queries)


def empty_plan(shape) -> np.ndarray:
    """uint8 [kv_heads, token_lines, 64]: what a SELECT without pages to summarise is rung with, and
    what stands for a layer's plan where the host chooses, which needs none."""
    return np.broadcast_to(_EMPTY, (shape.kv_heads, shape.token_lines, LINE_BYTES))


def turned(rows: np.ndarray, first: int, theta: float) -> np.ndarray:
    """float32 [..., tokens, head_dim], keys or queries from token ``first`` on after RoPE of base
    ``theta``, whose halves turn together: as they would be all over 4096 positions. A plan of such
    holds further on."""
    count, half = rows.shape[-2], rows.shape[-1] // 2
    to = (np.arange(count) * _GOLDEN % 1 * _POSITIONS).round()
    angle = (to - first - np.arange(count))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    low, high = rows[..., :half], rows[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(
        np.float32
    )


def plan_of_sample(session, layer: int, queries: np.ndarray, tokens: int) -> np.ndarray:
    """uint8 [kv_heads, token_lines, 64]: a layer's plan for `queries`, float32 [kv_heads, n,
    head_dim], and what is read of up to PLANNED_TOKENS keys: pages behind the first, spread over
    the context, each whole. From then on it is the session's, where a page lies between the first
    and the newest, as those are what is summarised, and some key of each head could be read."""
    shape, size = session.shape, session.page_tokens
    newest = (tokens - 1) // size
    if newest < 2:
        return empty_plan(shape)
    pages, most = np.arange(1, newest + 1), max(1, PLANNED_TOKENS // size)
    if len(pages) > most:
        pages = pages[np.linspace(0, len(pages) - 1, most).astype(np.int64)]
    positions = (pages[:, None] * size + np.arange(size)).reshape(-1)
    keys, known = session.sample(layer, positions[positions < tokens][:PLANNED_TOKENS])
    plan = np.empty((shape.kv_heads, shape.token_lines, LINE_BYTES), np.uint8)
    for head, there in enumerate(known):
        plan[head] = plan_of_keys(keys[head, there], queries[head]) if there.any() else _EMPTY
    if known.any(axis=1).all():
        session.plans[layer] = plan
    return plan
