# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A policy on a plain stream of keys: no steps, no queues, nothing protected. For block traces, and
to hold policies against other simulators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .engine import Access, Policy, Pool

__all__ = ["StreamPool", "run_keys"]


class StreamPool(Pool):
    """One queue; a key is its page. Every resident key may go."""

    def __init__(self, keys: int, frames: int):
        self.queues, self.frames, self.used = range(1), frames, 0
        (
            self.pages,
            self.kv_heads,
            self.layers,
            self.all_queues,
            self.page_tokens,
            self.history_pages,
        ) = keys, 1, 1, 1, 1, 0
        self.page_of = np.arange(keys)
        self.resident, self.known, self.in_flight = (
            np.zeros(keys, bool),
            np.zeros(keys, bool),
            np.zeros(keys, bool),
        )
        self.touched = np.full(keys, -1, np.int64)

    def is_open(self, key: int, now: Access) -> bool:
        return bool(self.resident[key])

    def open(self, now: Access) -> np.ndarray:
        return np.flatnonzero(self.resident)


class _Line:
    """What Belady is told of a stream."""

    def __init__(self, keys: np.ndarray):
        self.keys, self.sequence = keys, self
        self.step = np.arange(len(keys))

    def next_use(self) -> np.ndarray:
        order = np.argsort(self.keys, kind="stable")
        following = np.full(len(order), np.int64(1) << 40)
        same = self.keys[order][1:] == self.keys[order][:-1]
        following[order[:-1][same]] = order[1:][same]
        return following


def run_keys(keys: np.ndarray, make: Callable[[Pool], Policy], frames: int) -> np.ndarray:
    """[accesses] bool: the misses (a key's first access is one) of a cache that starts empty.
    ``keys`` are 0 … n − 1."""
    pool = StreamPool(int(keys.max()) + 1, frames)
    policy = make(pool)
    policy.start([])
    if policy.oracle:
        policy.tell(_Line(keys))
    missed = np.zeros(len(keys), bool)
    resident = pool.resident
    for index, key in enumerate(keys.tolist()):
        now = Access(index, index, 0, 0, key, key, -1, 0)
        missed[index] = miss = not resident[key]
        policy.seen(now, miss)
        if not miss:
            policy.hit(key, now)
            continue
        if pool.used >= frames:
            victim = policy.victim(now)
            resident[victim] = False
            policy.evicted(victim, now)
        else:
            pool.used += 1
        resident[key] = pool.known[key] = True
        policy.admitted(key, now)
    return missed
