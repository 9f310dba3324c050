# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp` compiled: the rules of :mod:`.engine` and the policy of :mod:`.policies.kelp` in one loop, equal decision for decision."""

from __future__ import annotations

import dataclasses

import numba
import numpy as np

from .engine import PREFETCH_PER_HEAD, Outcome, Timeline
from .policies.kelp import FOLDED, OCTILES, SHADOW_STEPS, TOP, Constants, folds

__all__ = ["run_kelp"]


@numba.njit(cache=True)
def _value(key, over, step, newest, pages, fast, slow, last, profile, profile_step, folded, w):
    """Both opinions of one page."""
    fold_fast, fold_slow, fold_profile, fold_recent = folded[0], folded[1], folded[2], folded[3]
    idle = min(step - last[key] - 1 + over, FOLDED)
    queue, distance = key // pages, newest - key % pages
    a = profile[queue, distance] * fold_profile[min(step - profile_step[queue, distance], FOLDED)] >> 16
    b = profile[queue, distance + 1] * fold_profile[min(step - profile_step[queue, distance + 1], FOLDED)] >> 16
    common = w[0] * (fast[key] * fold_fast[idle] >> 16) + w[1] * (slow[key] * fold_slow[idle] >> 16)
    return common + w[2] * a + w[3] * b >> 4, common + w[4] * a + w[5] * b + w[6] * fold_recent[idle] >> 4


@numba.njit(cache=True)
def _regret(given_by, duel, explore, most, first, second):
    if given_by == 1:
        return min(most, duel + first * (1 if duel <= 0 else explore - 1))
    if given_by == 2:
        return max(-most, duel - second * (1 if duel > 0 else explore - 1))
    return duel


