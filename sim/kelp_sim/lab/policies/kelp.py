# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp` as the device does it (docs/policy.md): how often a page was read over how long ago, with
a profile over distance, in one pool.

The golden model lends its table of folds; the rest is written here for the lab.
:mod:`..fast_kelp` is the compiled form, with arithmetic of its own, equal in every decision to this
one and to golden lock-step. :class:`Constants` are hardware's unless told otherwise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

from kelp_golden.kelp_policy import fold_table
from kelp_spec import policy as spec

from ..engine import Access, Policy, Pool

__all__ = ["Constants", "Kelp"]

_TOP = 1 << 40  #: an offer is this minus the value of the page offered
_ORDINARY, _TOUCHED, _NEWEST = range(3)
_EVERY = -1  #: in place of a queue: the whole pool was swept


@dataclass(frozen=True)
class Constants:
    """None of them knows a layer, a head or a trace. Some also undo what hardware simplifies
    (docs/lab.md). ValueError where one makes no sense."""

    alpha: int = spec.ALPHA  #: 0: no page has a frequency
    frequency_bits: int = spec.FREQUENCY_BITS
    once: int = spec.ONCE
    fade_shift: int = spec.FADE_SHIFT  #: 0: in a value, a frequency fades as it is learnt
    weight_profile: int = 1 << spec.PROFILE_SHIFT  #: of one count
    profile_bits: int = spec.PROFILE_BITS
    epoch_bits: int = spec.EPOCH_BITS
    epoch_shift: int = spec.EPOCH_SHIFT
    #: 0: a page whose turn in this step is over does not count that turn as idle
    turn: int = 1
    late: int = spec.LATE  #: quarters of a step that it is idle for besides
    #: 0: pages read in this step are in use until the next, also once their queue's turn is over
    finished: int = 1
    log_bits: int = spec.LOG_BITS
    sweeps: int = spec.SWEEPS  #: 0: the best page of the whole pool
    sweeps_most: int = spec.SWEEPS_MOST
    #: frames kept free; 0: a page gives way before another takes its frame
    reserve: int = 1

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = int(name in ("sweeps_most", "frequency_bits", "profile_bits", "once"))
            most = 256 if name == "alpha" else 24 if name.endswith(("bits", "shift")) else 1 << 12
            if not least <= value <= most:
                raise ValueError(
                    f"{name} = {value} of policy kelp is refused; legal: {least} … {most}"
                )


class Candidate(NamedTuple):
    """Sorts as it is taken."""

    kind: int  #: ordinary, touched in this step, the queue's newest page
    value: int
    key: int


class Kelp(Policy):
    id = "kelp"
    scopes = ("pooled",)
    # 24: last_step; the profile has an entry for each page
    bits = spec.FREQUENCY_BITS + 24 + spec.PROFILE_BITS + spec.EPOCH_BITS
    evicts_in_use = writes_history = True

    def __init__(self, pool: Pool, constants: Constants = Constants()):
        super().__init__(pool)
        c = self.constants = constants
        self.reserve = c.reserve
        self.fold = fold_table(c.alpha, c.frequency_bits)
        queues, keys = pool.all_queues, pool.all_queues * pool.pages
        self.frequency, self.last = [0] * keys, [0] * keys
        # by queue and distance from its newest page
        self.counts, self.epochs = ([[0] * pool.pages for _ in range(queues)] for _ in range(2))
        self.newest = [-1] * queues
        # how gladly each queue gave a page when it was asked last; 0: not at all
        self.offers = [0] * queues
        self.requester = 0
        self.turn = None  # (step, key) of the latest access
        self.left = None  # the queue that the latest access left

    # - accesses -----------------------------------------------------------------------------------
    def seen(self, now: Access, missed: bool) -> None:
        # the device wrote its history in step 0
        c, key, queue, step, pool = self.constants, now.key, now.queue, now.step + 1, self.pool
        if not pool.resident[key]:
            self.requester = queue
        if not pool.known[key]:
            self.newest[queue], self.frequency[key] = now.page, 0  # to be written is not to be read
            at, count = now.page, 0  # the farthest distance that there is now starts from nothing
        else:
            idle, top = max(step - self.last[key], 1) - 1, (1 << c.frequency_bits) - 1
            often = self._folded(self.frequency[key], idle)
            self.frequency[key] = often + ((top - often) * c.alpha + 128 >> 8)
            at = self.newest[queue] - now.page
            count = min((1 << c.profile_bits) - 1, self._count(queue, at, step) + 1)
        self.counts[queue][at], self.epochs[queue][at] = (
            count,
            step >> c.epoch_shift & (1 << c.epoch_bits) - 1,
        )
        before = self.turn and (self.turn[0], self.turn[1] // pool.pages)
        if before and before != (step, queue):
            self.left = before[1]
        self.turn, self.last[key] = (step, key), step

    def _folded(self, often: int, idle: int) -> int:
        return often * self.fold[min(idle, spec.FOLDED)] >> self.constants.frequency_bits

    def _count(self, queue: int, distance: int, step: int) -> int:
        c = self.constants
        return self.counts[queue][distance] >> (
            (step >> c.epoch_shift) - self.epochs[queue][distance] & (1 << c.epoch_bits) - 1
        )

    # - what a page is worth -----------------------------------------------------------------------
    def _value(self, key: int, step: int) -> int:
        c, (queue, page) = self.constants, divmod(key, self.pool.pages)
        over = self.turn[0] == step and key < self.turn[1]
        idle = step - self.last[key] - 1 + (over and c.turn) if self.last[key] < step else 0
        counted = c.weight_profile * self._count(queue, self.newest[queue] - page, step)
        often = self._folded(self.frequency[key] + counted, idle << c.fade_shift)
        most = 26 << c.log_bits  # so that the device's values are not negative
        return most + self._log(c.once + often) - self._log(4 * (idle + 1) + c.late * over)

    def _log(self, x: int) -> int:
        """log2, linear between powers of two: a priority encoder and a shift."""
        bits, whole = self.constants.log_bits, x.bit_length() - 1
        return (whole << bits) + (x << bits >> whole) - (1 << bits)

    def _sweep(self, queue: int, now: Access) -> list[Candidate]:
        """The queue's resident pages, best victim first."""
        c, pool, step, found = self.constants, self.pool, now.step + 1, []
        finished = c.finished and queue < self.turn[1] // pool.pages
        for page in range(self.newest[queue] + 1):
            key = queue * pool.pages + page
            if pool.resident[key]:
                in_use = self.last[key] == step and not (finished and self.frequency[key])
                kind = _NEWEST if page == self.newest[queue] else _TOUCHED if in_use else _ORDINARY
                found.append(Candidate(kind, self._value(key, step), key))
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
            # nothing but pages in use: the queue that asks gives, but not what it is about to write
            asks = self._asked(now, self.requester)
            if asks and not (found and asks[0].kind == _NEWEST):
                return self.requester, asks
        for _ in self.pool.queues:
            if found:
                break
            swept = (swept + 1) % self.pool.all_queues
            found = self._sweep(swept, now)
        return swept, found

    def victim(self, now: Access) -> int | None:
        queue, found = self._queue(now)
        if not found:
            return None
        self._offer(queue, found[1:])
        return found[0].key

    # - after an access ----------------------------------------------------------------------------
    def after(self, now: Access) -> None:
        """The queue left behind is valued anew."""
        found = self._sweep(self.left, now) if self.left is not None else ()
        if found:
            self._offer(self.left, found)
        self.left = None
