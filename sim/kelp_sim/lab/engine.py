# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Replays an access sequence under one policy, by the rules of docs/recordings.md: the plain form
that every fast form must equal.

The engine owns what is fact: which pages have a frame, which were touched in this step, what was
missed. A :class:`Policy` is told of one access at a time and answers two questions: which page
gives way, and what to fetch ahead. It is handed nothing of what is still to come.

Prefetch: asked for at the first access of each (step, layer); each page takes a frame and a flash
read at once and lands when the next layer begins. Until then it is in flight: an access to it is a
miss (counted late), without a second flash read, and it is no victim.

A policy that stands for the device (`kelp`, docs/policy.md) may ask for the device's rules:
``reserve`` frames kept free by evicting after the access, pages in use as a last resort, and a
start from its own history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ..trace.accesses import AccessSequence

__all__ = [
    "PREFETCH_PER_HEAD",
    "Access",
    "Outcome",
    "Policy",
    "PolicyError",
    "Pool",
    "Timeline",
    "run",
]

#: Pages that may be prefetched per KV head and layer. A 70B decoder at 10 tokens/s has 1.25 ms a
#: layer: 14 GB/s bring 267 8-KB pages per head.
PREFETCH_PER_HEAD = 32


class PolicyError(ValueError):
    """A policy broke its contract: it evicted what is not resident or is protected, or fetched what
    does not exist."""


@dataclass(slots=True)
class Access:
    """One access. ``key`` = queue · pages + page names the page everywhere. In the history
    ``index`` and ``step`` are −1."""

    index: int
    step: int
    layer: int
    queue: int
    page: int
    key: int
    newest: int  #: the page being written, the same in every queue
    #: this page's share of the attention mass of the pages read so (UQ0.16); known when its step is
    #: over
    mass: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """A sequence with what a replay needs of each access; ``mass`` is renormalised over the pages
    read, [accesses] UQ0.16."""

    sequence: AccessSequence
    keys: np.ndarray
    mass: np.ndarray

    @classmethod
    def of(cls, sequence: AccessSequence, mass: np.ndarray | None = None) -> Timeline:
        """``mass``: [accesses] as recorded, any unit; zeros where there is none."""
        keys = sequence.queue.astype(np.int64) * sequence.final_pages + sequence.page
        if mass is None:
            return cls(sequence, keys, np.zeros(len(keys), np.int64))
        cell = sequence.step.astype(np.int64) * sequence.queues + sequence.queue
        total = np.bincount(
            cell, weights=mass.astype(float), minlength=sequence.steps * sequence.queues
        )[cell]
        return cls(
            sequence,
            keys,
            np.minimum(
                65535, mass.astype(np.int64) * 65536 // np.maximum(1, total.astype(np.int64))
            ),
        )

    def next_use(self) -> np.ndarray:
        """[accesses]: the step of the page's next access, or a step that never comes. For Belady
        alone."""
        order = np.lexsort((np.arange(len(self.keys)), self.keys))
        by_page, step = self.keys[order], self.sequence.step[order].astype(np.int64)
        following = np.full(len(order), np.int64(1) << 40)
        same = by_page[1:] == by_page[:-1]
        following[order[:-1][same]] = step[1:][same]
        return following


class Pool:
    """The frames that one policy shares out, and what stands in them. ``queues`` is the range of
    queues that the pool serves."""

    def __init__(self, sequence: AccessSequence, queues: range, frames: int):
        self.queues, self.frames = queues, frames
        self.pages, self.kv_heads, self.layers = (
            sequence.final_pages,
            sequence.kv_heads,
            sequence.layers,
        )
        self.all_queues, self.page_tokens = sequence.queues, sequence.page_tokens
        self.history_pages = sequence.history_pages
        keys = self.all_queues * self.pages
        self.page_of = np.tile(np.arange(self.pages), self.all_queues)
        self.resident = np.zeros(keys, bool)
        self.known = np.zeros(keys, bool)  # has had a frame: a page that exists
        self.touched = np.full(keys, -1, np.int64)  # step of the last access
        self.in_flight = np.zeros(keys, bool)
        self.used = 0

    def is_open(self, key: int, now: Access) -> bool:
        """Whether ``key`` may be evicted: resident, landed, not touched in this step, not being
        written."""
        return (
            bool(self.resident[key])
            and self.touched[key] != now.step
            and key % self.pages != now.newest
            and not self.in_flight[key]
        )

    def open(self, now: Access) -> np.ndarray:
        """All such keys, ascending."""
        return np.flatnonzero(
            self.resident
            & (self.touched != now.step)
            & (self.page_of != now.newest)
            & ~self.in_flight
        )

    @property
    def history(self) -> Iterable[int]:
        """Keys written before the first step."""
        return (q * self.pages + p for q in self.queues for p in range(self.history_pages))


