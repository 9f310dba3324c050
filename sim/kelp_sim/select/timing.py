# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Cycles of a layer, 1 ns each: by choice and gather near memory, and by plain reads.

Each constant says which figure of the RTL it is; docs/select.md, "What it is worth with little
memory", has the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["RTL", "Busy", "Choice", "Shape", "Timing"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a layer of a model is on the device."""

    kv_heads: int
    group: int  #: query heads of a KV head
    lines: int  #: of a token
    page_tokens: int = 16

    @property
    def slot_bytes(self) -> int:
        """Of a page in the cold tier: its raw16 lines and a sector."""
        return (-(-2 * self.page_tokens * self.lines * 64 // 512) + 1) * 512


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one KV head's SELECT had to do."""

    pages: int  #: with summaries, the newest among them
    candidates: int
    chosen: int
    tokens: int  #: of the newest page
    rebuilt: int = 0  #: pages whose summary was made for it
    released: int = 0  #: slots that were given back for it


class Busy(NamedTuple):
    """Until when the parts of the engine are busy: what a SELECT does before its keys, with the
    keys, and behind them."""

    front: int
    keys: int
    rest: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Figures of the RTL, in cycles."""

    #: from a request to its answer: 64 of memory and 20 of the endpoint (docs/replay.md)
    answer: int = 84
    #: a host's look at an answer: 5 cycles, and half of the 7 between two looks
    register: int = 8
    #: between two lines of the SELECT region, written or read
    window: int = 4
    #: lines a cycle that hits and gathers are answered with (`kelp bench --only select`)
    gather: float = 1.0
    #: latencies beside docs/select.md's formulas, added up from those of the blocks: from a
    #: doorbell to the first look for a summary, beside check, queries and slots given back
    prepare: int = 25
    #: UNHOLD of a slot that is given back
    unhold: int = 2
    #: of stage one and the names
    name: int = 25
    #: from a LOOK, through the endpoint and a memory of 64 cycles, to the mass of its page
    look: int = 115
    #: of masses, of the HOLDs behind one another, and of the answer
    hold: int = 35
    tier_latency: int = 25_000
    tier_bytes: int = 14  #: a cycle

    def select(self, shape: Shape, c: Choice, quota: int) -> int:
        """SELECT of a KV head alone, from its doorbell to its answer."""
        return self.serve(Busy(0, 0, 0), shape, c, quota).rest

    def serve(self, busy: Busy, shape: Shape, c: Choice, quota: int, wait: int = 0) -> Busy:
        """SELECT of a KV head behind those that are under way; its answer is there when `rest` is
        over. `wait`: for the tier, before it chooses."""
        lines, page = shape.lines, shape.page_tokens * shape.lines
        # Which page has no summary, a cycle a page; those are made when no other keys are read.
        looked = busy.front + self.prepare + c.pages
        # The doorbell is checked, queries are loaded, slots given back.
        looked += shape.page_tokens + 2 * shape.group * lines + self.unhold * c.released
        if c.rebuilt:
            looked = max(looked, busy.keys) + c.rebuilt * page + self.look
        named = looked + c.pages * lines + 2 * quota + self.name
        # The first page's keys come while pages are named.
        begun = max(looked, busy.keys)
        keys = max(begun + page, named) + c.candidates * page + c.tokens * lines + self.look
        masses = 2 * (c.candidates + 2) + 50 + shape.group
        rest = max(keys, busy.rest) + wait + masses + c.chosen + self.hold
        return Busy(max(named + c.candidates * lines, begun), keys, rest)

    def asked(self, shape: Shape) -> int:
        """Lines that a KV head's SELECT takes to ask: queries and doorbell."""
        return shape.group * shape.lines + 1

    @staticmethod
    def told(most: int) -> int:
        """Lines of an answer with ``most`` pages."""
        return 1 + -(-(most + 2) // 8)

    @staticmethod
    def page_lines(shape: Shape, chosen: int, tokens: int) -> int:
        """Lines of ``chosen`` pages, K and V, one of them the newest."""
        return 2 * shape.lines * ((chosen - 1) * shape.page_tokens + tokens)

    def written(self, shape: Shape) -> int:
        """Lines of the step's token."""
        return 2 * shape.lines * shape.kv_heads

    def plain(self, shape: Shape, lines: int) -> int:
        """A layer of plain reads with everything resident."""
        return lines + self.written(shape) + self.answer

    def layer(self, shape: Shape, heads: list[tuple[int, int]], most: int) -> int:
        """A layer's cycles from [(cycles from the answer before, lines gathered)] of its KV heads:
        the host gathers one head's pages while the next is chosen."""
        engine = self.written(shape) + self.window * self.asked(shape)
        link = self.written(shape) + self.window * self.asked(shape) * len(heads)
        for cycles, lines in heads:
            engine += cycles
            told = engine + self.register + self.window * self.told(most)
            link = max(link, told) + int(lines / self.gather)
        return link + self.answer


RTL = Timing()
