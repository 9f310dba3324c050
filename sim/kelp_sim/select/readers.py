# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Who chooses which pages a query attends to: the ideal reader, and the device's choice with
everything resident.

A reader gives, for queries [heads, n, head_dim] at tokens `positions`, the pages that each KV head
reads: bool [kv_heads, n, pages], the first and the newest page always among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kelp_golden import select as golden
from kelp_spec.formats import ELEMENTS
from kelp_spec.select import CODE_BITS, NEAR, NEAR_PLACES
from kelp_spec.select_plan import PLANNED_TOKENS, plan_lines

__all__ = ["Device", "Ideal", "Moved", "page_mass", "plans_of", "scale_of"]

PLANNED_QUERIES = 256  #: tokens whose queries a host plans with
PLANNED_POSITIONS = 4096  #: of the tokens that it plans for
_GOLDEN = (5**0.5 - 1) / 2

Moved = Callable[[np.ndarray, np.ndarray], np.ndarray]  #: as `Llama.moved`


def page_mass(q: np.ndarray, k: np.ndarray, positions: np.ndarray, page_tokens: int) -> np.ndarray:
    """float32 [n, pages]: attention mass of each page, mean over the heads of q [group, n, d],
    which share the keys k [tokens, d]; pages beyond a position have none."""
    pages = -(-len(k) // page_tokens)
    score = q @ (k.T * np.float32(q.shape[-1] ** -0.5))
    hidden = np.arange(len(k))[None] > positions[:, None]
    score[:, hidden] = -np.inf
    score -= score.max(axis=-1, keepdims=True)
    np.exp(score, out=score)
    score /= score.sum(axis=-1, keepdims=True)
    mean = np.pad(score.mean(axis=0), ((0, 0), (0, pages * page_tokens - len(k))))
    return mean.reshape(len(positions), pages, page_tokens).sum(axis=-1)


def scale_of(head_dim: int) -> tuple[int, int]:
    """(m, sh): log2(e) / sqrt(head_dim) = m · 2^−sh, m of 16 bits."""
    scale = np.log2(np.e) / np.sqrt(head_dim)
    sh = 15 - int(np.floor(np.log2(scale)))
    return round(scale * 2**sh), sh


def _planned(
    keys: np.ndarray, queries: np.ndarray, moved: Moved, page_tokens: int, bits: int
) -> tuple[np.ndarray, golden.Plan]:
    """What a host writes, and the plan that it is, of a KV head's first keys [tokens, head_dim] and
    their queries [heads, tokens, head_dim], of which the latest tell most of those that will come.

    RoPE turns what is at hand away from what comes later; so both count as if they were spread over
    all positions. The first page's keys are unlike all others, and have no summary."""
    start = page_tokens if len(keys) > 2 * page_tokens else 0
    latest = max(0, queries.shape[1] - PLANNED_QUERIES)
    some = _spread(keys[start:], start, moved)
    asked = [_spread(rows[latest:], latest, moved) for rows in queries]
    lines = plan_lines(some, np.concatenate(asked), bits)
    return lines, golden.plan_of(lines)


def plans_of(
    keys: np.ndarray,
    queries: np.ndarray,
    moved: Moved,
    page_tokens: int = 16,
    bits: int = CODE_BITS,
) -> list[tuple[np.ndarray, golden.Plan]]:
    """The same of a layer's KV heads: keys [kv_heads, tokens, head_dim], queries [heads, …]."""
    each = queries.reshape(len(keys), -1, *queries.shape[1:])
    return [_planned(*pair, moved, page_tokens, bits) for pair in zip(keys, each, strict=True)]


def _spread(rows: np.ndarray, first: int, moved: Moved) -> np.ndarray:
    """Some of `rows`, the first of which stands at token `first`, all over the positions."""
    at = np.arange(PLANNED_TOKENS) * len(rows) // PLANNED_TOKENS
    to = np.arange(PLANNED_TOKENS) * _GOLDEN % 1 * PLANNED_POSITIONS
    return moved(rows[at], to - at - first)


@dataclass(frozen=True)
class Ideal:
    """Exact float32 scores of the stored keys: the best pages until they hold `target` of the mass,
    at most `most`, and the first and the newest."""

    target: float = 0.9
    most: int = 32
    page_tokens: int = 16

    def chosen(self, q, k, positions, plans=None) -> np.ndarray:
        """Plans make no difference."""
        group = len(q) // len(k)
        return np.stack(
            [
                self.of_masses(
                    page_mass(q[h * group : (h + 1) * group], k[h], positions, self.page_tokens),
                    positions // self.page_tokens,
                )
                for h in range(len(k))
            ]
        )

    def of_masses(self, mass: np.ndarray, newest: np.ndarray) -> np.ndarray:
        """From masses [n, pages]."""
        rows = np.arange(len(mass))
        always = np.zeros(mass.shape, bool)
        always[:, 0] = always[rows, newest] = True
        held = np.where(always, mass, 0).sum(axis=1)
        rest = np.where(always, -1, mass)
        order = np.argsort(-rest, axis=1, kind="stable")
        before = held[:, None] + np.cumsum(np.take_along_axis(mass, order, 1), axis=1)
        before = np.concatenate([held[:, None], before[:, :-1]], axis=1)
        takes = (before < self.target) & (np.arange(mass.shape[1]) < self.most)
        takes &= np.take_along_axis(rest, order, 1) > 0
        chosen = always
        chosen[rows[:, None], order] |= takes
        return chosen


@dataclass
class Device:
    """The device's choice, bit for bit, with everything resident: of each query head the `quota`
    pages of the largest estimate, then exact scores. Of a line's code it uses `code_bits` bits, as
    its plans say. `named` are the pages with exact scores of the last call, bool [kv_heads, n,
    pages], and `looks` how many of their tokens were looked at, int [kv_heads, n]."""

    quota: int
    target: float = 0.9
    most: int = 32
    page_tokens: int = 16
    code_bits: int = CODE_BITS
    named: np.ndarray | None = field(default=None, init=False, repr=False)
    looks: np.ndarray | None = field(default=None, init=False, repr=False)

    def chosen(self, q, k, positions, plans) -> np.ndarray:
        """With a plan of each KV head."""
        group, count = len(q) // len(k), len(positions)
        size = max(1, (1 << 21) // (k.shape[1] * group))
        both = np.zeros((2, len(k), count, -(-k.shape[1] // self.page_tokens)), bool)
        self.looks = np.zeros((len(k), count), np.int64)
        for head in range(len(k)):
            keys = _blocks(k[head])
            pages = both.shape[3]
            whole = golden.Blocks(*(_paged(part, pages, self.page_tokens) for part in keys))
            codes = golden.summary(whole, plans[head])
            mine = q[head * group : (head + 1) * group]
            for n in range(0, count, size):
                part = slice(n, n + size)
                both[0, head, part], both[1, head, part], self.looks[head, part] = self._rows(
                    mine[:, part], keys, codes, plans[head], positions[part]
                )
        self.named = both[1]
        return both[0]

    def _rows(self, q, keys, codes, plan, positions) -> tuple[np.ndarray, ...]:
        """Chosen and named, bool [n, pages], and tokens looked at [n], of one KV head."""
        group, count, _ = q.shape
        tokens, size, pages = len(keys.e), self.page_tokens, len(codes)
        newest = positions // size
        query = _blocks(q.reshape(group * count, -1))
        m, sh = scale_of(q.shape[-1])
        raw = golden.token_sums(query, codes, plan)
        raw = raw.reshape(group, count, pages, size).transpose(1, 0, 2, 3)
        # Stage one names pages between the first and the newest.
        between = np.arange(pages)[None] < newest[:, None]
        between[:, 0] = False
        top = np.where(between[:, None], raw.max(axis=-1), golden.NONE)
        estimate = np.clip(top * m >> sh, golden.SCORE_LEAST, golden.SCORE_MOST)
        estimate = np.where(between[:, None], estimate, golden.NONE)
        named = golden.candidates(top, self.quota) & between
        place = np.clip(newest - 1, 1, self.quota) - 1  # of the last that a head names
        last = np.take_along_axis(-np.sort(-top, axis=-1), place[:, None, None], axis=-1)
        near = (raw >= last[..., None] - (NEAR << sh >> NEAR_PLACES)).any(axis=1)
        always = np.zeros((count, pages), bool)
        always[:, 0] = always[np.arange(count), newest] = True
        score = golden.scores(query, keys, m, sh).reshape(group, count, tokens).transpose(1, 0, 2)
        # Of the newest page the tokens so far: the others have no weight.
        hidden = np.arange(tokens)[None] > positions[:, None]
        hidden |= (named[:, :, None] & ~near).reshape(count, -1)[:, :tokens]
        score = np.where(hidden[:, None], golden.SCORE_LEAST, score)
        score = np.pad(
            score, ((0, 0), (0, 0), (0, pages * size - tokens)), constant_values=golden.SCORE_LEAST
        )
        e, z = golden.page_masses(score.reshape(count, group, pages, size))
        counted = named | always
        more = golden.unscored(estimate, named)
        sums = golden.mass_sums(e, z, counted, named, more)
        target = round(self.target * (1 << 16)) * group
        chosen = np.zeros((count, pages), bool)
        for row in range(count):
            at = np.flatnonzero(counted[row])
            choice = golden.choose(
                at,
                sums[row, at],
                np.ones(len(at), bool),
                np.flatnonzero(always[row]),
                target=target,
                most=self.most,
            )
            chosen[row, choice.pages] = True
        looks = (np.repeat(counted, size, axis=1)[:, :tokens] & ~hidden).sum(axis=1)
        return chosen, counted, looks


def _blocks(rows: np.ndarray) -> golden.Blocks:
    """Block form of float [n, head_dim], as a host writes it: filled up with zeros to whole
    lines."""
    padded = np.pad(rows.astype(np.float16), ((0, 0), (0, -rows.shape[1] % ELEMENTS)))
    codes = np.ascontiguousarray(padded).view(np.uint16)
    return golden.of_host(codes.reshape(len(rows), -1, ELEMENTS))


def _paged(part: np.ndarray, pages: int, size: int) -> np.ndarray:
    """[tokens, …] as [pages, tokens of a page, …], zeros behind."""
    behind = ((0, pages * size - len(part)),) + ((0, 0),) * (part.ndim - 1)
    return np.pad(part, behind).reshape(pages, size, *part.shape[1:])
