# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One pool of frames with a clock, behind a device that chooses: what is resident, what the tier is
bringing, and what gives way: by LRU, by policy `kelp` (docs/policy.md, whose victim is the page of
least value of all here) or by policy 2 (docs/select_tables.md).

Integers throughout; a key is queue · pages + page. Times are cycles of 1 ns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kelp_golden.kelp_policy import fold_table
from kelp_spec import policy as p1
from kelp_spec import policy2 as p2

from ..compiled import njit
from .timing import RTL

__all__ = [
    "KELP",
    "LRU",
    "TABLE",
    "Pool",
    "Turn",
    "ahead",
    "demand",
    "early",
    "kelp_value",
    "land",
    "new_pool",
    "opened",
    "turn_over",
]

ABSENT, RESIDENT, FLYING = 0, 1, 2
#: What a pool keeps by.
LRU, TABLE, KELP = 0, 1, 2
_LATENCY = RTL.tier_latency
_FOLDS = np.array(fold_table(p1.ALPHA, p1.FREQUENCY_BITS))
# Numbers of the pool, in `at`:
USED, HEAD, TAIL, TIER, CREDIT, SHADOW, READS, EARLY, GUESSED, GAP = range(10)


class Pool(NamedTuple):
    state: np.ndarray  #: [keys]
    value: np.ndarray  #: of every page: what the last guess says that it is worth; 0: none
    post: np.ndarray  #: how likely it is read in its next turn, 16 bits, before a guess
    fast: np.ndarray
    slow: np.ndarray
    last: np.ndarray  #: the step in which it was last wanted; −1: never
    seen: np.ndarray  #: the step to which fast and slow are folded
    profile: np.ndarray  #: [queues, pages]: times that the page at a distance was wanted, fading
    before: np.ndarray  #: the entry of V that the page was in after its last turn; −1: none
    guessed: np.ndarray  #: the entry of T that the page was in when its turn began; −1: none
    v: np.ndarray  #: [queues, V entries]
    t: np.ndarray  #: [queues, T entries]
    shadow: np.ndarray  #: [keys] bool: resident under LRU over one pool
    flying: np.ndarray  #: keys that the tier brings, a ring in order of landing
    lands: np.ndarray  #: when each does
    held: np.ndarray  #: [keys] bool: pages that may not go
    often: np.ndarray  #: policy `kelp`: how often it was read, FREQUENCY_BITS
    touched: np.ndarray  #: the step in which it was last read or written
    newest: np.ndarray  #: [queues]: the page that was written for the first time last
    counts: np.ndarray  #: [queues, pages]: its profile, and when an entry was last counted
    epochs: np.ndarray
    at: np.ndarray  #: numbers, see above


class Turn(NamedTuple):
    """When something is asked of a pool, and what the pool is."""

    pages: int  #: of a queue
    frames: int
    heads: int  #: query heads of a queue
    slot: int  #: cycles that the tier takes for a page
    policy: int  #: LRU, TABLE or KELP
    #: of each query head's 65536, from which on a page that is wanted is fetched; LRU fetches all
    fetch: int
    newest: int  #: page
    queue: int
    step: int
    now: int  #: cycles


def new_pool(queues: int, pages: int, frames: int) -> Pool:
    keys = queues * pages
    v, t = p2.start_of_v(), p2.start_of_t()

    def zeros(count=keys, kind=np.int64):
        return np.zeros(count, kind)

    return Pool(
        state=zeros(kind=np.uint8),
        value=zeros(),
        post=zeros(),
        fast=zeros(),
        slow=zeros(),
        last=np.full(keys, -1),
        seen=zeros(),
        profile=np.zeros((queues, pages), np.int64),
        before=np.full(keys, -1),
        guessed=np.full(keys, -1),
        v=np.tile(np.array(v, np.int64), (queues, 1)),
        t=np.tile(np.array(t, np.int64), (queues, 1)),
        shadow=zeros(kind=np.bool_),
        flying=zeros(keys + 1),
        lands=zeros(keys + 1),
        held=zeros(kind=np.bool_),
        often=zeros(),
        touched=zeros(),
        newest=np.zeros(queues, np.int64),
        counts=np.zeros((queues, pages), np.int64),
        epochs=np.zeros((queues, pages), np.int64),
        at=zeros(10),
    )


