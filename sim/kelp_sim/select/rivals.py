# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Readers that a device without a choice serves: the host chooses, and reads the pages as plain
lines from an endpoint that keeps pages by LRU over one pool.

What each does is ours, after the papers and in pages; where a paper leaves room it is the rival
that gains. ``dense`` reads everything. ``quest`` reads the summaries of all pages over the link
(min and max of a page, as the device has them), and the `most` pages of the largest bound.
``freekv`` reads what the query of the step before chose so, asked for a step ahead; where its own
query has turned away (cosine below 0.8, of the group's mean), it chooses anew and waits.
``infinigen`` reads what the query guessed from the layer before chooses by exact scores, asked for
a layer ahead; the first layer by its own query.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..lab.engine import Timeline
from ..lab.fast_lists import run_list
from ..quality.llama import Llama, attend
from ..quality.threads import one_thread
from ..trace.accesses import AccessSequence
from .decode import frames_of
from .readers import Ideal
from .timing import Shape, Timing

__all__ = ["NAMES", "Reading", "lines", "misses", "read", "sequence", "time"]

NAMES = ("ideal", "dense", "quest", "freekv", "infinigen")
_SAME = 0.8  #: cosine of two queries from which on FreeKV takes them for one
_ROWS = 64  #: queries at once


@dataclass
class Reading:
    """What a reader read, step by step, and what the text cost it."""

    name: str
    nats: np.ndarray  #: [steps]
    chosen: np.ndarray  #: [steps, layers, kv_heads, pages] bool
    #: [steps, layers, kv_heads] bool: chosen by the layer's own query, so that nothing was asked
    #: for ahead
    late: np.ndarray
    summaries: int = 0  #: lines of summaries that a page costs, each step
    newest: np.ndarray = field(default=None)  #: [steps] the newest page


@one_thread()
def read(model: Llama, tokens: np.ndarray, first: int, name: str, ideal: Ideal) -> Reading:
    """The text from token ``first`` on; dense before."""
    kv_heads = model.kv_heads
    rows, size = np.arange(first, len(tokens) - 1), ideal.page_tokens
    pages = -(-len(tokens) // size)
    chosen = np.zeros((len(rows), model.layers, kv_heads, pages), bool)
    late = np.ones((len(rows), model.layers, kv_heads), bool)
    ids = tokens[:-1]
    turn, x = model.turn(np.arange(len(ids))), model.embedded(ids)
    before = x
    for layer in range(model.layers):
        q, k, v = model.project(layer, x, turn)
        k, v = np.stack([k, v]).astype(np.float16).astype(np.float32)
        positions = np.arange(len(ids))
        if name == "dense":
            chosen[:, layer] = (np.arange(pages) <= rows[:, None] // size)[:, None]
            out = attend(q, k, v, positions)
        else:
            asks, own = q[:, first:], None
            if name == "infinigen" and layer:
                asks, late[:, layer] = model.query(layer, before, turn)[:, first:], False
            elif name == "freekv":
                asks, own = q[:, first - 1 : -1], q[:, first:]
            found = _choose(name, asks, k, rows, ideal)
            if own is not None:
                same = _cosine(asks, own, kv_heads) >= _SAME
                late[:, layer] = ~same.T
                found = np.where(same[..., None], found, _choose(name, own, k, rows, ideal))
            chosen[:, layer, :, : found.shape[2]] = found.transpose(1, 0, 2)
            out = np.concatenate(
                [
                    attend(q[:, :first], k[:, :first], v[:, :first], positions[:first]),
                    _attend(q[:, first:], k, v, rows, found, size),
                ],
                axis=1,
            )
        before, x = x, model.after(layer, x, out)
    lines = -(-model.head_dim // 32)
    return Reading(
        name,
        model.nats(x[first:], tokens[first + 1 :]),
        chosen,
        late,
        summaries=lines if name == "quest" else 0,
        newest=rows // size,
    )


def _choose(name, q, k, rows, ideal: Ideal) -> np.ndarray:
    """bool [kv_heads, n, pages]."""
    if name in ("ideal", "infinigen"):
        return ideal.chosen(q, k, rows)
    group, size = len(q) // len(k), ideal.page_tokens
    pages = -(-k.shape[1] // size)
    padding = pages * size - k.shape[1]
    found = []
    for head, keys in enumerate(k):
        paged = np.pad(keys, ((0, padding), (0, 0)), "edge").reshape(pages, size, -1)
        low, high = paged.min(axis=1), paged.max(axis=1)
        mine = q[head * group : (head + 1) * group]
        bound = (np.maximum(mine, 0) @ high.T + np.minimum(mine, 0) @ low.T).mean(axis=0)
        newest = (rows // size)[:, None]
        between = (np.arange(pages) > 0) & (np.arange(pages) < newest)
        order = np.argsort(-np.where(between, bound, -np.inf), axis=1, kind="stable")
        takes = np.zeros(bound.shape, bool)
        np.put_along_axis(takes, order[:, : ideal.most], True, axis=1)
        found.append(takes & between | (np.arange(pages) == 0) | (np.arange(pages) == newest))
    return np.stack(found)


def _cosine(a: np.ndarray, b: np.ndarray, kv_heads: int) -> np.ndarray:
    """[kv_heads, n]: of the queries [heads, n, d], the mean of a group."""
    whole = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return whole.reshape(kv_heads, -1, a.shape[1]).mean(axis=1)


def _attend(q, k, v, rows, chosen, size) -> np.ndarray:
    """Queries [heads, n, d] at tokens ``rows`` over the chosen pages [kv_heads, n, pages]."""
    group, out = len(q) // len(k), np.empty(q.shape, np.float32)
    for head in range(len(q)):
        mine = head // group
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            hidden = ~np.repeat(chosen[mine, part], size, axis=1)[:, : k.shape[1]]
            hidden |= np.arange(k.shape[1])[None] > rows[part, None]
            score = q[head, part] @ (k[mine].T * np.float32(q.shape[-1] ** -0.5))
            score[hidden] = -np.inf
            score -= score.max(axis=1, keepdims=True)
            np.exp(score, out=score)
            out[head, part] = score @ v[mine] / score.sum(axis=1, keepdims=True)
    return out


def sequence(chosen: np.ndarray, first: int, shape: Shape) -> AccessSequence:
    """Pages that are read, bool [steps, layers, kv_heads, pages], in their order; ``first`` is the
    token of the first step."""
    _, layers, kv_heads, _ = chosen.shape
    step, layer, head, page = (a.astype(np.int32) for a in np.nonzero(chosen))
    return AccessSequence(
        layers=layers,
        kv_heads=kv_heads,
        page_tokens=shape.page_tokens,
        lines_per_token=shape.lines,
        first_step=0,
        first_token=first,
        step=step,
        queue=layer * kv_heads + head,
        page=page,
    )


def misses(reading: Reading, first: int, residency: float, shape: Shape) -> np.ndarray:
    """[steps, layers, kv_heads]: pages that LRU over one pool has not, of those read."""
    steps, layers, kv_heads, pages = reading.chosen.shape
    accesses = sequence(reading.chosen, first, shape)
    frames = frames_of(residency, pages * accesses.queues)
    found = run_list(Timeline.of(accesses), "lru", capacity=frames, pooled=True)
    return accesses.counts(found.missed).reshape(steps, layers, kv_heads)


def lines(reading: Reading, first: int, shape: Shape) -> np.ndarray:
    """[steps, layers] lines of the pages read."""
    steps = len(reading.chosen)
    tokens = (first + np.arange(steps)) % shape.page_tokens + 1
    full = reading.chosen.sum(axis=(2, 3)) - shape.kv_heads
    return 2 * shape.lines * (full * shape.page_tokens + shape.kv_heads * tokens[:, None])


def time(
    reading: Reading, first: int, missed: np.ndarray, shape: Shape, timing: Timing, compute: int
) -> tuple[np.ndarray, np.ndarray]:
    """([steps] cycles, [steps, layers] bool: the layer waits)."""
    read_lines = lines(reading, first, shape)
    resident = compute + timing.plain(shape, read_lines)
    if reading.summaries:
        resident += (
            reading.summaries * (reading.newest[:, None] + 1) * shape.kv_heads + timing.answer
        )

    def tier(count):
        slots = -(-count * shape.slot_bytes // timing.tier_bytes)
        return np.where(count > 0, timing.tier_latency + slots, 0)

    late = tier((missed * reading.late).sum(axis=2))
    ahead = tier((missed * ~reading.late).sum(axis=2))
    # Asked for a layer ahead, or a step.
    lead = np.roll(resident, 1, axis=1)
    if reading.name == "freekv":
        lead = np.broadcast_to(resident.sum(axis=1, keepdims=True), ahead.shape)
    wait = np.maximum(late, np.maximum(ahead - lead, 0))
    # What the tier brings comes while what is here is read.
    cycles = resident + np.maximum(wait - read_lines, 0)
    return cycles.sum(axis=1), wait > 0
