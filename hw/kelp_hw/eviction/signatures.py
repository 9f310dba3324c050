# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Interfaces and payloads between the blocks of the eviction engine (docs/design.md §6, §7).

Payloads that cross rooms are in `kelp_hw.layouts`. In each signature, `Out` is what the block named
first in its docstring drives.
"""

from __future__ import annotations

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import SCORE_BITS, STEP_BITS

from ..layouts import POOL_BITS, Layouts
from ..pipeline import RESERVE

__all__ = [
    "CLASS_BITS",
    "EvictionLayouts",
    "EvictionsUnderWay",
    "Lookup",
    "MapRead",
    "Moment",
    "Offer",
    "PageCheck",
    "PolicyState",
    "QueueView",
    "Search",
    "SweepControl",
    "SweepList",
    "Turn",
    "Verdict",
    "event_count_bits",
    "event_depth",
    "unforeseen_events",
    "word_pages",
]

CLASS_BITS = 2  #: 0 ordinary, 1 touched in the sweep's step, 2 the queue's newest page


class Moment(enum.Enum, shape=3):
    """Where a search for a victim is when it tells or asks its policy."""

    NONE = 0
    BEGIN = 1  #: the next search is a new one
    JUDGE = 2  #: asks: the queue at hand has been looked up
    SWEPT = 3  #: asks: the queue at hand has been swept
    EMPTY = 4  #: asks: the list has no page to take
    GIVEN = 5  #: asks: M3 has given the page away
    NEXT = 6  #: the next queue is tried


class Verdict(enum.Enum, shape=3):
    """What a search does next."""

    WAIT = 0  #: until the policy has another verdict
    TAKE = 1  #: a page from the list
    SWEEP = 2  #: the queue at hand
    LOOK = 3  #: the queue at hand is looked up, again or after a move
    NEXT = 4  #: the next queue is tried
    DONE = 5  #: a page was given; the search ends when its pool counts it
    REST = 6  #: the search ends at once


def word_pages(config: Config) -> int:
    """Pages in one word of the residency map."""
    return min(64, config.pages)


def unforeseen_events(config: Config) -> int:
    """Events of the queue state beyond M0's credit: one CLAIM (the evictor waits for it), a
    cancellation and a failed write-back for each eviction under way, and two that come while
    `ready` is on its way to M0."""
    return 1 + 2 * config.write_backs + 2


def event_depth(config: Config) -> int:
    """Places for events of the queue state; enough that the credit is rarely withheld."""
    return 1 << (2 * RESERVE + unforeseen_events(config) - 1).bit_length()


def event_count_bits(config: Config) -> int:
    """Of `QueueView.entered` and `done`: twice the depth and more, so that the difference of two
    counts has a sign."""
    return event_depth(config).bit_length() + 1


class EvictionLayouts(Layouts):
    """`Layouts` and, beside them, the payloads of this room.

    Attributes
    ----------
    candidate, held_candidate : layout
        A place in a sweep's list; the same with `valid`.
    judged : layout
        A scanned page after the priority unit: its `candidate`; `eligible` as in `scanned`.
    newest : layout
        A queue's newest page, if it has one.
    look : layout
        What the queue state knows of a squeue: `listed` = it has a listed page; its recency
        constant.
    root : layout
        The queue of a pool with the largest excess, or with the highest offer (policy `kelp`).
        `excess` is `at_budget` and above that its lines beyond the budget, or its offer; below
        `at_budget` the lines that are left of the budget; 0 when no queue has anything to give.
    offer : layout
        Policy `kelp`: the offer of `squeue`.
    sweep_constants : layout
        What a sweep holds while pages are in the priority unit: the step, the newest page, the
        recency constant as configured, and the queue's policy (`kelp`).
    search_facts : layout
        Of the queue at hand, `squeue`: its policy is `kelp`; `eligible`, it has a listed page of
        the pool that is served; `usable`, the list is its own and still good; `fresh`, the list was
        made for it in this search. `evict`: a pool asked for this search. Of that pool: its `root`,
        which has `offered` a page where that is above 1, and the queue that is `asking`.
    move : layout
        Another queue to search from.
    sweep_start : layout
        Payload of `SweepControl`.
    """

    def __init__(self, config: Config):
        super().__init__(config)
        c = config
        S = data.StructLayout
        candidate = {
            "kind": CLASS_BITS,
            "priority": SCORE_BITS,
            "page": c.page_bits,
            "last_step": STEP_BITS,
        }
        self.candidate = S(candidate)
        self.held_candidate = S({**candidate, "valid": 1})
        self.judged = S({"candidate": self.candidate, "eligible": 1})
        self.newest = S({"page": c.page_bits, "valid": 1})
        recency = {
            "tau_m": self.queue_config["tau_m"].shape,
            "tau_sh": self.queue_config["tau_sh"].shape,
        }
        tables = {"tables": 1} if config.select_tables else {}
        self.look = S(
            {"listed": 1, "pool": POOL_BITS, "newest": self.newest, "policy": 1, **recency} | tables
        )
        excess_bits = max(c.dram_line_bits, SCORE_BITS)
        self.at_budget = 1 << excess_bits
        self.root = S({"squeue": c.squeue_bits, "excess": excess_bits + 1})
        self.offer = S({"squeue": c.squeue_bits, "excess": SCORE_BITS})
        self.sweep_constants = S(
            {"step": STEP_BITS, "newest": self.newest, **recency, "kelp": 1} | tables
        )
        self.search_facts = S(
            {
                "squeue": c.squeue_bits,
                "kelp": 1,
                "eligible": 1,
                "usable": 1,
                "fresh": 1,
                "evict": 1,
                "root": c.squeue_bits,
                "offered": 1,
                "asking": c.squeue_bits,
            }
        )
        self.move = S({"valid": 1, "squeue": c.squeue_bits})
        self.sweep_start = S({"session": c.session_bits, "look": self.look})


class Turn(wiring.Signature):
    """Endpoint in lock-step → eviction engine. While `hold` was on in the cycle before, nothing new
    is begun. `evicting`: from a granted CLAIM to its RELEASE; `learning`: an access is still to
    reach policy `kelp`."""

    def __init__(self):
        super().__init__({"hold": Out(1), "evicting": In(1), "learning": In(1)})


class Lookup(wiring.Signature):
    """Evictor → queue state. `request`: a squeue; `answer`: what is known of it. One request at a
    time; the answer's payload keeps its value until the next answer."""

    def __init__(self, config: Config):
        look = EvictionLayouts(config).look
        super().__init__(
            {
                "request": Out(stream.Signature(config.squeue_bits)),
                "answer": In(stream.Signature(look, always_ready=True)),
            }
        )


