# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The exact access sequence of a recording under the replay rules (docs/recordings.md), and the
line requests that carry it out.

Order: step, layer, head, ascending page, one access at a time. The page being written comes last in
its head, being the highest. In that access the host first writes the K and V lines of the step's
token, then reads the page's written lines like any other page's.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from .trace import Trace, TraceError

__all__ = ["LINE_REQUEST", "AccessSequence", "access_sequence"]

#: One line request: the access it belongs to (−1 before the first), whether it writes, and where
#: the line is; kv is 0 for K, 1 for V.
LINE_REQUEST = np.dtype(
    [
        ("access", "i4"),
        ("write", "?"),
        ("queue", "u2"),
        ("page", "u2"),
        ("kv", "u1"),
        ("line", "u2"),
    ]
)


@dataclass(frozen=True, eq=False, kw_only=True)
class AccessSequence:
    """Accesses of whole steps. ``step`` counts from 0 at ``first_step`` of the recording; all
    arrays are [accesses]."""

    layers: int
    kv_heads: int
    page_tokens: int
    lines_per_token: int
    first_step: int
    #: token that step 0 writes; the pages before it are the history, complete when the replay
    #: starts
    first_token: int
    step: np.ndarray
    queue: np.ndarray
    page: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    @property
    def queues(self) -> int:
        return self.layers * self.kv_heads

    @property
    def steps(self) -> int:
        return int(self.step[-1]) + 1

    @property
    def history_pages(self) -> int:
        """Pages of each queue written before the first step."""
        return self.first_token // self.page_tokens

    @property
    def final_pages(self) -> int:
        """Pages of each queue written when the last step ends."""
        return (self.first_token + self.steps - 1) // self.page_tokens + 1

    @cached_property
    def newest(self) -> np.ndarray:
        """[accesses] bool: the access is to the page being written."""
        return self.page == self.newest_page(self.step)

    @cached_property
    def opens(self) -> np.ndarray:
        """[accesses] bool: the access writes the first token of its page."""
        return self.newest & ((self.first_token + self.step) % self.page_tokens == 0)

    @cached_property
    def written_tokens(self) -> np.ndarray:
        """[accesses]: tokens of the page that are written when it is read; fewer than page_tokens
        in the page being written alone."""
        return np.minimum(
            self.page_tokens, self.first_token + self.step + 1 - self.page * self.page_tokens
        )

    @cached_property
    def step_starts(self) -> np.ndarray:
        """[steps + 1]: index of each step's first access."""
        return np.searchsorted(self.step, np.arange(self.steps + 1))

    @cached_property
    def layer_starts(self) -> np.ndarray:
        """[steps · layers + 1]: index of the first access of each (step, layer): the unit that a
        closed-loop host issues at once."""
        layer = self.step * self.layers + self.queue // self.kv_heads
        return np.searchsorted(layer, np.arange(self.steps * self.layers + 1))

    def newest_page(self, step):
        """The page that ``step`` (one or an array) writes into."""
        return (self.first_token + step) // self.page_tokens

    def capacity(self, residency: float) -> int:
        """⌊residency · final pages · queues⌋ frames, one for each queue at least. In exact
        decimals: 0.29 of 100 pages is 29, not the 28 of binary floats."""
        if not 0 < residency <= 1:
            raise ValueError(f"residency = {residency} is refused; legal: above 0, at most 1")
        frames = int(Fraction(str(residency)) * self.final_pages * self.queues)
        if frames < self.queues:
            raise ValueError(
                f"residency = {residency} of {self.final_pages} pages in {self.queues} queues is "
                + f"refused: {frames} frames; legal: a frame for each queue, 1/{self.final_pages} "
                + "and up"
            )
        return frames

    def share(self, capacity: int) -> int:
        """Frames of each queue when ``capacity`` is divided equally; at least one, or the rules
        have no meaning."""
        if capacity < self.queues:
            raise ValueError(
                f"capacity = {capacity} frames is refused; legal: at least one for each of "
                + f"{self.queues} queues"
            )
        return capacity // self.queues

    def initial_pages(self, capacity: int) -> range:
        """The pages of every queue that are resident at the start: the newest of the history, as
        many as an equal share holds."""
        return range(max(0, self.history_pages - self.share(capacity)), self.history_pages)

    def counts(self, marked: np.ndarray | None = None) -> np.ndarray:
        """[steps, queues]: accesses, or those that ``marked`` ([accesses] bool) names."""
        cell = self.step.astype(np.int64) * self.queues + self.queue
        if marked is not None:
            cell = cell[marked]
        return np.bincount(cell, minlength=self.steps * self.queues).reshape(
            self.steps, self.queues
        )

    def line_counts(self) -> np.ndarray:
        """[steps, queues]: line requests."""
        cell = self.step.astype(np.int64) * self.queues + self.queue
        lines = 2 * self.lines_per_token * (self.written_tokens + self.newest)
        counted = np.bincount(cell, weights=lines, minlength=self.steps * self.queues)
        return counted.astype(np.int64).reshape(self.steps, self.queues)

    @property
    def line_reads(self) -> int:
        return 2 * self.lines_per_token * int(self.written_tokens.sum())

    @property
    def line_writes(self) -> int:
        return 2 * self.lines_per_token * int(self.newest.sum())

    def line_requests(self) -> np.ndarray:
        """Every line request of the sequence in order, as :data:`LINE_REQUEST`; ``Trace.lines``
        holds the bytes.

        An access to the page being written starts with the writes of its token (K lines, then V
        lines); then all its written lines are read, K then V, ascending.
        """
        written = self.written_tokens * self.lines_per_token
        writes = np.where(self.newest, self.lines_per_token, 0)
        first = (written - writes).repeat(2 * writes)
        return np.concatenate(
            [
                self._requests(2 * writes, write=True, half=writes, base=first),
                self._requests(2 * written, write=False, half=written, base=0),
            ]
        )[self._interleave(2 * writes, 2 * written)]

    def history_requests(self) -> np.ndarray:
        """The writes that make the history, as :data:`LINE_REQUEST` with access −1: ascending page,
        queue, K then V, line."""
        half = self.page_tokens * self.lines_per_token
        shape = (self.history_pages, self.queues, 2, half)
        requests = np.zeros(int(np.prod(shape)), LINE_REQUEST)
        requests["access"], requests["write"] = -1, True
        for field, values in zip(("page", "queue", "kv", "line"), np.indices(shape), strict=True):
            requests[field] = values.ravel()
        return requests

    def _requests(self, counts: np.ndarray, *, write: bool, half: np.ndarray, base) -> np.ndarray:
        """``counts[a]`` requests for each access a: lines base … base + half[a] − 1 of K, then the
        same of V."""
        access = np.arange(len(self)).repeat(counts)
        kv, line = np.divmod(_position(counts), np.maximum(1, half)[access])
        requests = np.zeros(len(access), LINE_REQUEST)
        requests["access"], requests["write"] = access, write
        requests["queue"], requests["page"] = self.queue[access], self.page[access]
        requests["kv"], requests["line"] = kv, line + base
        return requests

    @staticmethod
    def _interleave(writes: np.ndarray, reads: np.ndarray) -> np.ndarray:
        """Order that puts each access's writes before its reads, given all writes followed by all
        reads."""
        access = np.concatenate(
            [np.arange(len(writes)).repeat(writes), np.arange(len(reads)).repeat(reads)]
        )
        return np.argsort(access, kind="stable")


