# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp` compiled: docs/policy.md in one loop with arithmetic of its own, equal decision for
decision to :mod:`.policies.kelp` and to golden lock-step."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import numba
import numpy as np

from kelp_spec import policy as spec

from .engine import Outcome, Timeline
from .policies.kelp import LOG_BITS, LOG_TOP, Constants

__all__ = ["run_kelp"]


_Numbers = namedtuple("_Numbers", [f.name for f in dataclasses.fields(Constants)])
_State = namedtuple(
    "_State",
    "resident known unused fast slow last given_by counts epochs newest offers ring fold_fast "
    + "fold_slow pool",
)
# Numbers of the pool, in `pool`:
(
    USED,
    MISS_RATE,
    MARGINAL,
    CREDIT,
    DUEL,
    DISPUTED,
    REQUESTER,
    TURN_STEP,
    TURN_KEY,
    BOUNDARY,
    INSIDE,
    SHADOW_NOW,
    SWEPT,
) = range(13)
# What a sweep finds, in `found`: kind (−1: no page) and value of the best page in the opinion
# followed, its key, the runner-up's kind and value, the best ordinary page in the other opinion.
KIND, VALUE, KEY, NEXT_KIND, NEXT_VALUE, OTHER_VALUE, OTHER_KEY = range(7)
_TOP = 1 << 40  #: an offer is this minus a value


def _logs(count: int) -> np.ndarray:
    """log2 of x < ``count`` with LOG_BITS after the point, linear between powers of two; that of 0
    is not used."""
    x = np.maximum(1, np.arange(count))
    whole = np.frexp(x)[1] - 1
    return (whole << LOG_BITS) + (x << LOG_BITS >> whole) - (1 << LOG_BITS)


_LOGS = _logs(1 << 16)  #: of frequencies and of idle steps, both less


def _folds(alpha: int, bits: int) -> np.ndarray:
    """2^bits · (1 − α/256)^n for n = 0 … FOLDED, rounded half up, in exact integers."""
    return np.array(
        [
            ((1 << bits + 1) * (256 - alpha) ** n + 256**n) // (2 * 256**n)
            for n in range(spec.FOLDED + 1)
        ],
        np.int64,
    )


@numba.njit(cache=True)
def _count(s, c, at, step):
    return s.counts[at] >> (((step >> c.epoch_shift) - s.epochs[at]) & ((1 << c.epoch_bits) - 1))


@numba.njit(cache=True)
def _rate(s, c, pages, key, step):
    """What ``hyperbolic`` says a page is worth."""
    over = s.pool[TURN_STEP] == step and key < s.pool[TURN_KEY]
    idle = step - s.last[key] - 1 + over if s.last[key] < step else 0
    queue, page = key // pages, key % pages
    counted = _count(s, c, queue * (pages + 1) + s.newest[queue] - page, step)
    often = s.slow[key] + c.weight_profile * counted
    often = often * s.fold_slow[min(idle, spec.FOLDED)] >> c.slow_bits
    return (
        LOG_TOP
        + _LOGS[min((1 << c.once) + often, len(_LOGS) - 1)]
        - _LOGS[min(4 * (idle + 1) + (c.late if over else 0), len(_LOGS) - 1)]
    )


@numba.njit(cache=True)
def _values(s, c, pages, key, step):
    """First and second opinion of a page, before the factor, and whether its turn in this step is
    over."""
    if c.once:
        rate = _rate(s, c, pages, key, step)
        return rate, rate, False
    over = s.pool[TURN_STEP] == step and key < s.pool[TURN_KEY]
    idle = min(max(step - s.last[key], 1) - 1 + (over and c.turn), spec.FOLDED)
    common = c.weight_fast * (s.fast[key] * s.fold_fast[idle] >> c.fast_bits) + c.weight_slow * (
        s.slow[key] * s.fold_slow[idle] >> c.slow_bits
    )
    queue, page = key // pages, key % pages
    at = queue * (pages + 1) + s.newest[queue] - page
    first = common + c.weight_profile * _count(s, c, at, step)
    if c.weight_next:
        first += c.weight_next * _count(s, c, at + 1, step)
    return first, common, over