class Policy:
    """What a policy is: a class that takes a :class:`Pool` and answers :meth:`victim`. The rest it
    overrides as it needs.

    Class attributes: ``id`` its name; ``scopes`` where it is meant to run (``pooled``,
    ``per-head``); ``bits`` what it keeps per page; ``oracle`` True where it is told of the future
    (Belady); ``prefetches`` True where :meth:`prefetch` may answer.
    """

    id = "?"
    scopes = ("per-head", "pooled")
    bits = 0
    oracle = False
    prefetches = False
    #: frames of the pool that are kept free: evictions follow the access until so many are
    reserve = 0
    #: any resident page may be its victim; it answers None only for an empty pool
    evicts_in_use = False
    #: it starts empty, and the history is written page after page, queue by queue, under its own
    #: rules
    writes_history = False
    #: a page written while no frame can be had exists all the same, on flash (else its allocation
    #: is still to come)
    writes_through = False

    def __init__(self, pool: Pool):
        self.pool = pool

    def start(self, keys: list[int]) -> None:
        """The pages that are resident when the replay begins, ascending."""
        for key in keys:
            self.admitted(key, None)

    def admitted(self, key: int, now: Access | None) -> None:
        """``key`` got a frame: for access ``now`` when ``now.key == key``, else by prefetch (None:
        at the start)."""

    def hit(self, key: int, now: Access) -> None:
        """``now`` found ``key`` resident (or in flight)."""

    def seen(self, now: Access, missed: bool) -> None:
        """Called first for every access, before it is looked up; ``missed``: it will be a miss."""

    def victim(self, now: Access) -> int | None:
        """A key for which ``pool.is_open(key, now)``; None when there is none. The engine removes
        it and calls :meth:`evicted`."""
        raise NotImplementedError

    def evicted(self, key: int, now: Access) -> None:
        """``key`` lost its frame."""

    def prefetch(self, now: Access) -> Iterable[int]:
        """Keys to fetch, best first, at the first access of a layer; resident ones and ones that do
        not exist are passed over."""
        return ()

    def after(self, now: Access) -> None:
        """``now`` and its evictions are over."""


@dataclass(eq=False)
class Outcome:
    """What a policy did. ``missed`` is [accesses] bool; ``victims`` lists (access, key) in order
    where asked for."""

    missed: np.ndarray
    bypasses: int = 0
    issued: int = 0
    useful: int = 0
    late: int = 0
    victims: list[tuple[int, int]] = field(default_factory=list)

    @property
    def misses(self) -> int:
        return int(self.missed.sum())

    @property
    def flash_reads(self) -> int:
        return self.misses - self.late + self.issued


def run(
    timeline: Timeline,
    make: Callable[[Pool], Policy],
    *,
    capacity: int,
    pooled: bool,
    record: bool = False,
    accesses: int | None = None,
    prefetch: bool = True,
) -> Outcome:
    """Replay ``timeline`` (its first ``accesses``) with one policy for all queues, or one for each
    with an equal share; without ``prefetch`` none is asked for its prefetches."""
    count = len(timeline.keys) if accesses is None else accesses
    return _Replay(
        timeline,
        make,
        capacity=capacity,
        pooled=pooled,
        record=record,
        count=count,
        prefetch=prefetch,
    ).outcome