@njit
def land(s, now):
    """What the tier has brought by now is resident."""
    while s.at[HEAD] != s.at[TAIL] and s.lands[s.at[HEAD]] <= now:
        s.state[s.flying[s.at[HEAD]]] = RESIDENT
        s.at[HEAD] = (s.at[HEAD] + 1) % len(s.flying)


@njit
def _count(s, queue, distance, step):
    """What a profile has counted, halved once in each epoch since."""
    passed = (step >> p1.EPOCH_SHIFT) - s.epochs[queue, distance]
    return s.counts[queue, distance] >> (passed & (1 << p1.EPOCH_BITS) - 1)


@njit
def _counted(s, queue, distance, step, count):
    s.counts[queue, distance] = count
    s.epochs[queue, distance] = step >> p1.EPOCH_SHIFT


@njit
def _log(x):
    """log2 of x ≥ 1, LOG_BITS after the point, linear between powers of two."""
    whole = _log2(x)
    return (whole << p1.LOG_BITS) + (x << p1.LOG_BITS >> whole) - (1 << p1.LOG_BITS)


@njit
def kelp_value(s, turn, queue, page):
    """What policy `kelp` says of a page while the turn of ``turn.queue`` is under way."""
    last = s.touched[queue * turn.pages + page]
    over = queue < turn.queue
    idle = turn.step - last - 1 + over if last < turn.step else 0
    often = s.often[queue * turn.pages + page]
    often += _count(s, queue, max(0, s.newest[queue] - page), turn.step) << p1.PROFILE_SHIFT
    often = often * _FOLDS[min(idle << p1.FADE_SHIFT, p1.FOLDED)] >> p1.FREQUENCY_BITS
    return p1.LOG_MOST + _log(p1.ONCE + often) - _log(4 * (idle + 1) + (p1.LATE if over else 0))


@njit
def _evict(s, turn):
    """Of all pages that may go the one of least value does; False where there is none. Of LRU the
    value is the step of the last read."""
    found, least = -1, np.int64(1) << 60
    for queue in range(len(s.v)):
        for page in range(1, turn.newest):  # every choice takes the first and the newest
            key = queue * turn.pages + page
            if s.state[key] != RESIDENT or s.held[key]:
                continue
            value = s.last[key]
            if turn.policy != LRU:
                value = kelp_value(s, turn, queue, page)
            if turn.policy == TABLE:
                value = max(value, s.value[key])
            if value < least:
                found, least = key, value
    if found >= 0:
        s.state[found] = ABSENT
        s.at[USED] -= 1
    return found >= 0


@njit
def _fetch(s, turn, key):
    """Asks the tier for a page, in the frame that is free."""
    start = max(turn.now, s.at[TIER])
    s.at[TIER] = start + turn.slot
    s.state[key] = FLYING
    s.flying[s.at[TAIL]] = key
    s.lands[s.at[TAIL]] = s.at[TIER] + _LATENCY
    s.at[TAIL] = (s.at[TAIL] + 1) % len(s.flying)
    s.at[USED] += 1
    s.at[READS] += 1
    s.at[CREDIT] -= p2.COST


@njit
def _busy(s, turn):
    """The tier has enough to do: what is asked for now would land late, in frames that are needed
    now."""
    flying = (s.at[TAIL] - s.at[HEAD]) % len(s.flying)
    late = s.at[TIER] - turn.now > p2.BACKLOG * turn.slot
    return late or flying * p2.FLYING_SHARE >= turn.frames


