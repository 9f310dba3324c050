# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp` compiled: docs/policy.md in one loop with arithmetic of its own, equal decision for
decision to :mod:`.policies.kelp` and to golden lock-step."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import numpy as np

from kelp_spec import policy as spec

from ..compiled import njit
from .engine import Outcome, Timeline
from .policies.kelp import Constants

__all__ = ["run_kelp"]


_Numbers = namedtuple("_Numbers", [f.name for f in dataclasses.fields(Constants)])
_State = namedtuple(
    "_State", "resident known frequency last counts epochs newest offers fold logs pool"
)
# Numbers of the pool, in `pool`:
USED, REQUESTER, TURN_STEP, TURN_KEY = range(4)
# What a sweep finds, in `found`: kind (−1: no page), value and key of the best page, kind and value
# of the runner-up.
KIND, VALUE, KEY, NEXT_KIND, NEXT_VALUE = range(5)
_TOP = 1 << 40  #: an offer is this minus a value


def _logs(count: int, bits: int) -> np.ndarray:
    """log2 of x < ``count`` with ``bits`` after the point, linear between powers of two; that of 0
    is not used."""
    x = np.maximum(1, np.arange(count))
    whole = np.frexp(x)[1] - 1
    return (whole << bits) + (x << bits >> whole) - (1 << bits)


def _folds(alpha: int, bits: int) -> np.ndarray:
    """2^bits · (1 − α/256)^n for n = 0 … FOLDED, rounded half up, in exact integers."""
    return np.array(
        [
            ((1 << bits + 1) * (256 - alpha) ** n + 256**n) // (2 * 256**n)
            for n in range(spec.FOLDED + 1)
        ],
        np.int64,
    )


@njit
def _count(s, c, at, step):
    halvings = ((step >> c.epoch_shift) - s.epochs[at]) & ((1 << c.epoch_bits) - 1)
    return s.counts[at] >> min(halvings, 63)  # compiled, a shift by 64 is one by 0


@njit
def _value(s, c, pages, queue, page, step):
    key = queue * pages + page
    over = s.pool[TURN_STEP] == step and key < s.pool[TURN_KEY]
    idle = step - s.last[key] - 1 + (over and c.turn) if s.last[key] < step else 0
    counted = _count(s, c, queue * pages + s.newest[queue] - page, step)
    often = s.frequency[key] + c.weight_profile * counted
    often = often * s.fold[min(idle << c.fade_shift, spec.FOLDED)] >> c.frequency_bits
    return (
        (26 << c.log_bits)
        + s.logs[c.once + often]
        - s.logs[4 * (idle + 1) + (c.late if over else 0)]
    )


@njit
def _sweep(s, c, pages, low, high, step, found):
    """Look at the resident pages of queues low … high − 1."""
    found[KIND] = found[NEXT_KIND] = -1
    for queue in range(low, high):
        finished = c.finished and queue < s.pool[TURN_KEY] // pages
        for page in range(s.newest[queue] + 1):
            key = queue * pages + page
            if not s.resident[key]:
                continue
            value = _value(s, c, pages, queue, page, step)
            in_use = s.last[key] == step and not (finished and s.frequency[key])
            kind = 2 if page == s.newest[queue] else 1 if in_use else 0
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


@njit
def _offer(kind, value):
    return 0 if kind < 0 else 1 if kind > 0 else _TOP - value


@njit
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
        other = found[KIND] >= 0
        _sweep(s, c, pages, asks, asks + 1, step, found)
        if other and found[KIND] == 2:  # it keeps what it is about to write
            s.offers[asks] = _offer(found[KIND], found[VALUE])
            _sweep(s, c, pages, swept, swept + 1, step, found)
        else:
            swept = asks
    for _ in range(len(s.offers)):
        if found[KIND] >= 0:
            break
        swept = (swept + 1) % len(s.offers)
        _sweep(s, c, pages, swept, swept + 1, step, found)
    return swept


@njit
def _evict(s, c, pages, step, found):
    """The page that gives way, or −1 where there is none."""
    queue = _queue(s, c, pages, step, found)
    if found[KIND] < 0:
        return -1
    if queue >= 0:
        s.offers[queue] = _offer(found[NEXT_KIND], found[NEXT_VALUE])
    s.resident[found[KEY]] = False
    s.pool[USED] -= 1
    return found[KEY]