def _position(counts: np.ndarray) -> np.ndarray:
    """0, 1, … counts[0] − 1, 0, 1, … counts[1] − 1, …"""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - (ends - counts).repeat(counts)


def access_sequence(
    trace: Trace, *, first_step: int = 0, accesses: int | None = None
) -> AccessSequence:
    """The accesses of ``trace`` from ``first_step`` on: all of them, or as many whole steps as hold
    at least ``accesses``.

    A part of a recording is a trace of its own: its history is what was written before
    ``first_step``, and its final pages are those at its end. ``first_step`` must open a page, so
    that the history is whole pages.
    """
    if not 0 <= first_step < trace.steps or first_step % trace.page_tokens:
        raise TraceError(
            f"{trace.path}: first step {first_step} is refused; legal: a multiple of "
            + f"{trace.page_tokens} below {trace.steps}"
        )
    by_step = trace.reads.reshape(trace.queues, trace.steps, trace.pages).transpose(1, 0, 2)[
        first_step:
    ]
    if accesses is not None:
        ends = np.cumsum(by_step.sum(axis=(1, 2)))
        if not 0 < accesses <= ends[-1]:
            raise TraceError(
                f"{trace.path}: {accesses} accesses are refused; legal: 1 … {ends[-1]} from "
                + f"step {first_step}"
            )
        by_step = by_step[: int(np.searchsorted(ends, accesses)) + 1]
    step, queue, page = (index.astype(np.int32) for index in np.nonzero(by_step))
    return AccessSequence(
        layers=trace.layers,
        kv_heads=trace.kv_heads,
        page_tokens=trace.page_tokens,
        lines_per_token=trace.lines_per_token,
        first_step=first_step,
        first_token=trace.prefill_tokens + first_step,
        step=step,
        queue=queue,
        page=page,
    )
