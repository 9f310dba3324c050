# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp` as the device does it (docs/policy.md): two frequencies and a profile over distance, two
opinions, one pool, prefetch out of what LRU would have read.

The golden model lends its table of folds and its LRU shadow; the rest is written here for the lab.
:mod:`..fast_kelp` is the compiled form, with arithmetic of its own, equal in every decision to this
one and to golden lock-step. :class:`Constants` are hardware's unless told otherwise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from kelp_golden.kelp_policy import Shadow, fold_table
from kelp_spec import policy as spec

from ..engine import Access, Policy, Pool

__all__ = ["Constants", "Kelp", "KelpNoPrefetch"]

_TOP = 1 << 40  #: an offer is this minus the value of the page offered
_ORDINARY, _TOUCHED, _NEWEST = range(3)
LOG_BITS = 8  #: of log2 after the point
LOG_TOP = 26 << LOG_BITS  #: of the quarters of idle steps that a page word can tell
_EVERY = -1  #: in place of a queue: the whole pool was swept


@dataclass(frozen=True)
class Constants:
    """None of them knows a layer, a head or a trace. Some also undo what hardware simplifies
    (docs/lab.md). ValueError where one makes no sense."""

    alpha_fast: int = spec.ALPHA_FAST
    alpha_slow: int = spec.ALPHA_SLOW
    fast_bits: int = spec.FAST_BITS
    slow_bits: int = spec.SLOW_BITS
    weight_fast: int = spec.WEIGHT_FAST
    weight_slow: int = 1
    weight_profile: int = 1 << spec.PROFILE_SHIFT  #: of one count, in the first opinion
    weight_next: int = 0  #: and of one a page farther from the newest
    profile_bits: int = spec.PROFILE_BITS
    epoch_bits: int = spec.EPOCH_BITS
    epoch_shift: int = spec.EPOCH_SHIFT
    #: 0: a page whose turn in this step is over does not count that turn as idle
    turn: int = 1
    near_most: int = spec.NEAR_MOST
    near_least: int = spec.NEAR_LEAST
    near_shift: int = spec.NEAR_SHIFT
    miss_rate_shift: int = spec.MISS_RATE_SHIFT
    marginal_shift: int = spec.MARGINAL_SHIFT
    margin_shift: int = spec.MARGIN_SHIFT
    credit_most: int = spec.CREDIT_MOST
    explore: int = spec.EXPLORE  #: 0: the first opinion alone
    duel_most: int = spec.DUEL_MOST
    first_regret: int = spec.FIRST_REGRET
    second_regret: int = spec.SECOND_REGRET
    #: bits of the step of a page's last access below its value: of two pages worth the same, the
    #: one idle for longer goes; 0: the lower page
    tie_bits: int = 0
    sweeps: int = spec.SWEEPS  #: 0: the best page of the whole pool
    sweeps_most: int = spec.SWEEPS_MOST
    wanted: int = spec.WANTED
    #: frames kept free; 0: a page gives way before another takes its frame
    reserve: int = 1
    #: 1: pages read in this step are ordinary once their queue's turn is over
    finished: int = 0
    #: not 0: `hyperbolic`'s value, log2 of (2^once + slow + profile) / (idle turns + 1)
    once: int = 0
    late: int = 0  #: quarters of a step that a page is idle for when its turn in this step is over

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = int(name in ("sweeps_most", "wanted", "fast_bits", "slow_bits", "profile_bits"))
            most = (
                256
                if name.startswith("alpha")
                else 24
                if name.endswith(("bits", "shift"))
                else 1 << 20
            )
            if not least <= value <= most:
                raise ValueError(
                    f"{name} = {value} of policy kelp is refused; legal: {least} … {most}"
                )


def _log(x: int) -> int:
    """log2 of x ≥ 1 with LOG_BITS after the point, linear between powers of two: a priority encoder
    and a shift."""
    whole = x.bit_length() - 1
    return (whole << LOG_BITS) + (x << LOG_BITS >> whole) - (1 << LOG_BITS)


class Candidate(NamedTuple):
    """Sorts as it is taken."""

    kind: int  #: ordinary, touched in this step, the queue's newest page
    value: int
    key: int