class Offer(wiring.Signature):
    """Evictor → queue state. `request`: the excess of a queue of policy `kelp` from now on; `done`,
    a pulse: the roots have it."""

    def __init__(self, config: Config):
        offer = EvictionLayouts(config).offer
        super().__init__({"request": Out(stream.Signature(offer)), "done": In(1)})


class QueueView(wiring.Signature):
    """Queue state → evictor. `roots`: per pool, the queue furthest over its budget. `requester`:
    per pool, the queue of the latest demand that needs a frame. `entered`, `done`: events so far,
    modulo their width: a reader that has seen `entered` waits until `done` has come as far.
    `refreshing`: the excess of all queues is being worked out anew; `refreshed`, a pulse: it is
    begun with one of them, all in turn. `lookup`, `offer`: requests."""

    def __init__(self, config: Config):
        root, count = EvictionLayouts(config).root, event_count_bits(config)
        super().__init__(
            {
                "roots": Out(data.ArrayLayout(root, len(POOLS))),
                "requester": Out(data.ArrayLayout(config.squeue_bits, len(POOLS))),
                "entered": Out(count),
                "done": Out(count),
                "refreshing": Out(1),
                "refreshed": Out(1),
                "lookup": In(Lookup(config)),
                "offer": In(Offer(config)),
            }
        )


class SweepControl(wiring.Signature):
    """Evictor → sweep. `watch` names the queue; `start`, later, begins its sweep with what the
    queue state then knows. `step`: the session's as M3 has it, in every cycle from `watch` on.
    `busy`: a sweep is under way."""

    def __init__(self, config: Config):
        layouts = EvictionLayouts(config)
        super().__init__(
            {
                "watch": Out(stream.Signature(config.squeue_bits, always_ready=True)),
                "start": Out(stream.Signature(layouts.sweep_start, always_ready=True)),
                "step": Out(STEP_BITS),
                "busy": In(1),
            }
        )


class SweepList(wiring.Signature):
    """Sweep → evictor: what sweeps have found. `best`: head of the list; `take` removes it, `clear`
    empties the list while no sweep is under way. `step`: what the classes refer to."""

    def __init__(self, config: Config):
        super().__init__(
            {
                "best": Out(EvictionLayouts(config).held_candidate),
                "take": In(1),
                "clear": In(1),
                "step": Out(STEP_BITS),
            }
        )


class PolicyState(wiring.Signature):
    """State of policy `kelp` → evictor. `refresh`: the next queue to be valued anew, until
    `refreshed`. It may change while it waits."""

    def __init__(self, config: Config):
        self.refresh = data.StructLayout({"valid": 1, "squeue": config.squeue_bits})
        super().__init__({"refresh": Out(self.refresh), "refreshed": In(1)})


class Search(wiring.Signature):
    """Evictor → a policy. `moment`, and in the same cycle the policy's `verdict` where the moment
    asks for one; after a verdict WAIT there is no moment until another verdict comes. `facts`: of
    the queue at hand. `move`: with the verdict, to another queue."""

    def __init__(self, config: Config):
        layouts = EvictionLayouts(config)
        super().__init__(
            {
                "moment": Out(Moment),
                "facts": Out(layouts.search_facts),
                "verdict": In(Verdict),
                "move": In(layouts.move),
            }
        )


class EvictionsUnderWay(wiring.Signature):
    """Eviction slots → evictor. `free`: where the next CLAIM goes. `count`: per pool, evictions
    whose frame the pool does not count as free yet. Both follow a CLAIM by two cycles."""

    def __init__(self, config: Config):
        super().__init__(
            {
                "free": Out(data.StructLayout({"valid": 1, "slot": config.write_back_bits})),
                "count": Out(data.ArrayLayout(range(config.write_backs + 1), len(POOLS))),
            }
        )


class PageCheck(wiring.Signature):
    """Anyone → eviction slots. `working`, in the same cycle: an eviction works on `page`."""

    def __init__(self, config: Config):
        super().__init__({"page": Out(Layouts(config).page), "working": In(1)})


class MapRead(wiring.Signature):
    """Sweep → residency map. `request` for word `index` of `squeue`; where `granted` in its cycle,
    `word` follows in the next. A request may be withdrawn."""

    def __init__(self, config: Config):
        words = config.pages // word_pages(config)
        super().__init__(
            {
                "request": Out(
                    data.StructLayout(
                        {
                            "valid": 1,
                            "squeue": config.squeue_bits,
                            "index": (max(2, words) - 1).bit_length(),
                        }
                    )
                ),
                "granted": In(1),
                "word": In(word_pages(config)),
            }
        )
