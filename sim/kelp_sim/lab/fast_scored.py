# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policies with a value per page, compiled: the rules of :mod:`.engine` and a search for the lowest
value, equal decision for decision.

A value is one of four: a rank that only an access of the page itself changes (`lfu`, `belady`,
`h2o`, `streamingllm`), policy 0's priority (`ema`), mass with age (`snapkv`, `quest`), two counts
with age (`tworate`). `plain` never evicts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kelp_golden import arithmetic
from kelp_spec.scores import idle_constants, recency_constants

from ..compiled import njit
from .engine import Outcome, Timeline
from .fast_lists import outcome_of
from .policies import arguments
from .policies.quest import falls

__all__ = ["SCORED", "run_scored"]

#: Ids that have this form.
SCORED = ("lfu", "belady", "h2o", "streamingllm", "ema", "snapkv", "quest", "plain", "tworate")
_LFU, _BELADY, _H2O, _STREAMINGLLM, _EMA, _SNAPKV, _QUEST, _PLAIN, _TWORATE = range(9)
_TOP = 65535


class Values(NamedTuple):
    """What a policy's values start from and follow."""

    rank: np.ndarray  #: of each key
    per_access: np.ndarray  #: what the policy learns of each access; `tworate`: its gains
    kept: np.ndarray  #: what idle steps leave of a score, in 1/65536
    fading: np.ndarray  #: what they leave of a value
    #: `ema`: α in 1/256; `snapkv`: steps whose votes count; `tworate`: where in `fading` the curve
    #: of its slow count begins
    constant: int


@njit
def _replay(kind, accesses, pooling, values, missed, victims):
    """Returns how many victims and bypasses there were; ``values.rank`` is changed."""
    steps, queues, key_of, newest_of = accesses
    pools, frames, pages, initial, history = pooling
    rank, per_access, kept, fading, constant = values
    keys = len(rank)
    resident, known = np.zeros(keys, np.bool_), np.zeros(keys, np.bool_)
    touched, last = np.full(keys, -1, np.int64), np.full(keys, -1, np.int64)
    listed, place = np.empty((pools, frames + 1), np.int64), np.empty(keys, np.int64)
    used, voted = np.zeros(pools, np.int64), np.full(pools, -1, np.int64)
    page_of = np.arange(keys) % pages
    votes = np.zeros((constant if kind == _SNAPKV else 1, keys), np.int64)
    slow = np.zeros(keys if kind == _TWORATE else 1)
    for key in range(keys):
        known[key] = page_of[key] < history
        if initial <= page_of[key] < history:
            pool = key // pages if pools > 1 else 0
            resident[key], listed[pool, used[pool]], place[key] = True, key, used[pool]
            used[pool] += 1
    evictions = bypasses = 0
    for index in range(len(steps)):
        step, key = steps[index], key_of[index]
        pool = queues[index] if pools > 1 else 0
        first, end = (pool * pages, (pool + 1) * pages) if pools > 1 else (0, keys)
        if kind == _LFU:
            rank[key] += 1
        elif kind == _BELADY:
            rank[key] = -per_access[index]
        elif kind == _H2O:
            rank[key] += per_access[index]
        elif kind == _EMA:
            score, idle = int(rank[key]) if known[key] else 0, step - last[key] - 1
            if known[key] and idle > 0:
                score = score * kept[idle] >> 16
            rank[key] = score + ((_TOP - score) * constant + 128 >> 8)
        elif kind == _SNAPKV:
            row = step % constant
            if voted[pool] != step:
                voted[pool] = step
                for other in range(first, end):
                    rank[other] -= votes[row, other]
                    votes[row, other] = 0
            votes[row, key] += per_access[index]
            rank[key] += per_access[index]
        elif kind == _QUEST:
            rank[key] = max(
                rank[key] * fading[min(step - last[key], len(fading) - 1)], per_access[index]
            )
        elif kind == _TWORATE:
            age = step - last[key]
            rank[key] = rank[key] * fading[min(age, constant - 1)] + per_access[0]
            slow[key] = slow[key] * fading[min(constant + age, len(fading) - 1)] + per_access[1]
        last[key] = step
        if resident[key]:
            touched[key] = step
            continue
        missed[index] = known[key]
        if used[pool] >= frames:
            newest, victim, lowest = newest_of[index], -1, np.inf
            for i in range(used[pool] if kind != _PLAIN else 0):
                at = listed[pool, i]
                if touched[at] != step and page_of[at] != newest:
                    # The values are written out here: as a function of its own it took most of the
                    # time.
                    value = rank[at]
                    if kind == _EMA:  # whole numbers below 2^32: exact
                        value = -np.floor((_TOP - value) * fading[step - last[at]] / 65536)
                    elif kind == _QUEST:
                        value *= fading[min(step - last[at], len(fading) - 1)]
                    elif kind == _TWORATE:
                        age = step - last[at]
                        value *= fading[min(age, constant - 1)]
                        value += slow[at] * fading[min(constant + age, len(fading) - 1)]
                    elif kind == _SNAPKV:
                        before, after = max(at - 1, 0), min(at + 1, keys - 1)
                        value = (
                            2 * value
                            + (rank[before] if first <= before else 0)
                            + (rank[after] if after < end else 0)
                        )
                    if value < lowest or (value == lowest and at < victim):
                        lowest, victim = value, at
            if victim < 0:
                bypasses += 1
                known[key] |= kind == _PLAIN
                continue
            resident[victim] = False
            used[pool] -= 1
            moved = listed[pool, used[pool]]
            listed[pool, place[victim]], place[moved] = moved, place[victim]
            if len(victims):
                victims[evictions, 0], victims[evictions, 1] = index, victim
            evictions += 1
        resident[key], known[key], touched[key] = True, True, step
        listed[pool, used[pool]], place[key] = key, used[pool]
        used[pool] += 1
    return evictions, bypasses


def run_scored(
    timeline: Timeline,
    policy: str,
    *,
    capacity: int,
    pooled: bool,
    parameters: dict | None = None,
    record: bool = False,
) -> Outcome:
    """Replay under one of :data:`SCORED`."""
    s, set_to = timeline.sequence, arguments(policy, parameters)
    keys, age = s.queues * s.final_pages, np.arange(s.steps + 2)
    rank, constant = np.zeros(keys), 0
    per_access, kept, fading = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    if policy == "belady":
        per_access, rank[:] = timeline.next_use(), -float(1 << 40)
        found, at = np.unique(timeline.keys, return_index=True)
        rank[found] = -s.step[at]
    elif policy == "streamingllm":
        page = np.arange(keys) % s.final_pages
        rank = np.where(page < set_to["sinks"], float(1 << 40), page)
    elif policy == "ema":
        constant = set_to["alpha"]
        rank[:] = arithmetic.initial(constant)
        kept = arithmetic.fold(np.int64(1 << 16), age, *idle_constants(constant))
        fading = arithmetic.decay(age, *recency_constants(set_to["tau"])).astype(float)
    elif policy in ("h2o", "snapkv", "quest"):
        per_access, constant = timeline.mass, set_to.get("window", 0)
        fading = falls(set_to["half"]) if policy == "quest" else fading
    elif policy == "tworate":
        curves = falls(set_to["fast"]), falls(set_to["slow"])
        per_access = np.array([set_to["slow"], set_to["fast"]])
        fading, constant = np.concatenate(curves), len(curves[0])
    more = (Values(rank, per_access, kept, fading, constant),)
    return outcome_of(_replay, timeline, SCORED.index(policy), capacity, pooled, more, record)