class Kelp(Policy):
    id = "kelp"
    scopes = ("pooled",)
    # 24: last_step; the profile has an entry for each page
    bits = spec.SCORE_WORD_BITS + 24 + spec.GIVEN_BITS + spec.PROFILE_BITS + spec.EPOCH_BITS
    prefetches = True
    evicts_in_use = writes_history = True

    def __init__(self, pool: Pool, constants: Constants = Constants()):
        super().__init__(pool)
        c = self.constants = constants
        self.reserve = c.reserve
        self.fold_fast, self.fold_slow = (
            fold_table(c.alpha_fast, c.fast_bits),
            fold_table(c.alpha_slow, c.slow_bits),
        )
        queues, keys = pool.all_queues, pool.all_queues * pool.pages
        self.fast, self.slow, self.last, self.given_by = ([0] * keys for _ in range(4))
        # by queue and distance from its newest page
        self.counts, self.epochs = (
            [[0] * (pool.pages + 1) for _ in range(queues)] for _ in range(2)
        )
        self.newest = [-1] * queues
        # how gladly each queue gave a page when it was asked last; 0: not at all
        self.offers = [0] * queues
        self.miss_rate = self.marginal = self.credit = self.duel = self.disputed = (
            self.requester
        ) = 0
        self.shadow = Shadow()
        self.octile = max(0, (queues - 1).bit_length() - spec.OCTILE_BITS)
        self.turn = None  # (step, key) of the latest access
        # the queue that the latest access left, the one that it came to
        self.left = self.entered = None

    # - accesses -----------------------------------------------------------------------------------
    def seen(self, now: Access, missed: bool) -> None:
        # the device wrote its history in step 0
        c, key, queue, step, pool = self.constants, now.key, now.queue, now.step + 1, self.pool
        new = not pool.known[key]
        if not pool.resident[key]:
            self.requester = queue
        if new:
            self.newest[queue] = now.page
            fast = slow = 0
            at, count = now.page, 0  # the farthest distance that there is now starts from nothing
        else:
            fast, slow = self._folded(key, max(step - self.last[key], 1) - 1)
            at = self.newest[queue] - now.page
            count = min((1 << c.profile_bits) - 1, self._count(queue, at, step) + 1)
        self.counts[queue][at], self.epochs[queue][at] = (
            count,
            step >> c.epoch_shift & (1 << c.epoch_bits) - 1,
        )
        self.fast[key] = fast + (((1 << c.fast_bits) - 1 - fast) * c.alpha_fast + 128 >> 8)
        if not (new and c.once):  # there, being written is no read
            slow += ((1 << c.slow_bits) - 1 - slow) * c.alpha_slow + 128 >> 8
        self.slow[key] = slow
        if self.shadow.access(
            step, None if new else self.last[key], queue >> self.octile, pool.frames
        ):
            self.credit = min(c.credit_most, self.credit + 1)
        if missed:
            self._read(key)
        self.miss_rate += ((65535 if missed else 0) - self.miss_rate) >> c.miss_rate_shift
        before = self.turn and (self.turn[0], self.turn[1] // pool.pages)
        if before != (step, queue):
            self.left, self.entered = before and before[1], queue
        self.turn, self.last[key] = (step, key), step

    def _folded(self, key: int, idle: int) -> tuple[int, int]:
        c, idle = self.constants, min(idle, spec.FOLDED)
        return self.fast[key] * self.fold_fast[idle] >> c.fast_bits, self.slow[
            key
        ] * self.fold_slow[idle] >> c.slow_bits

    def _count(self, queue: int, distance: int, step: int) -> int:
        c = self.constants
        return self.counts[queue][distance] >> (
            (step >> c.epoch_shift) - self.epochs[queue][distance] & (1 << c.epoch_bits) - 1
        )

    def _read(self, key: int) -> None:
        """A page is read from flash: as much against the opinion that alone gave it away as it had
        turns, so the one that is not followed counts for more."""
        c, seldom = self.constants, self.constants.explore - 1
        self.credit = max(-c.credit_most, self.credit - 1)
        if self.given_by[key] == 1:
            self.duel = min(
                c.duel_most, self.duel + c.first_regret * (1 if self.duel <= 0 else seldom)
            )
        elif self.given_by[key] == 2:
            self.duel = max(
                -c.duel_most, self.duel - c.second_regret * (1 if self.duel > 0 else seldom)
            )

    # - what a page is worth -----------------------------------------------------------------------
    def _values(self, key: int, step: int) -> tuple[int, int, bool]:
        """First and second opinion, before the factor, and whether the page's turn in this step is
        over."""
        c, (queue, page) = self.constants, divmod(key, self.pool.pages)
        over = self.turn[0] == step and key < self.turn[1]
        if c.once:
            idle = step - self.last[key] - 1 + over if self.last[key] < step else 0
            often = self.slow[key] + c.weight_profile * self._count(
                queue, self.newest[queue] - page, step
            )
            often = often * self.fold_slow[min(idle, spec.FOLDED)] >> c.slow_bits
            rate = LOG_TOP + _log((1 << c.once) + often) - _log(4 * (idle + 1) + c.late * over)
            return rate, rate, False
        fast, slow = self._folded(key, max(step - self.last[key], 1) - 1 + (over and c.turn))
        common, distance = c.weight_fast * fast + c.weight_slow * slow, self.newest[queue] - page
        profile = c.weight_profile * self._count(queue, distance, step)
        if c.weight_next:
            profile += c.weight_next * self._count(queue, distance + 1, step)
        return common + profile, common, over

    def _sweep(self, queue: int, now: Access, other: bool = False) -> list[Candidate]:
        """The queue's resident pages, best victim first, in the opinion followed or in the other
        one."""
        c, pool, step, found = self.constants, self.pool, now.step + 1, []
        near = max(c.near_least, c.near_most - (self.miss_rate >> c.near_shift))
        for page in range(self.newest[queue] + 1):
            key = queue * pool.pages + page
            if pool.resident[key]:
                first, second, over = self._values(key, step)
                value = second if (self.duel > 0) != other else first
                in_use = self.last[key] == step and not (
                    c.finished and queue < self.turn[1] // pool.pages
                )
                kind = _NEWEST if page == self.newest[queue] else _TOUCHED if in_use else _ORDINARY
                value = value * near >> 8 if over else value
                idle_first = self.last[key] & (1 << c.tie_bits) - 1
                found.append(Candidate(kind, value << c.tie_bits | idle_first, key))
        return sorted(found)

    # - who gives way ------------------------------------------------------------------------------
    def _asked(self, now: Access, queue: int) -> list[Candidate]:
        found = self._sweep(queue, now)
        self._offer(queue, found)
        return found

    def _offer(self, queue: int, found: list[Candidate]) -> None:
        if queue != _EVERY:
            self.offers[queue] = 0 if not found else 1 if found[0].kind else _TOP - found[0].value

    def _best(self) -> int:
        return self.offers.index(max(self.offers))

    def _queue(self, now: Access) -> tuple[int, list[Candidate]]:
        """The queue that gives and its pages. What a queue offers was true when it was swept last,
        so a second one may be asked."""
        c, queue, worthy = self.constants, self._best(), 0
        if not c.sweeps:
            return _EVERY, sorted(c for q in self.pool.queues for c in self._sweep(q, now))
        if not self.offers[queue]:
            queue = self.requester
        for _ in range(c.sweeps_most):
            found, swept = self._asked(now, queue), queue
            worthy += bool(found) and found[0].kind == _ORDINARY
            queue = self._best()
            if worthy == c.sweeps or queue == swept or self.offers[queue] <= 1:
                break
        if not (found and found[0].kind == _ORDINARY) and self.requester != swept:
            # nothing but pages in use: the queue that asks gives
            asks = self._asked(now, self.requester)
            if asks:
                return self.requester, asks
        for _ in self.pool.queues:
            if found:
                break
            swept = (swept + 1) % self.pool.all_queues
            found = self._sweep(swept, now)
        return swept, found

    def victim(self, now: Access) -> int | None:
        c = self.constants
        queue, found = self._queue(now)
        if not found:
            return None
        chosen, left, self.tag = found[0], found[1:], 0
        if chosen.kind == _ORDINARY:
            other = min(
                c
                for q in (self.pool.queues if queue == _EVERY else [queue])
                for c in self._sweep(q, now, other=True)[:1]
            )
            if c.explore and other.key != chosen.key:
                self.disputed = (self.disputed + 1) % c.explore
                self.tag = 2 if self.duel > 0 else 1
                if not self.disputed:
                    chosen, left, self.tag = other, found, 3 - self.tag
            self.marginal += chosen.value - self.marginal >> c.marginal_shift
        self._offer(queue, left)
        return chosen.key

    def evicted(self, key: int, now: Access) -> None:
        self.given_by[key] = self.tag

    # - after an access ----------------------------------------------------------------------------
    def after(self, now: Access) -> None:
        """The queue left behind is valued anew: in the next step a page in use will be one like any
        other."""
        found = self._sweep(self.left, now) if self.left is not None else ()
        if found:
            self.offers[self.left] = 1 if found[0].kind == _NEWEST else _TOP - found[0].value
        self.left = None

    def ahead(self, now: Access):
        """After the first access of a queue in a step: the next layer's queue is looked through."""
        c, pool, queue, self.entered = self.constants, self.pool, self.entered, None
        if queue is None or pool.layers == 1 or self.credit <= 0:
            return
        following = (queue + pool.kv_heads) % pool.all_queues
        first, opinion, floor = (
            following * pool.pages,
            int(self.duel > 0),
            self.marginal >> c.tie_bits << c.margin_shift,
        )
        away = (
            key
            for key in range(first, first + self.newest[following] + 1)
            if not pool.resident[key]
        )
        for key in [key for key in away if self._values(key, now.step + 1)[opinion] >= floor][
            : c.wanted
        ]:
            if self.credit <= 0:
                break
            yield key

    def fetched(self, key: int) -> None:
        self._read(key)


class KelpNoPrefetch(Kelp):
    """`kelp` without its prefetch."""

    id = "kelp-noprefetch"
    prefetches = False