@njit
def demand(s, turn, queue, wanted, sums, must):
    """Pages of a queue that its choice wanted and did not find: fetched for later, or, where the
    layer waits (``must``), for now. ``sums`` are their masses over the heads. Returns when the last
    of them lands."""
    latest = turn.now
    for page in range(turn.newest):
        key = queue * turn.pages + page
        if not wanted[page] or s.state[key] == RESIDENT:
            continue
        if turn.policy and not must and sums[page] < turn.fetch * turn.heads:
            continue
        if s.state[key] == ABSENT:
            if not must and _busy(s, turn):
                continue
            if s.at[USED] >= turn.frames and not _evict(s, turn):
                continue
            _fetch(s, turn, key)
        if must:
            at = s.at[HEAD]
            while s.flying[at] != key:
                at = (at + 1) % len(s.flying)
            latest = max(latest, s.lands[at])
    return latest


@njit
def _log2(x):
    """⌊log2 x⌋ of x ≥ 1."""
    found = 0
    while x > 1:
        x >>= 1
        found += 1
    return found


@njit
def _bucket(v, top, n):
    """0 for 0; the highest bucket from the power of two `top` on, one less for each halving."""
    return 0 if v == 0 else min(max(0, n - 1 - (top - _log2(v))), n - 1)


@njit
def _guess_place(post, mass):
    """The entry of T for a value (16 bits) and a guessed mass (16 bits), in octaves."""
    i1 = min(max(_log2(max(post, 1)) - 16 + p2.T_SIDE, 0), p2.T_SIDE - 1)
    i2 = min(max(_log2(max(mass, 1)) - 16 + p2.T_SIDE, 0), p2.T_SIDE - 1)
    return i1 * p2.T_SIDE + i2


@njit
def _read(s, turn, queue, page):
    """Policy `kelp` learns that a page was read."""
    key, most = queue * turn.pages + page, (1 << p1.PROFILE_BITS) - 1
    distance = max(0, s.newest[queue] - page)
    idle = min(max(turn.step - s.touched[key], 1) - 1, p1.FOLDED)
    s.touched[key] = turn.step
    often = s.often[key] * _FOLDS[idle] >> p1.FREQUENCY_BITS
    s.often[key] = often + (((1 << p1.FREQUENCY_BITS) - 1 - often) * p1.ALPHA + 128 >> 8)
    count = _count(s, queue, distance, turn.step) + 1
    _counted(s, queue, distance, turn.step, min(most, count))


@njit
def turn_over(s, turn, queue, read):
    """The turn of a queue in this step is over: ``read`` are the pages that its choice took or
    wanted. The tables learn, what a guess said counts no more, and LRU's shadow counts."""
    pages, newest, step = turn.pages, turn.newest, turn.step
    row = queue * pages
    if step & p2.PROFILE_STEPS - 1 == 0:
        for distance in range(pages):
            s.profile[queue, distance] >>= 1
    for page in range(newest + 1):
        key = row + page
        idle = min(step - s.seen[key], p2.FOLDED)
        s.seen[key] = step
        s.fast[key] = s.fast[key] * p2.FAST_FOLD[idle] >> 16
        s.slow[key] = s.slow[key] * p2.SLOW_FOLD[idle] >> 16
        if read[page]:
            s.fast[key] += (4095 - s.fast[key]) * p2.FAST + 128 >> 8
            s.slow[key] += (4095 - s.slow[key]) * p2.SLOW + 128 >> 8
            s.profile[queue, newest - page] = min(127, s.profile[queue, newest - page] + 1)
            if not s.shadow[key]:
                s.at[CREDIT] = min(s.at[CREDIT] + p2.EARNED, p2.CREDIT_MOST)
                s.shadow[key] = True
                s.at[SHADOW] += 1
            if s.state[key] == RESIDENT:
                _read(s, turn, queue, page)
            s.last[key] = step
    while s.at[SHADOW] > turn.frames:
        oldest, when = -1, np.int64(1) << 60
        for key in range(len(s.last)):
            if not s.shadow[key]:
                continue
            # A page of this step stays; where there are no others, the latest finds no frame.
            if s.last[key] < min(when, step):
                oldest, when = key, s.last[key]
            elif s.last[key] == step and (oldest < 0 or s.last[oldest] == step):
                oldest = key
        s.shadow[oldest] = False
        s.at[SHADOW] -= 1
    for page in range(newest + 1):
        key = row + page
        place = (
            _bucket(s.fast[key], 8, 4) * 64
            + _bucket(s.slow[key], 11, 8) * 8
            + _bucket(s.profile[queue, newest - page], 6, 8)
        )
        if page < newest:
            at = s.before[key]
            if at >= 0:
                aim = p2.ONE if read[page] else s.v[queue, place] * p2.LATER_READ >> 8
                s.v[queue, at] += aim - s.v[queue, at] >> p2.V_SHIFT
            if s.guessed[key] >= 0:
                at, aim = s.guessed[key], p2.ONE if read[page] else 0
                s.t[queue, at] += aim - s.t[queue, at] >> p2.T_SHIFT
        s.guessed[key] = -1
        s.before[key] = place
        s.post[key] = s.v[queue, place]
        s.value[key] = 0


