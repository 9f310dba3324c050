# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`arc`, `s3fifo` and `wtinylfu` compiled: the rules of :mod:`.engine` over four linked lists a
pool, equal decision for decision.

A key stands in one list at most. The first lists of a policy hold what is resident, the others its
ghosts: `arc` once, often | ghosts of either; `s3fifo` small, main | ghosts; `wtinylfu` window,
probation, protected.
"""

from __future__ import annotations

import numpy as np

from ..compiled import njit
from .engine import Outcome, Timeline
from .fast_lists import outcome_of
from .policies import arguments

__all__ = ["ADAPTIVE", "run_adaptive"]

#: Ids that have this form.
ADAPTIVE = ("arc", "s3fifo", "wtinylfu")
_ARC, _S3FIFO, _WTINYLFU = range(3)
_LISTS = 4
#: columns of a node: its neighbours, and the list that it stands in; the node of a list has its
#: length there; of a key, the step that touched it last, and its page
_NEWER, _OLDER, _IN, _TOUCHED, _PAGE = range(5)


@njit
def _push(key, to, nodes):
    """As the newest of list ``to``, which is the node at its end."""
    newest = nodes[to, _OLDER]
    nodes[newest, _NEWER], nodes[key, _OLDER], nodes[key, _NEWER], nodes[to, _OLDER] = (
        key,
        newest,
        to,
        key,
    )
    nodes[key, _IN] = to
    nodes[to, _IN] += 1


@njit
def _drop(key, nodes):
    older, newer = nodes[key, _OLDER], nodes[key, _NEWER]
    nodes[older, _NEWER], nodes[newer, _OLDER] = newer, older
    nodes[nodes[key, _IN], _IN] -= 1
    nodes[key, _IN] = -1


@njit
def _move_oldest(of, to, nodes):
    oldest = nodes[of, _NEWER]
    _drop(oldest, nodes)
    _push(oldest, to, nodes)


@njit
def _first_open(of, step, newest, nodes):
    """The oldest key of list ``of`` that may go; −1 when there is none."""
    at = nodes[of, _NEWER]
    while at != of:
        if nodes[at, _TOUCHED] != step and nodes[at, _PAGE] != newest:
            return at
        at = nodes[at, _NEWER]
    return -1


@njit
def _arc_victim(once, frames, target, returning, step, newest, nodes):
    """The victim, and whether it is to be forgotten (no ghost of it is kept)."""
    often, ghost_once, ghost_often = once + 1, once + 2, once + 3
    t1, t2, forget = nodes[once, _IN], nodes[often, _IN], False
    if not returning:
        if t1 + nodes[ghost_once, _IN] >= frames:
            if t1 < frames:
                _drop(nodes[ghost_once, _NEWER], nodes)
            else:
                forget = True
        elif t1 + t2 + nodes[ghost_once, _IN] + nodes[ghost_often, _IN] >= 2 * frames:
            _drop(nodes[ghost_often, _NEWER], nodes)
    first = forget or t2 == 0 or (t1 > 0 and (t1 > target or (t1 == target and returning == 2)))
    victim = _first_open(once if first else often, step, newest, nodes)
    if victim < 0:
        victim = _first_open(often if first else once, step, newest, nodes)
    return victim, forget


@njit
def _s3fifo_victim(small, frames, limits, step, newest, count, nodes):
    main = small + 1
    if nodes[main, _IN] <= frames - limits[0] and nodes[small, _IN]:
        at = nodes[small, _NEWER]
        while at != small:
            after = nodes[at, _NEWER]
            if count[at] >= limits[2]:
                _drop(at, nodes)
                _push(at, main, nodes)
                count[at] = 0
            elif nodes[at, _TOUCHED] != step and nodes[at, _PAGE] != newest:
                return at
            at = after
    for _ in range(4 * nodes[main, _IN]):
        at = nodes[main, _NEWER]
        is_open = nodes[at, _TOUCHED] != step and nodes[at, _PAGE] != newest
        if count[at] == 0 and is_open:
            return at
        _drop(at, nodes)
        _push(at, main, nodes)
        if is_open:
            count[at] = min(count[at], 3) - 1
    return _first_open(small, step, newest, nodes)


@njit
def _wtinylfu_victim(window, step, newest, count, nodes):
    candidate = _first_open(window, step, newest, nodes)
    incumbent = _first_open(window + 1, step, newest, nodes)
    if incumbent < 0:
        incumbent = _first_open(window + 2, step, newest, nodes)
    return (
        incumbent
        if candidate < 0 or (incumbent >= 0 and count[candidate] > count[incumbent])
        else candidate
    )


@njit
def _admit(kind, base, key, returning, full, limits, count, nodes):
    if kind == _ARC:
        _push(key, base + (1 if returning else 0), nodes)
    elif kind == _S3FIFO:
        _push(
            key,
            base + (1 if returning or (not full and nodes[base, _IN] >= limits[0]) else 0),
            nodes,
        )
        count[key] = 0
    else:
        _push(key, base, nodes)
        while nodes[base, _IN] > limits[0]:
            _move_oldest(base, base + 1, nodes)


@njit
def _replay(kind, accesses, pooling, limits, missed, victims):
    """``limits``: of `s3fifo` small and ghost frames and the accesses that promote; of `wtinylfu`
    window and protected frames. Returns victims, bypasses."""
    steps, queues, key_of, newest_of = accesses
    pools, frames, pages, initial, history = pooling
    keys = pages * (queues.max() + 1) if pools == 1 else pages * pools
    resident_lists = 3 if kind == _WTINYLFU else 2
    nodes = np.empty((keys + _LISTS * pools, 5), np.int64)
    for node in range(len(nodes)):
        nodes[node, _NEWER] = nodes[node, _OLDER] = node
        nodes[node, _IN] = -1 if node < keys else 0
        nodes[node, _TOUCHED], nodes[node, _PAGE] = -1, node % pages
    known = np.zeros(keys, np.bool_)
    count, used = np.zeros(keys, np.int64), np.zeros(pools, np.int64)
    target, full, until_aging = (
        np.zeros(pools),
        np.zeros(pools, np.bool_),
        np.full(pools, 10 * frames),
    )
    for key in range(keys):
        known[key] = nodes[key, _PAGE] < history
        if initial <= nodes[key, _PAGE] < history:
            pool = key // pages if pools > 1 else 0
            used[pool] += 1
            _admit(kind, keys + _LISTS * pool, key, False, False, limits, count, nodes)
    evictions = bypasses = 0
    for index in range(len(steps)):
        step, key = steps[index], key_of[index]
        pool = queues[index] if pools > 1 else 0
        base = keys + _LISTS * pool
        which, returning = nodes[key, _IN] - base, 0
        if kind == _WTINYLFU:
            count[key] = min(15, count[key] + 1)
            until_aging[pool] -= 1
            if until_aging[pool] == 0:
                first = pool * pages if pools > 1 else 0
                for other in range(first, first + pages if pools > 1 else keys):
                    count[other] >>= 1
                until_aging[pool] = 10 * frames
        elif which >= 2:
            returning = which - 1
            if kind == _ARC:
                once, often = nodes[base + 2, _IN], nodes[base + 3, _IN]
                if returning == 1:
                    target[pool] = min(target[pool] + max(often / once, 1.0), frames)
                else:
                    target[pool] = max(target[pool] - max(once / often, 1.0), 0.0)
            _drop(key, nodes)
        if 0 <= which < resident_lists:
            nodes[key, _TOUCHED] = step
            if kind == _ARC:  # written out here: as a call of its own it took most of the time
                _drop(key, nodes)
                _push(key, base + 1, nodes)
            elif kind == _S3FIFO:
                count[key] += 1
            else:
                to = base if which == 0 else base + 2
                _drop(key, nodes)
                _push(key, to, nodes)
                if which == 1 and nodes[to, _IN] > limits[1]:
                    _move_oldest(to, base + 1, nodes)
            continue
        missed[index] = known[key]
        if used[pool] >= frames:
            newest, forget = newest_of[index], False
            full[pool] = True
            if kind == _ARC:
                victim, forget = _arc_victim(
                    base, frames, target[pool], returning, step, newest, nodes
                )
            elif kind == _S3FIFO:
                victim = _s3fifo_victim(base, frames, limits, step, newest, count, nodes)
            else:
                victim = _wtinylfu_victim(base, step, newest, count, nodes)
            if victim < 0:
                bypasses += 1
                continue
            left = nodes[victim, _IN]
            _drop(victim, nodes)
            if kind == _ARC and not forget:
                _push(victim, left + 2, nodes)
            elif kind == _S3FIFO and left == base:
                _push(victim, base + 2, nodes)
                if nodes[base + 2, _IN] > limits[1]:
                    _drop(nodes[base + 2, _NEWER], nodes)
            used[pool] -= 1
            if len(victims):
                victims[evictions, 0], victims[evictions, 1] = index, victim
            evictions += 1
        known[key] = True
        nodes[key, _TOUCHED] = step
        used[pool] += 1
        _admit(kind, base, key, returning, full[pool], limits, count, nodes)
    return evictions, bypasses


def run_adaptive(
    timeline: Timeline,
    policy: str,
    *,
    capacity: int,
    pooled: bool,
    parameters: dict | None = None,
    record: bool = False,
) -> Outcome:
    """Replay under one of :data:`ADAPTIVE`."""
    frames = capacity if pooled else timeline.sequence.share(capacity)
    limits = _LIMITS[policy](frames, **arguments(policy, parameters))
    return outcome_of(
        _replay,
        timeline,
        ADAPTIVE.index(policy),
        capacity,
        pooled,
        (np.array(limits, np.int64),),
        record,
    )


def _wtinylfu_limits(frames, window, protected):
    first = max(1, frames * window // 100)
    return first, (frames - first) * protected // 100, 0


_LIMITS = {
    "arc": lambda frames: (0, 0, 0),
    "s3fifo": lambda frames, small, ghost, promote: (
        int(frames * small),
        int(frames * ghost),
        promote,
    ),
    "wtinylfu": _wtinylfu_limits,
}