@numba.njit(cache=True)
def _replay(steps, queues, page_of, shape, initial, folded, c, prefetching):
    all_queues, pages, kv_heads, capacity, first_token, page_tokens, history, limit = shape
    alpha_fast, alpha_slow, alpha_profile = c[0], c[1], c[2]
    w = c[4:11]
    near_most, near_least, near_shift, margin_shift, credit_most = c[11], c[12], c[13], c[14], c[15]
    explore, duel_most, first_regret, second_regret = c[16], c[17], c[18], c[19]
    fold_fast, fold_slow, fold_profile = folded[0], folded[1], folded[2]
    count, keys, layers = len(steps), all_queues * pages, all_queues // kv_heads

    resident, known, flying, unused = np.zeros(keys, np.bool_), np.zeros(keys, np.bool_), np.zeros(keys, np.bool_), np.zeros(keys, np.bool_)
    touched = np.full(keys, -1, np.int64)
    listed, place, used = np.empty(capacity + 1, np.int64), np.full(keys, -1, np.int64), 0
    fast, slow, last = np.zeros(keys, np.int64), np.zeros(keys, np.int64), np.full(keys, -1, np.int64)
    profile, profile_step = np.zeros((all_queues, pages + 1), np.int64), np.zeros((all_queues, pages + 1), np.int64)
    marginal, miss_rate, credit, boundary, inside, duel, disputed = 0, 0, 0, 0, 0, 0, 0
    given_by = np.zeros(keys, np.int8)
    ring = np.zeros((steps[-1] + 2) * OCTILES, np.int64)
    for queue in range(all_queues):
        for page in range(history):
            key = queue * pages + page
            known[key] = True
            fast[key], slow[key] = TOP * alpha_fast + 128 >> 8, TOP * alpha_slow + 128 >> 8
            ring[queue * OCTILES // all_queues] += 1
            inside += 1
            while inside > capacity:
                inside -= ring[boundary]
                boundary += 1
        for page in range(initial, history):
            key = queue * pages + page
            resident[key], listed[used], place[key] = True, key, used
            used += 1

    missed, victims = np.zeros(count, np.bool_), np.empty((2 * count, 2), np.int64)
    evictions = bypasses = issued = useful = late = 0
    layer_now, aloft, aloft_count = -1, np.empty(limit + 1, np.int64), 0
    wanted = np.empty(pages * kv_heads, np.int64)
    for index in range(count):
        step, queue = steps[index], queues[index]
        key = queue * pages + page_of[index]
        newest = (first_token + step) // page_tokens
        layer = queue // kv_heads
        want = 0
        if step * layers + layer != layer_now:
            layer_now = step * layers + layer
            for i in range(aloft_count):
                flying[aloft[i]] = False
            aloft_count = 0
            if prefetching:
                wraps = layer + 1 == layers
                first = 0 if wraps else (layer + 1) * kv_heads * pages
                for other in range(first, first + kv_heads * pages):
                    if known[other] and not resident[other]:
                        va, vb = _value(other, int(wraps), step, newest, pages, fast, slow, last, profile, profile_step, folded, w)
                        if (va if duel <= 0 else vb) >= marginal << margin_shift:
                            wanted[want] = other
                            want += 1
        # The prefetches of the layer, then the access itself, each taking a frame by the same choice of victim.
        for turn in range(want + 1):
            demand = turn == want
            if demand:
                if known[key]:
                    at = (last[key] + 1) * OCTILES + queue * OCTILES // all_queues
                    if step - last[key] < SHADOW_STEPS and at < boundary - 1:
                        credit = min(credit_most, credit + 1)
                    if step - last[key] < SHADOW_STEPS or at >= boundary:
                        ring[at] -= 1
                    if at >= boundary:
                        inside -= 1
                ring[(step + 1) * OCTILES + queue * OCTILES // all_queues] += 1
                inside += 1
                while inside > capacity:
                    inside -= ring[boundary]
                    boundary += 1
                allocation = not known[key]
                miss = known[key] and (not resident[key] or flying[key])
                missed[index] = miss
                if miss and not flying[key]:
                    credit = max(-credit_most, credit - 1)
                    duel = _regret(given_by[key], duel, explore, duel_most, first_regret, second_regret)
                if unused[key]:
                    unused[key] = False
                    useful += 1
                    late += int(flying[key])
                target = key
            else:
                if credit <= 0 or aloft_count == limit:
                    continue
                target = wanted[turn]
            if not resident[target]:
                if used >= capacity:
                    near = max(near_least, near_most - (miss_rate >> near_shift))
                    lowest_a, victim_a, lowest_b, victim_b = np.int64(1) << 60, np.int64(-1), np.int64(1) << 60, np.int64(-1)
                    for i in range(used):
                        other = listed[i]
                        if touched[other] == step or other % pages == newest or flying[other]:
                            continue
                        over = other < key
                        va, vb = _value(other, int(over), step, newest, pages, fast, slow, last, profile, profile_step, folded, w)
                        if over:
                            va, vb = va * near >> 8, vb * near >> 8
                        if va < lowest_a or (va == lowest_a and other < victim_a):
                            lowest_a, victim_a = va, other
                        if vb < lowest_b or (vb == lowest_b and other < victim_b):
                            lowest_b, victim_b = vb, other
                    second = duel > 0
                    tag = 0
                    if victim_a != victim_b:
                        disputed += 1
                        if disputed % explore == 0:
                            second = not second
                        tag = 2 if second else 1
                    lowest, victim = (lowest_b, victim_b) if second else (lowest_a, victim_a)
                    if victim < 0:
                        if demand:
                            bypasses += 1
                            continue
                        continue
                    if demand:
                        marginal += lowest - marginal >> 3
                    resident[victim], unused[victim] = False, False
                    given_by[victim] = tag
                    used -= 1
                    listed[place[victim]] = listed[used]
                    place[listed[used]] = place[victim]
                    victims[evictions, 0], victims[evictions, 1] = index, victim
                    evictions += 1
                resident[target], listed[used], place[target] = True, target, used
                used += 1
                if not demand:
                    flying[target] = unused[target] = True
                    aloft[aloft_count] = target
                    aloft_count += 1
                    issued += 1
                    credit -= 1
                    duel = _regret(given_by[target], duel, explore, duel_most, first_regret, second_regret)
                    continue
                known[key] = True
            if demand:
                touched[key] = step
                miss_rate += ((TOP if miss else 0) - miss_rate) >> 10
                if allocation:
                    fast[key] = slow[key] = 0
                else:
                    idle = min(step - last[key] - 1, FOLDED)
                    if idle > 0:
                        fast[key] = fast[key] * fold_fast[idle] >> 16
                        slow[key] = slow[key] * fold_slow[idle] >> 16
                    d = newest - page_of[index]
                    kept = profile[queue, d] * fold_profile[min(step - profile_step[queue, d], FOLDED)] >> 16
                    profile[queue, d], profile_step[queue, d] = min(TOP, kept + alpha_profile * 256), step
                fast[key] += (TOP - fast[key]) * alpha_fast + 128 >> 8
                slow[key] += (TOP - slow[key]) * alpha_slow + 128 >> 8
                last[key] = step
    return missed, victims[:evictions], bypasses, issued, useful, late


def run_kelp(timeline: Timeline, *, capacity: int, constants: Constants = Constants(), prefetch: bool = True, record: bool = False) -> Outcome:
    """Replay under `kelp`, pooled."""
    s = timeline.sequence
    shape = (s.queues, s.final_pages, s.kv_heads, capacity, s.first_token, s.page_tokens, s.history_pages, PREFETCH_PER_HEAD * s.kv_heads)
    numbers = np.array(dataclasses.astuple(constants), np.int64)
    folded = np.stack([folds(a) for a in numbers[:4].tolist()]).astype(np.int64)
    columns = (a.astype(np.int64) for a in (s.step, s.queue, s.page))
    missed, victims, *counts = _replay(*columns, shape, s.initial_pages(capacity).start, folded, numbers, prefetch)
    outcome = Outcome(missed, *counts)
    if record:
        outcome.victims = [tuple(v) for v in victims.tolist()]
    return outcome