@numba.njit(cache=True)
def _sweep(s, c, pages, low, high, step, found):
    """Look at the resident pages of queues low … high − 1."""
    near = max(c.near_least, c.near_most - (s.pool[MISS_RATE] >> c.near_shift))
    s.pool[SWEPT] += 1
    found[KIND] = found[NEXT_KIND] = found[OTHER_KEY] = -1
    for queue in range(low, high):
        for key in range(queue * pages, queue * pages + s.newest[queue] + 1):
            if not s.resident[key]:
                continue
            first, second, over = _values(s, c, pages, key, step)
            if over:
                first, second = first * near >> 8, second * near >> 8
            idle_first = s.last[key] & ((1 << c.tie_bits) - 1)
            first, second = first << c.tie_bits | idle_first, second << c.tie_bits | idle_first
            value, other = (first, second) if s.pool[DUEL] <= 0 else (second, first)
            in_use = s.last[key] == step and (not c.finished or s.pool[TURN_KEY] // pages <= queue)
            kind = 2 if key == queue * pages + s.newest[queue] else 1 if in_use else 0
            if (
                found[KIND] < 0
                or kind < found[KIND]
                or (kind == found[KIND] and value < found[VALUE])
            ):
                found[NEXT_KIND], found[NEXT_VALUE] = found[KIND], found[VALUE]
                found[KIND], found[VALUE], found[KEY] = kind, value, key
            elif (
                found[NEXT_KIND] < 0
                or kind < found[NEXT_KIND]
                or (kind == found[NEXT_KIND] and value < found[NEXT_VALUE])
            ):
                found[NEXT_KIND], found[NEXT_VALUE] = kind, value
            if kind == 0 and (found[OTHER_KEY] < 0 or other < found[OTHER_VALUE]):
                found[OTHER_VALUE], found[OTHER_KEY] = other, key


@numba.njit(cache=True)
def _offer(kind, value):
    return 0 if kind < 0 else 1 if kind > 0 else _TOP - value


@numba.njit(cache=True)
def _queue(s, c, pages, step, found):
    """The queue that gives; it has been swept. -1 after a sweep of the whole pool, where the
    constants ask for that."""
    if not c.sweeps:
        _sweep(s, c, pages, 0, len(s.offers), step, found)
        return -1
    queue, worthy = np.argmax(s.offers), 0
    if not s.offers[queue]:
        queue = s.pool[REQUESTER]
    swept = queue
    for _ in range(c.sweeps_most):
        swept = queue
        _sweep(s, c, pages, swept, swept + 1, step, found)
        s.offers[swept] = _offer(found[KIND], found[VALUE])
        worthy += found[KIND] == 0
        queue = np.argmax(s.offers)
        if worthy == c.sweeps or queue == swept or s.offers[queue] <= 1:
            break
    asks = s.pool[REQUESTER]
    if found[KIND] != 0 and asks != swept and s.resident[asks * pages : (asks + 1) * pages].any():
        _sweep(s, c, pages, asks, asks + 1, step, found)
        swept = asks
    for _ in range(len(s.offers)):
        if found[KIND] >= 0:
            break
        swept = (swept + 1) % len(s.offers)
        _sweep(s, c, pages, swept, swept + 1, step, found)
    return swept


@numba.njit(cache=True)
def _evict(s, c, pages, step, found):
    """The page that gives way, or −1 where there is none."""
    pool = s.pool
    queue = _queue(s, c, pages, step, found)
    if found[KIND] < 0:
        return -1
    key, value, kind, left, tag = found[KEY], found[VALUE], found[NEXT_KIND], found[NEXT_VALUE], 0
    if found[KIND] == 0:
        if c.explore and found[OTHER_KEY] != key:
            pool[DISPUTED] = (pool[DISPUTED] + 1) % c.explore
            tag = 2 if pool[DUEL] > 0 else 1
            if not pool[DISPUTED]:
                tag, kind, left = 3 - tag, 0, value
                key, value = found[OTHER_KEY], found[OTHER_VALUE]
        pool[MARGINAL] += value - pool[MARGINAL] >> c.marginal_shift
    if queue >= 0:
        s.offers[queue] = _offer(kind, left)
    s.resident[key] = s.unused[key] = False
    s.given_by[key] = tag
    pool[USED] -= 1
    return key


@numba.njit(cache=True)
def _read(s, c, given_by):
    """A page is read from flash."""
    pool = s.pool
    pool[CREDIT] = max(-c.credit_most, pool[CREDIT] - 1)
    if given_by == 1:
        pool[DUEL] = min(
            c.duel_most, pool[DUEL] + c.first_regret * (1 if pool[DUEL] <= 0 else c.explore - 1)
        )
    elif given_by == 2:
        pool[DUEL] = max(
            -c.duel_most, pool[DUEL] - c.second_regret * (1 if pool[DUEL] > 0 else c.explore - 1)
        )


@numba.njit(cache=True)
def _shadow(s, c, step, last, octile, frames):
    """Whether LRU over the whole pool would miss a page whose last access was in step ``last``; −1
    for a new one."""
    pool, ring, missed = s.pool, s.ring, False
    if step - pool[SHADOW_NOW] >= spec.SHADOW_STEPS:
        ring[:] = 0
        pool[INSIDE], pool[BOUNDARY], pool[SHADOW_NOW] = 0, step << spec.OCTILE_BITS, step
    while pool[SHADOW_NOW] < step:
        pool[SHADOW_NOW] += 1
        for part in range(1 << spec.OCTILE_BITS):
            old = (pool[SHADOW_NOW] - spec.SHADOW_STEPS << spec.OCTILE_BITS) + part
            if pool[BOUNDARY] <= old:
                pool[INSIDE] -= ring[old % len(ring)]
                pool[BOUNDARY] = old + 1
            ring[old % len(ring)] = 0
    if last >= 0 and step - last < spec.SHADOW_STEPS:
        at = (last << spec.OCTILE_BITS) + octile
        missed = at + 1 < pool[BOUNDARY]
        if ring[at % len(ring)]:
            ring[at % len(ring)] -= 1
            pool[INSIDE] -= at >= pool[BOUNDARY]
    at = (step << spec.OCTILE_BITS) + octile
    ring[at % len(ring)] += 1
    pool[INSIDE] += at >= pool[BOUNDARY]
    while pool[INSIDE] > frames:
        pool[INSIDE] -= ring[pool[BOUNDARY] % len(ring)]
        pool[BOUNDARY] += 1
    return missed


@numba.njit(cache=True)
def _learn(s, c, shape, step, queue, key, missed):
    """What an access teaches, before its page has a frame."""
    queues, pages, _, frames = shape
    pool, new, page = s.pool, not s.known[key], key % pages
    if not s.resident[key]:
        pool[REQUESTER] = queue
    last = -1 if new else s.last[key]
    if new:
        s.newest[queue] = page
        s.fast[key] = s.slow[key] = 0
        at = queue * (pages + 1) + page
        s.counts[at] = 0
    else:
        idle = min(max(step - last, 1) - 1, spec.FOLDED)
        s.fast[key] = s.fast[key] * s.fold_fast[idle] >> c.fast_bits
        s.slow[key] = s.slow[key] * s.fold_slow[idle] >> c.slow_bits
        at = queue * (pages + 1) + s.newest[queue] - page
        s.counts[at] = min((1 << c.profile_bits) - 1, _count(s, c, at, step) + 1)
    s.epochs[at] = (step >> c.epoch_shift) & ((1 << c.epoch_bits) - 1)
    s.fast[key] += ((1 << c.fast_bits) - 1 - s.fast[key]) * c.alpha_fast + 128 >> 8
    if not (new and c.once):
        s.slow[key] += ((1 << c.slow_bits) - 1 - s.slow[key]) * c.alpha_slow + 128 >> 8
    pool[TURN_STEP], pool[TURN_KEY], s.last[key] = step, key, step
    groups = 0
    while 1 << groups + spec.OCTILE_BITS < queues:
        groups += 1
    if _shadow(s, c, step, last, queue >> groups, frames):
        pool[CREDIT] = min(c.credit_most, pool[CREDIT] + 1)
    if missed:
        _read(s, c, s.given_by[key])
    pool[MISS_RATE] += ((65535 if missed else 0) - pool[MISS_RATE]) >> c.miss_rate_shift


@numba.njit(cache=True)
def _replay(accesses, shape, s, c, prefetch, history, victims):
    """[accesses]: missed; evictions, pages prefetched, those of use. The first ``history`` accesses
    write the history, in step 0."""
    steps, queue_of, page_of = accesses
    queues, pages, kv_heads, frames = shape
    pool, missed, found = s.pool, np.zeros(len(steps), np.bool_), np.zeros(7, np.int64)
    evictions = issued = useful = 0
    turn, left_behind = np.int64(-1), np.int64(-1)
    wanted, floor = np.empty(c.wanted, np.int64), 0
    for index in range(len(steps)):
        step, queue = steps[index], queue_of[index]
        key = queue * pages + page_of[index]
        missed[index] = s.known[key] and not s.resident[key]
        _learn(s, c, shape, step, queue, key, missed[index])
        useful += s.unused[key]
        s.unused[key] = False
        begins = step * queues + queue != turn
        # The access itself, then what is wanted ahead: each takes a frame, and pages give way until
        # the reserve is free again.
        target, want, at = key, 0, -1
        while True:
            if not s.resident[target]:
                if pool[USED] >= frames:
                    victims[evictions] = index - history, _evict(s, c, pages, step, found)
                    evictions += 1
                s.resident[target] = s.known[target] = True
                pool[USED] += 1
            while frames - pool[USED] < c.reserve:
                victim = _evict(s, c, pages, step, found)
                if victim < 0:
                    break
                victims[evictions] = index - history, victim
                evictions += 1
            if at < 0:
                if not begins:
                    break
                if (
                    left_behind >= 0
                    and s.resident[left_behind * pages : (left_behind + 1) * pages].any()
                ):
                    _sweep(s, c, pages, left_behind, left_behind + 1, step, found)
                    s.offers[left_behind] = 1 if found[KIND] == 2 else _TOP - found[VALUE]
                turn, left_behind = step * queues + queue, queue
                following = (queue + kv_heads) % queues
                if not prefetch or following == queue or pool[CREDIT] <= 0:
                    break
                floor = (pool[MARGINAL] >> c.tie_bits) << c.margin_shift
                for other in range(following * pages, following * pages + s.newest[following] + 1):
                    if not s.resident[other] and want < c.wanted:
                        first, second, _ = _values(s, c, pages, other, step)
                        if (first if pool[DUEL] <= 0 else second) >= floor:
                            wanted[want] = other
                            want += 1
            at += 1
            if at == want or pool[CREDIT] <= 0:
                break
            target = wanted[at]
            s.unused[target] = True
            issued += 1
            _read(s, c, s.given_by[target])
    return missed, evictions, issued, useful


def run_kelp(
    timeline: Timeline,
    *,
    capacity: int,
    constants: Constants = Constants(),
    prefetch: bool = True,
    record: bool = False,
) -> Outcome:
    """Replay under `kelp`, pooled."""
    t, c = timeline.sequence, _Numbers(*dataclasses.astuple(constants))
    queues, pages = t.queues, t.final_pages
    keys, history = queues * pages, t.history_pages * queues

    def zeros(count, kind=np.int64):
        return np.zeros(count, kind)

    profile = queues * (pages + 1)
    state = _State(
        *(zeros(keys, bool) for _ in range(3)),
        *(zeros(keys) for _ in range(4)),
        zeros(profile),
        zeros(profile),
        np.full(queues, -1),
        zeros(queues),
        zeros(spec.SHADOW_STEPS << spec.OCTILE_BITS),
        _folds(c.alpha_fast, c.fast_bits),
        _folds(c.alpha_slow, c.slow_bits),
        zeros(SWEPT + 1),
    )
    first = np.arange(history)
    accesses = tuple(
        np.concatenate([a, b]).astype(np.int64)
        for a, b in ((first * 0, t.step + 1), (first % queues, t.queue), (first // queues, t.page))
    )
    shape = queues, pages, t.kv_heads, capacity
    victims = np.empty((2 * len(accesses[0]) + 2 * keys, 2), np.int64)
    missed, evictions, issued, useful = _replay(
        accesses, shape, state, c, prefetch, history, victims
    )
    outcome = Outcome(missed[history:], 0, issued, useful)
    if record:
        outcome.victims = [(max(-1, index), key) for index, key in victims[:evictions].tolist()]
    return outcome
