# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Cycles of a layer, 1 ns each: by choice and gather near memory, and by plain reads.

Each constant says which figure of the RTL it is; docs/select_study.md, "The clock",
has the model.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from kelp_spec.select import CODED_LINES

__all__ = ["RTL", "Choice", "Layer", "Shape", "Timing"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a layer of a model is on the device."""

    kv_heads: int
    group: int  #: query heads of a KV head
    lines: int  #: of a token
    page_tokens: int = 16

    @property
    def code_lines(self) -> int:
        """Of a page's summary."""
        return -(-self.page_tokens * self.lines // CODED_LINES)

    @property
    def slot_bytes(self) -> int:
        """Of a page in the cold tier: its raw16 lines and a sector."""
        return (-(-2 * self.page_tokens * self.lines * 64 // 512) + 1) * 512


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one KV head's SELECT had to do."""

    pages: int  #: with summaries, the newest among them
    candidates: int
    looks: int  #: tokens of candidates whose keys are read
    chosen: int
    tokens: int  #: of the newest page
    rebuilt: int = 0  #: pages whose summary was made for it
    released: int = 0  #: slots that were given back for it


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Figures of the RTL, in cycles."""

    #: from a request to its answer: 64 of memory and 20 of the endpoint (docs/replay.md)
    answer: int = 84
    #: a host's look at an answer: 5 cycles, and half of the 7 between two looks
    register: int = 8
    #: between two lines of the SELECT region, written or read
    window: int = 4
    #: so many lines before the last of a head a host looks at the answer to the next
    ahead: int = 32
    #: one line in so many is a LOOK's while gathered lines of its session want every cycle
    #: (docs/design.md §1)
    share: int = 2
    #: latencies beside docs/select.md's formulas, of the RTL's phases (docs/select_study.md, "Held
    #: to the RTL"): from a doorbell to stage one, beside queries and their way to block form
    prepare: int = 7
    #: of a query's line into block form
    load: int = 14
    #: a line of a plan is walked through before stage one
    walk: int = 52
    #: codes that are scored in a cycle (`Config.select_lanes`)
    lanes: int = 16
    #: pages that are looked at in a cycle
    row: int = 8
    #: UNHOLD of a slot that is given back
    unhold: int = 1
    #: of stage one and the names
    name: int = 26
    #: from a LOOK, through the endpoint and a memory of 64 cycles, to the mass of its page
    look: int = 115
    #: of masses, of the HOLDs behind one another, and of the answer
    hold: int = 15
    tier_latency: int = 25_000
    tier_bytes: int = 14  #: a cycle

    def begin(self, shape: Shape, quota: int, most: int) -> Layer:
        """A layer of a step, from its first message on."""
        return Layer(self, shape, quota, most)

    def select(self, shape: Shape, c: Choice, quota: int) -> int:
        """SELECT of a KV head alone, from its doorbell to its answer."""
        layer = self.begin(shape, quota, c.chosen)
        return layer.serve(c) - layer.rung

    def asked(self, shape: Shape) -> int:
        """Lines that a KV head's SELECT takes to ask: queries, plan and doorbell."""
        return (shape.group + 1) * shape.lines + 1

    @staticmethod
    def masses(shape: Shape, candidates: int) -> int:
        """Cycles of the pass over masses: of the candidates, the first page and the newest."""
        return 2 * (candidates + 2) + 23 + shape.group

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


class _Port:
    """The one port to the lines: LOOKs in their order, and gathered lines in theirs, which go
    first but for one cycle in `share`."""

    def __init__(self, share: int):
        self.share = share
        self.now = 0.0  # everything before is settled
        self.gathers: deque[list[float]] = deque()  # (since when, lines)

    def gather(self, begin: float, lines: int) -> None:
        self.gathers.append([begin, lines])

    def look(self, begin: float, lines: float) -> float:
        """When the last of so many LOOKs has gone, which are there from `begin` on."""
        self._go(begin, 0)
        return self._go(math.inf, lines)

    def end(self) -> float:
        """When the last gathered line has gone, if no LOOK comes any more."""
        now, gathers = self.now, [list(each) for each in self.gathers]
        for begin, lines in gathers:
            now = max(now, begin) + lines
        return now

    def _go(self, until: float, looks: float) -> float:
        """On to `until`, or to the end of the LOOKs."""
        while self.now < until and (looks > 0 or until < math.inf):
            step = until - self.now
            gathers = self.gathers and self.gathers[0][0] <= self.now
            if self.gathers and not gathers:
                step = min(step, self.gathers[0][0] - self.now)
            mine = (1 / self.share if gathers else 1) if looks else 0
            if looks:
                step = min(step, looks / mine)
            if gathers:
                step = min(step, self.gathers[0][1] / (1 - mine))
                self.gathers[0][1] -= step * (1 - mine)
                if self.gathers[0][1] < 1e-6:
                    self.gathers.popleft()
            looks = looks - step * mine if looks - step * mine > 1e-6 else 0
            self.now += step
        return self.now


class Layer:
    """SELECTs of a layer's KV heads behind one another, whose pages the host gathers meanwhile.

    Cycles are from the layer's first message. `front`: until when the part that is before the keys
    is busy; `rung`: of the latest doorbell.
    """

    def __init__(self, timing: Timing, shape: Shape, quota: int, most: int):
        self.timing, self.shape, self.quota, self.most = timing, shape, quota, most
        self.front = self.rung = timing.written(shape)
        self._keys = self._rest = self._asked = 0.0
        self._port = _Port(timing.share)

    def serve(self, c: Choice, wait: int = 0) -> int:
        """The next KV head's SELECT: when its answer is there. `wait`: for the tier, before it
        chooses."""
        t, shape, port = self.timing, self.shape, self._port
        lines, page = shape.lines, shape.page_tokens * shape.lines
        self.rung += t.window * t.asked(shape)
        # The doorbell is checked; queries and the plan are loaded, and pages without a summary
        # looked for beside that; those are summarised when slots are given back and no other keys
        # are read, and beside that the plan is walked through.
        begun = max(self.front, self.rung) + t.prepare
        loaded = begun + t.load + (shape.group + 1) * lines
        looked = max(loaded, begun + -(-c.pages // t.row))
        released = looked + t.unhold * c.released
        if c.rebuilt:
            looked = port.look(max(released, self._keys), c.rebuilt * page) + t.look
        codes = shape.code_lines * CODED_LINES / t.lanes  # cycles of a page
        begun = max(looked, loaded + t.walk * lines)
        named = begun + c.pages * codes + self.quota + t.name
        # Slots are given back, and the first page's keys come, while pages are named.
        self._asked = port.look(max(looked, released, self._asked), page)
        self._asked = port.look(max(named, self._asked), (c.looks + c.tokens) * lines)
        self.front = math.ceil(max(named + c.candidates * codes, self._keys))
        self._keys = self._asked + t.look
        masses = t.masses(shape, c.candidates)
        self._rest = max(self._keys, self._rest) + wait + masses + c.chosen + t.hold
        self._gather(t.page_lines(shape, c.chosen, c.tokens))
        return math.ceil(self._rest)

    def _gather(self, lines: int) -> None:
        """The host has the answer, and gathers: right behind the pages of the head before, if it
        has it early enough."""
        t, before = self.timing, self._port.end()
        told = self._rest + t.register + t.window * t.told(self.most)
        if told > before - t.ahead:
            told = max(told, before + t.answer + t.window * t.told(self.most))
        self._port.gather(told, lines)

    def over(self) -> int:
        """When the last line is there; no SELECT comes any more."""
        return math.ceil(self._port.end()) + self.timing.answer


RTL = Timing()