@njit
def _learn(s, c, pages, step, queue, page):
    """What an access teaches, before its page has a frame."""
    key = queue * pages + page
    if not s.resident[key]:
        s.pool[REQUESTER] = queue
    if not s.known[key]:
        s.newest[queue], s.frequency[key] = page, 0
        at = queue * pages + page
        s.counts[at] = 0
    else:
        idle = min(max(step - s.last[key], 1) - 1, spec.FOLDED)
        often = s.frequency[key] * s.fold[idle] >> c.frequency_bits
        s.frequency[key] = often + (((1 << c.frequency_bits) - 1 - often) * c.alpha + 128 >> 8)
        at = queue * pages + s.newest[queue] - page
        s.counts[at] = min((1 << c.profile_bits) - 1, _count(s, c, at, step) + 1)
    s.epochs[at] = (step >> c.epoch_shift) & ((1 << c.epoch_bits) - 1)
    s.pool[TURN_STEP], s.pool[TURN_KEY], s.last[key] = step, key, step


@njit
def _replay(accesses, pages, frames, s, c, history, victims):
    """[accesses]: missed; evictions. The first ``history`` accesses write the history, in step
    0."""
    steps, queue_of, page_of = accesses
    pool, missed, found = s.pool, np.zeros(len(steps), np.bool_), np.zeros(5, np.int64)
    evictions = 0
    last_step, left = np.int64(-1), np.int64(-1)
    for index in range(len(steps)):
        step, queue, page = steps[index], queue_of[index], page_of[index]
        key = queue * pages + page
        missed[index] = s.known[key] and not s.resident[key]
        _learn(s, c, pages, step, queue, page)
        if not s.resident[key]:
            if pool[USED] >= frames:
                victims[evictions] = index - history, _evict(s, c, pages, step, found)
                evictions += 1
            s.resident[key] = s.known[key] = True
            pool[USED] += 1
        while frames - pool[USED] < c.reserve:
            victim = _evict(s, c, pages, step, found)
            if victim < 0:
                break
            victims[evictions] = index - history, victim
            evictions += 1
        if step == last_step and queue == left:
            continue
        if left >= 0 and s.resident[left * pages : (left + 1) * pages].any():
            _sweep(s, c, pages, left, left + 1, step, found)
            s.offers[left] = 1 if found[KIND] else _TOP - found[VALUE]
        last_step, left = step, queue
    return missed, evictions


def run_kelp(
    timeline: Timeline,
    *,
    capacity: int,
    constants: Constants = Constants(),
    record: bool = False,
) -> Outcome:
    """Replay under `kelp`, pooled."""
    t, c = timeline.sequence, _Numbers(*dataclasses.astuple(constants))
    queues, pages = t.queues, t.final_pages
    keys, history = queues * pages, t.history_pages * queues

    def zeros(count, kind=np.int64):
        return np.zeros(count, kind)

    counted = min(1 << c.profile_bits, t.steps + 2)  # at most one a step
    often = c.once + (1 << c.frequency_bits) + c.weight_profile * counted
    idle = 4 * (t.steps + 2) + c.late
    state = _State(
        zeros(keys, bool),
        zeros(keys, bool),
        *(zeros(keys) for _ in range(4)),
        np.full(queues, -1),
        zeros(queues),
        _folds(c.alpha, c.frequency_bits),
        _logs(max(often, idle) + 1, c.log_bits),
        zeros(4),
    )
    first = np.arange(history)
    accesses = tuple(
        np.concatenate([a, b]).astype(np.int64)
        for a, b in ((first * 0, t.step + 1), (first % queues, t.queue), (first // queues, t.page))
    )
    victims = np.empty((len(accesses[0]) + keys, 2), np.int64)
    missed, evictions = _replay(accesses, pages, capacity, state, c, history, victims)
    outcome = Outcome(missed[history:])
    if record:
        outcome.victims = [(max(-1, index), key) for index, key in victims[:evictions].tolist()]
    return outcome