@njit
def _guessed(s, turn):
    if turn.now != s.at[GUESSED]:
        s.at[GAP], s.at[GUESSED] = turn.now - s.at[GUESSED], turn.now


@njit
def ahead(s, turn, queue, wanted, sums):
    """A guessed query without tables: what it wants is fetched as what a choice wants, where it can
    land before its turn."""
    _guessed(s, turn)
    before = s.at[READS]
    if s.at[GAP] >= _LATENCY:
        demand(s, turn, queue, wanted, sums, False)
    s.at[EARLY] += s.at[READS] - before


@njit
def early(s, turn, queue, mass, scored):
    """A guessed query of a queue whose turn is next: ``mass`` [pages], 16 bits, of the pages
    ``scored``. Values are renewed, and the pages most likely to be read are fetched, where they can
    land before that turn."""
    row, newest = queue * turn.pages, turn.newest
    _guessed(s, turn)
    for page in range(newest):
        key = row + page
        at = _guess_place(s.post[key], mass[page] if scored[page] else 0)
        s.guessed[key] = at
        often = s.t[queue, at] >> p2.GUESS_SHIFT
        s.value[key] = p1.LOG_MOST - _log(4) + _log(often) if often else 0
    for _ in range(p2.EARLY_MOST):
        if s.at[CREDIT] <= 0 or s.at[GAP] < _LATENCY or _busy(s, turn):
            break
        threshold = p2.THRESHOLD - s.at[CREDIT] * p2.THRESHOLD_CREDIT // p2.COST
        best, likely = -1, np.int64(threshold)
        for page in range(newest):
            key = row + page
            if s.state[key] == ABSENT and s.t[queue, s.guessed[key]] > likely:
                best, likely = key, s.t[queue, s.guessed[key]]
        if best < 0:
            break
        if s.at[USED] >= turn.frames and not _evict(s, turn):
            break
        _fetch(s, turn, best)
        s.at[EARLY] += 1


@njit
def opened(s, turn, queue):
    """The newest page, written for the first time, takes a frame."""
    key, step = queue * turn.pages + turn.newest, turn.step
    if s.at[USED] >= turn.frames and not _evict(s, turn):
        return
    s.state[key] = RESIDENT
    s.at[USED] += 1
    s.last[key] = s.touched[key] = step
    s.seen[key] = step
    s.often[key], s.newest[queue] = 0, turn.newest
    _counted(s, queue, turn.newest, step, 0)
    if not s.shadow[key]:
        s.shadow[key] = True
        s.at[SHADOW] += 1
