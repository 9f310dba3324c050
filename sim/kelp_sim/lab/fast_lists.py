# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`lru`, `fifo`, `clock` and `sieve` compiled: the rules of :mod:`.engine` over one linked list a
pool, equal decision for decision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..compiled import njit
from .engine import Outcome, Timeline

__all__ = ["LISTS", "Accesses", "Pools", "accesses_of", "outcome_of", "run_list"]

#: Ids that have this form.
LISTS = ("lru", "fifo", "clock", "sieve")
_LRU, _FIFO, _CLOCK, _SIEVE = range(4)


class Accesses(NamedTuple):
    """Of every access, as the compiled loops take them."""

    step: np.ndarray
    queue: np.ndarray
    key: np.ndarray
    newest: np.ndarray  #: the page being written then


class Pools(NamedTuple):
    """Where keys have their frames: ``count`` is 1, or one pool a queue. A key is queue · ``pages``
    + page; pages below ``history`` are written before the first access, those from ``initial`` on
    resident then."""

    count: int
    frames: int  #: of each
    pages: int
    initial: int
    history: int


@njit
def _append(key, end, newer, older):
    newest = older[end]
    newer[newest], older[key], newer[key], older[end] = key, newest, end, key


@njit
def _unlink(key, newer, older):
    newer[older[key]], older[newer[key]] = newer[key], older[key]


@njit
def _replay(kind, accesses, pooling, missed, victims):
    """List ends are nodes of their own behind the keys. Returns how many victims and bypasses there
    were."""
    steps, queues, key_of, newest_of = accesses
    pools, frames, pages, initial, history = pooling
    keys = pages * (queues.max() + 1) if pools == 1 else pages * pools
    resident, known, marked = (
        np.zeros(keys, np.bool_),
        np.zeros(keys, np.bool_),
        np.zeros(keys, np.bool_),
    )
    touched = np.full(keys, -1, np.int64)
    newer, older = np.arange(keys + pools), np.arange(keys + pools)
    used, hand = np.zeros(pools, np.int64), np.arange(keys, keys + pools)
    for key in range(keys):
        page = key % pages
        known[key] = page < history
        if initial <= page < history:
            pool = key // pages if pools > 1 else 0
            resident[key] = True
            used[pool] += 1
            _append(key, keys + pool, newer, older)
    evictions = bypasses = 0
    for index in range(len(steps)):
        step, key = steps[index], key_of[index]
        pool = queues[index] if pools > 1 else 0
        end = keys + pool
        if resident[key]:
            if kind == _LRU:
                _unlink(key, newer, older)
                _append(key, end, newer, older)
            elif kind != _FIFO:
                marked[key] = True
            touched[key] = step
            continue
        missed[index] = known[key]
        if used[pool] >= frames:
            newest, victim = newest_of[index], -1
            if kind == _LRU or kind == _FIFO:
                at = newer[end]
                while at != end and (touched[at] == step or at % pages == newest):
                    at = newer[at]
                victim = at if at != end else -1
            elif kind == _CLOCK:
                for _ in range(2 * used[pool]):
                    at = newer[end]
                    is_open = touched[at] != step and at % pages != newest
                    if is_open and not marked[at]:
                        victim = at
                        break
                    _unlink(at, newer, older)
                    _append(at, end, newer, older)
                    marked[at] = marked[at] and not is_open
            else:
                at = hand[pool] if hand[pool] != end else newer[end]
                for _ in range(2 * used[pool]):
                    if touched[at] != step and at % pages != newest:
                        if not marked[at]:
                            victim = at
                            break
                        marked[at] = False
                    at = newer[at] if newer[at] != end else newer[end]
            if victim < 0:
                bypasses += 1
                continue
            if kind == _SIEVE:
                hand[pool] = newer[victim]
            _unlink(victim, newer, older)
            resident[victim] = False
            used[pool] -= 1
            if len(victims):
                victims[evictions, 0], victims[evictions, 1] = index, victim
            evictions += 1
        resident[key] = known[key] = True
        marked[key] = False
        touched[key] = step
        used[pool] += 1
        _append(key, end, newer, older)
    return evictions, bypasses


def accesses_of(timeline: Timeline) -> Accesses:
    s = timeline.sequence
    columns = s.step, s.queue, timeline.keys, s.newest_page(s.step)
    return Accesses(*(np.ascontiguousarray(column, np.int64) for column in columns))


def outcome_of(
    loop,
    timeline: Timeline,
    kind: int,
    capacity: int,
    pooled: bool,
    more: tuple = (),
    record: bool = False,
) -> Outcome:
    """What a compiled ``loop`` of one ``kind`` of policy does; ``more``: what it takes between the
    pools and the results."""
    s = timeline.sequence
    missed = np.zeros(len(s), np.bool_)
    victims = np.empty((len(s) if record else 0, 2), np.int64)
    pools, frames = (1, capacity) if pooled else (s.queues, s.share(capacity))
    pooling = Pools(pools, frames, s.final_pages, s.initial_pages(capacity).start, s.history_pages)
    evictions, bypasses = loop(kind, accesses_of(timeline), pooling, *more, missed, victims)
    return Outcome(
        missed, bypasses, victims=[tuple(v) for v in victims[:evictions].tolist()] if record else []
    )


def run_list(
    timeline: Timeline,
    policy: str,
    *,
    capacity: int,
    pooled: bool,
    parameters: dict | None = None,
    record: bool = False,
) -> Outcome:
    """Replay under one of :data:`LISTS`, which have no parameters."""
    return outcome_of(_replay, timeline, LISTS.index(policy), capacity, pooled, record=record)
