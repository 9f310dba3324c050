# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What it would be worth to write a prefill straight through to flash: flash reads and writes of
recordings under pooled LRU and `kelp`, with the prefill's pages in DRAM like any others (stays),
and given up as soon as they are on flash (streams)::

    python -m kelp_sim.lab.prefill data/traces/*.npz [--residency 0.125 0.25 0.5]

The last table is the other side: a session decodes while a neighbour of the same size prefills
once in `--burst` steps, in the same pool, pages that nobody reads again: the best case for
streaming, under which the neighbour takes no frame at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..trace.accesses import access_sequence
from ..trace.trace import read
from .engine import Timeline, run
from .policies.kelp import Kelp
from .policies.lru import Lru

__all__ = ["POLICIES", "Beside", "main", "outcome", "variants"]

POLICIES = {policy.id: policy for policy in (Lru, Kelp)}


class Written:
    """Counts the pages that a policy writes to flash: dirty ones that leave, and what streams."""

    def __init__(self, pool):
        super().__init__(pool)
        self.dirty, self.writes = set(), 0

    def start(self, keys):
        super().start(keys)
        self.dirty |= set(keys)
        self.writes += len(list(self.pool.history)) - len(keys)

    def touched(self, key, now):
        if now is not None and now.key == key and now.page == now.newest:
            self.dirty.add(key)

    def admitted(self, key, now):
        super().admitted(key, now)
        self.touched(key, now)

    def hit(self, key, now):
        super().hit(key, now)
        self.touched(key, now)

    def evicted(self, key, now):
        super().evicted(key, now)
        self.writes += key in self.dirty
        self.dirty.discard(key)


class Streams(Written):
    """A page of the prefill goes to flash and leaves its frame at once."""

    def start(self, keys):
        super().start(keys)
        for key in keys:
            self.leave(key)

    def leave(self, key, now=None):
        self.pool.resident[key] = False
        self.pool.used -= 1
        self.evicted(key, now)

    def after(self, now):
        super().after(now)
        if now.index < 0:
            self.leave(now.key, now)


class Beside(Lru):
    """LRU beside a neighbour whose prefill takes a frame a page, until those are the oldest."""

    burst = 256

    def __init__(self, pool):
        super().__init__(pool)
        self.left, self.since = 0, 0
        self.guests = 0

    def seen(self, now, missed):
        if not self.pool.resident[now.key]:
            self.room(now)

    def after(self, now):
        if now.step == self.since + self.burst:
            self.since = now.step
            self.left += self.pool.history_pages * self.pool.all_queues
        # Its pages come as fast as frames can be had, and are the newest as they come.
        while self.left and self.room(now):
            self.left -= 1
            self.guests += 1
            self.order[-self.guests] = None
            self.pool.used += 1

    def room(self, now):
        return self.pool.used < self.pool.frames or self.give(now)

    def give(self, now):
        for key in self.order:
            if key < 0 or self.pool.is_open(key, now):
                del self.order[key]
                self.pool.used -= 1
                if key >= 0:
                    self.pool.resident[key] = False
                return True
        return False

    def victim(self, now):
        return None


def outcome(timeline: Timeline, policy, capacity: int) -> tuple[int, int, int]:
    """Flash reads, misses, flash writes (0 where the policy does not count them)."""
    made = []

    def make(pool):
        made.append(policy(pool))
        return made[-1]

    found = run(timeline, make, capacity=capacity, pooled=True)
    return found.flash_reads, found.misses, sum(getattr(p, "writes", 0) for p in made)


def variants(base):
    """Of policy class ``base``: its prefill stays, its prefill streams."""
    return (
        type(f"{base.__name__}Stays", (Written, base), {}),
        type(f"{base.__name__}Streams", (Streams, base), {}),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_sim.lab.prefill", description=__doc__.splitlines()[0]
    )
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--residency", type=float, nargs="+", default=[0.125, 0.25, 0.5])
    parser.add_argument("--policy", nargs="+", choices=sorted(POLICIES), default=sorted(POLICIES))
    parser.add_argument("--burst", type=int, default=256)
    parser.add_argument("--accesses", type=int, help="only so many of each recording")
    chosen = parser.parse_args(arguments)
    Beside.burst = chosen.burst
    try:
        sequences = [access_sequence(read(p), accesses=chosen.accesses) for p in chosen.traces]
        for sequence in sequences:
            for share in chosen.residency:
                sequence.capacity(share)
    except ValueError as error:  # TraceError among them
        parser.error(str(error))
    prefills = sum((s.steps - 1) // chosen.burst for s in sequences) if chosen.burst > 0 else 0
    if not prefills:
        parser.error(
            f"--burst {chosen.burst} is refused: no neighbour prefills; legal: 1 and up, below a "
            + f"recording's steps, {max(s.steps for s in sequences)}"
        )
    timelines = [Timeline.of(sequence) for sequence in sequences]
    history = sum(s.history_pages * s.queues for s in sequences)
    accesses = sum(len(s) for s in sequences)
    print(f"{len(sequences)} recordings, {accesses} accesses, {history} pages of prefill")

    def total(policy, share):
        rows = [outcome(t, policy, t.sequence.capacity(share)) for t in timelines]
        return [sum(column) for column in zip(*rows, strict=True)]

    def more(stays, streams):
        return f"{stays} {streams}" + (f" ({streams / stays - 1:+.1%})" if stays else "")

    print("policy resident | misses: stays streams | flash reads: … | flash writes: …")
    for base in (POLICIES[name] for name in chosen.policy):
        for share in chosen.residency:
            reads, misses, writes = (
                more(*of) for of in zip(*(total(p, share) for p in variants(base)), strict=True)
            )
            print(f"{base.id:6} {share:8.1%} | {misses} | {reads} | {writes}")
    print(f"LRU, a neighbour prefills every {chosen.burst} steps | misses: stays streams")
    for share in chosen.residency:
        stays, streams = total(Beside, share)[1], total(Lru, share)[1]
        kept, given = (total(policy, share)[1] for policy in variants(Lru))
        saved, lost = (stays - streams) / prefills, (given - kept) / len(sequences)
        print(
            f"{share:15.1%} | {more(stays, streams)}; a prefill that streams saves its neighbour "
            + f"{saved:.0f} misses and costs its own session {lost:.0f}"
        )


if __name__ == "__main__":
    main()
