# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How much of the gap between LRU and Belady policy 2 closes, where a host waits for whatever the
ideal reader chooses and sends the guessed query.

What is read does not depend on what is resident then, so LRU, Belady and the history policy `kelp`
replay the same reads in the lab, one pool each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..lab.cells import replay
from ..lab.engine import Timeline
from ..quality.llama import Llama
from . import memory, rivals
from .decode import Device, NearHost, Prefix, decode, frames_of
from .readers import Ideal
from .timing import Shape

__all__ = ["KEYS", "TOLD", "Waiting", "rows", "summary"]

#: What a row has, in this order. Misses and reads are of the steps that count, all queues.
KEYS = (
    *("policy", "told", "document", "residency", "reads", "misses", "flash_reads"),
    *("lru_misses", "belady_misses", "gap", "flash_over_lru"),
)
#: What a policy is told, by whether a host sends the guessed query.
TOLD = {True: "pages read, guessed query", False: "pages read"}
#: Devices: what they keep by, and whether they hear guesses. `kelp` fetches what a guess wants.
_NEAR = (("table", True), ("table", False), ("kelp", True))
#: Policies of the lab that replay the same reads: the two ends of the gap, then those beside.
_LAB = ("lru", "belady", "kelp")


@dataclass(frozen=True, kw_only=True)
class Waiting(Device):
    """A device whose host reads what the ideal reader chooses, and waits for what is absent."""

    def begin(self, prefix: Prefix) -> NearHost:
        return _Waiting(self, prefix)


class _Waiting(NearHost):
    """Time goes by as if the device had chosen the pages; `missing` of a run has, at its end, pages
    read and those of them that were absent or on their way."""

    def __init__(self, device: Device, prefix: Prefix):
        super().__init__(device, prefix)
        self._ideal = Ideal(device.target, device.most, self.shape.page_tokens)

    def _choice(self, at, query, turn, tokens: int) -> tuple[int, int, int]:
        step, layer, head = at
        group, size = self.shape.group, self.shape.page_tokens
        queue, keys = self._queue(layer, head)
        position = turn.newest * size + tokens - 1
        mine = query.values[head * group : (head + 1) * group, None]
        read = self._ideal.chosen(mine, self.k[at[1:]][None, : position + 1], np.array([position]))
        self._chosen[:] = self._wanted[:] = False
        self._chosen[: turn.newest + 1] = read[0, 0]
        count, wait = int(self._chosen.sum()), 0
        self._wanted[:] = self._chosen & (self.pool.state[keys] != memory.RESIDENT)
        missed = int(self._wanted.sum())
        if missed:
            self.run.waits[step, layer] = True
            wait = self._fetched(queue, keys, turn)
            self._wanted[:] = False
        self.run.missing[at] = 0, 0, count, missed
        return count, count * size, wait


def rows(
    model: Llama,
    documents: Sequence[tuple[str, np.ndarray, int]],
    residencies: Sequence[float],
    *,
    device: Device,
    warm: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> list[dict]:
    """Rows with `KEYS` of each document and residency: policy 2 with the guessed query and without,
    policy `kelp` with it, and the lab's. ``device``: compute, quota, most and target; the first
    ``warm`` steps of a document count nowhere. ``progress`` hears the document and the share that
    is done."""
    asks = {name: getattr(device, name) for name in ("compute", "quota", "most", "target")}
    cells = [(r, *near) for r in residencies for near in _NEAR]
    found = []
    for n, (name, ids, first) in enumerate(documents):

        def tell(step: int, name=name, n=n, steps=len(ids) - 1 - first) -> None:
            if progress is not None:
                progress(name, (n + step / steps) / len(documents))

        devices = [Waiting(residency=r, policy=p, guess=guess, **asks) for r, p, guess in cells]
        runs = decode(model, ids, first, devices, progress=tell)
        for run in runs:
            run.missing = run.missing[warm:]
        found += _of_document(name, first, dict(zip(cells, runs, strict=True)), model, warm)
    return found


def _of_document(name: str, first: int, runs: dict, model: Llama, warm: int) -> list[dict]:
    any_run = next(iter(runs.values()))
    heads, pages = model.config["num_attention_heads"], any_run.chosen.shape[-1]
    shape = Shape(
        kv_heads=model.kv_heads, group=heads // model.kv_heads, lines=-(-model.head_dim // 32)
    )
    sequence = rivals.sequence(any_run.chosen, first, shape)
    line, count = Timeline.of(sequence), int(sequence.counts()[warm:].sum())
    found = []
    for residency in dict.fromkeys(r for r, *_ in runs):
        capacity = frames_of(residency, pages * sequence.queues)
        lab = {p: replay(line, p, capacity=capacity, pooled=True) for p in _LAB}
        missed = {p: int(sequence.counts(o.missed)[warm:].sum()) for p, o in lab.items()}
        ends = missed["lru"], missed["belady"]
        rows_of = [
            (p, TOLD[guess], int(run.missing[..., 3].sum()), int(run.reads[warm:].sum()))
            for (r, p, guess), run in runs.items()
            if r == residency
        ]
        # What a policy of the lab fetches ahead is counted over all steps, and so is not told.
        rows_of += [(p, TOLD[False], missed[p], None if lab[p].issued else missed[p]) for p in _LAB]
        found += [
            _row((policy, told, name, residency), (count, *counts), ends)
            for policy, told, *counts in rows_of
        ]
    return found


def _row(names: tuple, counts: tuple, ends: tuple) -> dict:
    """``names``: policy, what it is told, document, residency; ``counts``: reads, misses, reads of
    flash; ``ends``: LRU's misses and Belady's."""
    (_, misses, flash), (lru, belady) = counts, ends
    gap = (lru - misses) / (lru - belady) if lru > belady else None
    over = flash / lru if lru and flash is not None else None
    return dict(zip(KEYS, (*names, *counts, *ends, gap, over), strict=True))


def summary(found: Sequence[dict]) -> list[dict]:
    """Over documents, with the same names: counts are summed, gap and flash are of the sums; the
    document with the smallest gap and that with the most flash over LRU's beside them."""
    out = []
    for policy, told, residency in dict.fromkeys(map(_cell, found)):
        mine = [row for row in found if _cell(row) == (policy, told, residency)]
        flashes = [row["flash_reads"] for row in mine]
        sums = [sum(row[key] for row in mine) for key in ("reads", "misses")]
        ends = [sum(row[key] for row in mine) for key in ("lru_misses", "belady_misses")]
        flash = None if None in flashes else sum(flashes)
        row = _row((policy, told, len(mine), residency), (*sums, flash), tuple(ends))
        row["documents"] = row.pop("document")
        row["least_gap"] = min((r["gap"] for r in mine if r["gap"] is not None), default=None)
        row["most_flash_over_lru"] = max(
            (r["flash_over_lru"] for r in mine if r["flash_over_lru"] is not None), default=None
        )
        out.append(row)
    return out


def _cell(row: dict) -> tuple:
    return row["policy"], row["told"], row["residency"]
