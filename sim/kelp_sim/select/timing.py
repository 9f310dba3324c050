# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Cycles of a layer, 1 ns each: by choice and gather near memory, and by plain reads.

Each constant says which figure of the RTL it is; docs/select.md, "What it is worth with little
memory", has the model.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RTL", "Choice", "Shape", "Timing"]


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


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Figures of the RTL, in cycles."""

    #: from a request to its answer: 64 of memory and 20 of the endpoint (docs/replay.md)
    answer: int = 84
    #: the same where no memory is read: `hit_latency` of `kelp bench` less its memory
    register: int = 20
    #: lines a cycle that hits and gathers are answered with (tests/hw/test_choice.py prints 1.0)
    gather: float = 1.0
    #: latencies of a choice's passes together, beside docs/select.md's formulas, with a memory of
    #: 64 cycles (tests/hw/select/test_select_engine.py, tests/hw/test_choice.py)
    choice: int = 250
    tier_latency: int = 25_000
    tier_bytes: int = 14  #: a cycle

    def select(self, shape: Shape, c: Choice, quota: int) -> int:
        """SELECT of a KV head, from its doorbell to its answer."""
        lines, tokens = shape.lines, shape.page_tokens
        # The first page's keys come meanwhile.
        first = max(c.pages * lines + 2 * quota, tokens * lines)
        second = c.candidates * tokens * lines + c.tokens * lines
        masses = 2 * (c.candidates + 2) + 50 + shape.group
        rebuild = c.rebuilt * tokens * lines
        return rebuild + first + second + masses + c.chosen + self.choice

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
        """A layer's cycles from [(cycles of SELECT, lines gathered)] of its KV heads: the engine
        serves one after another, the host gathers one head's pages while the next is chosen."""
        engine = self.written(shape) + self.asked(shape) + self.register
        link = self.written(shape) + self.asked(shape) * len(heads)
        for cycles, lines in heads:
            engine += cycles
            told = engine + self.register + self.told(most)
            link = max(link, told) + int(lines / self.gather)
        return link + self.answer


RTL = Timing()