class _Replay:
    """One replay; it is over when it is made."""

    def __init__(
        self,
        timeline: Timeline,
        make,
        *,
        capacity: int,
        pooled: bool,
        record: bool,
        count: int,
        prefetch: bool,
    ):
        self.sequence = sequence = timeline.sequence
        share, every = sequence.share(capacity), range(sequence.queues)
        self.pools = [
            Pool(sequence, q, capacity if pooled else share)
            for q in ([every] if pooled else [range(q, q + 1) for q in every])
        ]
        self.policies = [make(pool) for pool in self.pools]
        self.record, self.prefetch = record, prefetch
        self.outcome = Outcome(missed=np.zeros(count, bool))
        self.limit = PREFETCH_PER_HEAD * sequence.kv_heads
        self.unused: set[int] = set()  # prefetched and not accessed since
        self.flying: list[tuple[Pool, int]] = []
        self.issued = 0  # in this layer
        for pool, policy in zip(self.pools, self.policies, strict=True):
            self._start(pool, policy, sequence.initial_pages(capacity))
            if policy.oracle:
                policy.tell(timeline)
        layer_now = (-1, -1)
        columns = (sequence.step, sequence.queue, sequence.page, timeline.keys, timeline.mass)
        for index, (step, queue, page, key, mass) in enumerate(
            zip(*(c[:count].tolist() for c in columns), strict=True)
        ):
            now = Access(
                index,
                step,
                queue // sequence.kv_heads,
                queue,
                page,
                key,
                int(sequence.newest_page(step)),
                mass,
            )
            if (step, now.layer) != layer_now:
                layer_now = (step, now.layer)
                self._layer(now)
            at = 0 if pooled else queue
            self.outcome.missed[index] = self._access(self.pools[at], self.policies[at], now)

    def _start(self, pool: Pool, policy: Policy, initial: range) -> None:
        if policy.writes_history:
            for page in range(pool.history_pages):
                for queue in pool.queues:
                    self._access(
                        pool,
                        policy,
                        Access(
                            -1,
                            -1,
                            queue // pool.kv_heads,
                            queue,
                            page,
                            queue * pool.pages + page,
                            page,
                            0,
                        ),
                    )
            return
        keys = [q * pool.pages + p for q in pool.queues for p in initial]
        pool.known[list(pool.history)] = True
        pool.resident[keys] = True
        pool.used = len(keys)
        policy.start(keys)

    def _layer(self, now: Access) -> None:
        """A layer begins: what was in flight lands, and policies may ask for more."""
        for pool, landed in self.flying:
            pool.in_flight[landed] = False
        self.flying.clear()
        self.issued = 0
        for pool, policy in zip(self.pools, self.policies, strict=True):
            if self.prefetch and policy.prefetches:
                self._fetch(pool, policy, now, policy.prefetch(now))

    def _fetch(self, pool: Pool, policy: Policy, now: Access, keys: Iterable[int]) -> None:
        for wanted in keys:
            if self.issued == self.limit:
                break
            if not 0 <= wanted < len(pool.known) or wanted // pool.pages not in pool.queues:
                raise PolicyError(
                    f"policy {policy.id!r} fetches key {wanted} at access {now.index}, which "
                    + "its pool does not hold"
                )
            if pool.resident[wanted] or not pool.known[wanted]:
                continue
            if pool.used >= pool.frames and not self._evict(pool, policy, now):
                break
            pool.resident[wanted] = pool.in_flight[wanted] = True
            pool.used += 1
            self.flying.append((pool, wanted))
            self.unused.add(wanted)
            policy.admitted(wanted, now)
            self.issued += 1
            self.outcome.issued += 1
            self._keep_reserve(pool, policy, now)

    def _evict(self, pool: Pool, policy: Policy, now: Access) -> bool:
        key = policy.victim(now)
        if key is None:
            return False
        if not (pool.resident[key] if policy.evicts_in_use else pool.is_open(key, now)):
            raise PolicyError(
                f"policy {policy.id!r} evicts key {key} at access {now.index}, which is not "
                + "resident or is protected"
            )
        pool.resident[key] = pool.in_flight[key] = False
        pool.used -= 1
        self.unused.discard(key)
        policy.evicted(key, now)
        if self.record:
            self.outcome.victims.append((now.index, key))
        return True

    def _keep_reserve(self, pool: Pool, policy: Policy, now: Access) -> None:
        while pool.frames - pool.used < policy.reserve and self._evict(pool, policy, now):
            pass

    def _access(self, pool: Pool, policy: Policy, now: Access) -> bool:
        """Whether it is a miss."""
        key, outcome = now.key, self.outcome
        held = bool(pool.resident[key])
        missed = bool(pool.known[key]) and (not held or bool(pool.in_flight[key]))
        policy.seen(now, missed)
        if key in self.unused:
            self.unused.discard(key)
            outcome.useful += 1
            outcome.late += int(pool.in_flight[key])
        if held:
            pool.touched[key] = now.step
            policy.hit(key, now)
        elif pool.used >= pool.frames and not self._evict(pool, policy, now):
            outcome.bypasses += 1
            pool.known[key] |= policy.writes_through
            return missed
        else:
            pool.resident[key] = pool.known[key] = True
            pool.touched[key] = now.step
            pool.used += 1
            policy.admitted(key, now)
        self._keep_reserve(pool, policy, now)
        policy.after(now)
        return missed
