# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Choices of a whole text on the device, as a host makes them: a step's keys and values written, a
SELECT for each KV head of a layer, its answer read, its pages gathered (docs/select.md). The golden
model gets the same lines, and every line of every answer must be its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_golden.select_region import SelectRegion
from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BYTES
from kelp_spec.metadata import Op
from kelp_spec.registers import RegisterMap
from kelp_spec.select import (
    ANSWER_FIELDS,
    CHOSEN_FIELDS,
    record,
)
from kelp_spec.select_plan import plan_lines

from ..device import Descriptor, Driver, MemoryTiming, Pressure
from ..program import Program, Response
from .choosing_host import ChoosingHost, Head, Reads, padded
from .job import EXAMPLES

__all__ = ["PHASES", "Asked", "Chosen", "choices"]

#: What a layer's cycles go to, one behind the other. Up to the answer they are the first KV head's.
PHASES = (
    "compute, token, queries, doorbell",
    "to the first LOOK",
    "to the first candidate's LOOK",
    "LOOKs of candidates and newest page",
    "last LOOK to first HOLD",
    "HOLDs and answer, until it is seen",
    "rest of the answer, first request",
    "gathered lines are asked for",
    "between the pages of two heads",
    "last line's way",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What a host has and asks for. Arrays are float16; step t decodes token first + t."""

    q: np.ndarray  #: [steps, layers, query heads, head_dim]
    k: np.ndarray  #: [layers, kv_heads, tokens, head_dim]
    v: np.ndarray
    first: int
    most: int  #: pages beside the first and the newest
    target: int  #: a share, UQ0.16, times the query heads of a KV head
    m: int
    sh: int
    compute: int = 0  #: cycles of the host, a layer
    #: how keys are summarised, uint8 [layers, kv_heads, lines of a token, 64]; left out: as of the
    #: keys before the first step, and of its queries
    plans: np.ndarray | None = None


@dataclass(eq=False)
class Chosen:
    """What came of it, by step and layer, and by KV head."""

    cycles: np.ndarray  #: [steps, layers]: from the first message to the last answer, and compute
    select: np.ndarray  #: [steps, layers, kv_heads]: from the first doorbell to the answer
    candidates: np.ndarray  #: the same: pages scored beside the first and the newest
    looks: np.ndarray  #: tokens of these that were looked at
    rebuilt: np.ndarray  #: pages that were summarised
    lines: np.ndarray  #: that were gathered
    gather: np.ndarray  #: cycles from the first of them to the last
    pages: np.ndarray  #: [steps, layers, kv_heads, pages] bool
    phases: np.ndarray  #: [steps, layers, PHASES], whose sum is `cycles`
    answer_lines: int = 0  #: that were compared
    again: int = 0  #: heads whose pages were asked for twice, since the answer came too late
    wrong: int = 0
    examples: list[str] = field(default_factory=list)

    def differs(self, what: str) -> None:
        self.wrong += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(what)


class _Region(SelectRegion):
    """Which pages a SELECT looks at, and at how many of their tokens: those that it summarises,
    then from page 0 on candidates."""

    def _look(self, session, squeue, page, tokens, lines):
        self.looks.append((page, len(tokens)))
        return super()._look(session, squeue, page, tokens, lines)


@dataclass(eq=False)
class _Head(Head):
    """With what the golden model answers it."""

    expected: list[bytes]
    compared: bool = False


def _check(config: Config, a: Asked) -> None:
    """ValueError where a text does not fit."""
    steps, layers, heads, dim = a.q.shape
    kv_heads, lines = a.k.shape[1], -(-dim // ELEMENTS)
    group, queues, size = heads // kv_heads, layers * kv_heads, config.half_lines // lines
    pages = queues * -(-(a.first + steps) // size)
    free = RegisterMap(config).by_name["high_water"].reset  # frames that eviction keeps so
    for what, value, legal in (
        ("query heads of a KV head", group, group == config.select_heads),
        ("lines of a token", lines, lines <= config.select_lines and not lines & lines - 1),
        ("layers · KV heads", queues, queues <= config.queues),
        ("KV heads", kv_heads, kv_heads <= config.select_groups),
        ("pages chosen", a.most + 2, a.most + 2 <= config.select),
        ("tokens", a.first + steps, a.first + steps <= config.pages * size),
        ("pages", pages, pages <= config.frames[0] - free),
    ):
        if not legal:
            raise ValueError(f"{value} {what} do not fit configuration {config.name!r}")


def _plans(a: Asked) -> np.ndarray:
    """[layers, kv_heads, lines, 64]"""
    layers, kv_heads = a.k.shape[:2]
    shape = layers, kv_heads, -(-a.q.shape[-1] // ELEMENTS), LINE_BYTES
    if a.plans is not None:
        if a.plans.shape != shape:
            raise ValueError(f"plans of shape {a.plans.shape} are refused; legal: {shape}")
        return a.plans
    plans, group = np.empty(shape, np.uint8), a.q.shape[2] // kv_heads
    for layer, head in np.ndindex(shape[:2]):
        mine = slice(head * group, (head + 1) * group)
        plans[layer, head] = plan_lines(a.k[layer, head, : max(1, a.first)], a.q[0, layer, mine])
    return plans


class _Run(ChoosingHost):
    def __init__(self, config: Config, asked: Asked, memory, pressure, seed, goes_on=frozenset()):
        self.asked = asked
        steps, _, heads, _ = asked.q.shape
        self.group = heads // asked.k.shape[1]
        _check(config, asked)
        self.q, k, v = (padded(a) for a in (asked.q, asked.k, asked.v))
        driver = Driver(config, memory=memory, pressure=pressure, seed=seed)
        bell = {"most": asked.most, "target": asked.target, "m": asked.m, "sh": asked.sh}
        super().__init__(config, driver, k, v, _plans(asked), bell)
        self.golden = Endpoint(config)
        self.region = _Region(self.golden)
        self._open()
        #: heads whose pages follow those of the head before without a gap, (step, layer, head);
        #: heads whose answer was there before these were read
        self.goes_on, self.early = goes_on, set()
        at = steps, self.layers, self.kv_heads
        self.found = Chosen(
            np.zeros(at[:2], np.int64),
            *(np.zeros(at, np.int64) for _ in range(6)),
            np.zeros((*at, config.pages), bool),
            np.zeros((*at[:2], len(PHASES)), np.int64),
        )

    @property
    def _queues(self):
        return self.layers * self.kv_heads

    def _open(self):
        shape = {"kv_heads": self.kv_heads, "used_lines": self.size * self.lines}
        self.driver.open_session(0, Descriptor(layers=self.layers, **shape))
        for squeue in range(self.config.squeues):
            self.golden.configure(squeue, QueueConfig(), QueuePolicy())
        self.golden.apply(
            TrackerOp(Op.OPEN),
            descriptor=Session(used_queues=self._queues, used_pages=self.config.pages, **shape),
        )

    # - keys and values ----------------------------------------------------------------------------
    def _write_golden(self, layer, tokens):
        for queue, page, kv, line, row in self.placed(layer, tokens):
            self.golden.apply(
                TrackerOp(
                    Op.WRITE,
                    squeue=queue,
                    page=page,
                    kv_line=kv * self.config.half_lines + line,
                    write=1,
                    has_write=1,
                    origin=(row.tobytes(), (1 << LINE_BYTES) - 1),
                )
            )

    def history(self):
        """Everything before the first step."""
        for layer in range(self.layers):
            tokens = range(self.asked.first)
            addresses, rows = self.written(layer, tokens)
            self.driver.run(Program.writes(np.array(addresses, np.uint64), np.array(rows)))
            self._write_golden(layer, tokens)
        self.driver.settle()

    # - a layer ------------------------------------------------------------------------------------
    def _ask(self, step, layer, position):
        """What the host stores: the token, then each head's queries, plan and doorbell."""
        addresses, rows = self.written(layer, [position])
        self._write_golden(layer, [position])
        bells = []
        for head in range(self.kv_heads):
            mine = slice(head * self.group, (head + 1) * self.group)
            for line, row in self.asked_lines(layer, head, self.q[step, layer, mine]):
                addresses.append(self.base + LINE_BYTES * line)
                rows.append(row)
                self.region.write(line, row.tobytes(), 0)
            data = self.bell(step * self.layers + layer + 1, layer, head, position)
            bells.append((len(rows), data))
            addresses.append(self.base + LINE_BYTES * self.map.bell(0, head))
            rows.append(np.frombuffer(data, np.uint8))
        return Program.writes(np.array(addresses, np.uint64), np.array(rows)), bells

    def _expected(self, head, data):
        """The golden model's answer."""
        self.region.looks = []
        first = self.map.bell(0, head)
        self.region.write(first, data, 0)
        told = len(self.answer_addresses(head))
        return [self.region.read(first + n, 0) for n in range(told)], self.region.looks

    def _compare(self, head: _Head, lines):
        found = self.found
        if head.compared:
            return
        head.compared = True
        for n, (line, wanted) in enumerate(zip(lines, head.expected, strict=True)):
            found.answer_lines += 1
            if line.tobytes() != wanted:
                found.differs(
                    f"step, layer, head {head.place}: line {n} of the answer is "
                    + f"{line.tobytes().hex()}, not {wanted.hex()}"
                )

    def _head(self, step, layer, head, data, position) -> _Head:
        """A head's SELECT, as the golden model answers it."""
        found, place = self.found, (step, layer, head)
        expected, looks = self._expected(head, data)
        # The first page may be summarised, too, before it is scored.
        start = max(n for n, (page, _) in enumerate(looks) if page == 0)
        newest = position // self.size
        counts = [tokens for page, tokens in looks[start:] if page not in (0, newest)]
        found.rebuilt[place] = start
        found.candidates[place], found.looks[place] = len(counts), sum(counts)
        # What is gathered is what the golden model chose: a wrong answer is told already.
        header = record(ANSWER_FIELDS, expected[0])
        rows = b"".join(expected[1:])
        pages = [record(CHOSEN_FIELDS, rows[8 * n : 8 * n + 8]) for n in range(header["count"])]
        found.pages[place][[page["page"] for page in pages]] = True
        lines = self.page_lines(layer, head, header, pages, position)
        told = self.answer_addresses(head)
        return _Head(place, header["sequence"], told, *lines, expected)

    def layer(self, step, layer):
        d, found, position = self.driver, self.found, self.asked.first + step
        begun = d.time
        if self.asked.compute:
            d.elapse(self.asked.compute)
        program, bells = self._ask(step, layer, position)
        self.rung = d.run(program).accept_cycle[bells[0][0]]
        heads = [self._head(step, layer, n, data, position) for n, (_, data) in enumerate(bells)]
        if not self._poll(heads[0]):
            return
        reads, parts, early = Reads(), [], []
        for before, now in zip(heads, heads[1:], strict=False):
            reads.gather(before, now)
            if now.place in self.goes_on:
                early.append(now)
                continue
            seen = reads.run(d)
            parts += seen
            if now in self._told(seen):
                self.early.add(now.place)
            elif not self._poll(now):
                return
            reads = Reads()
        reads.gather(heads[-1])
        seen = reads.run(d)
        parts += seen
        told = self._told(seen)
        for head in early:
            asked = min(
                r.accept_cycle[at][0] for what, one, at, r in seen if (what, one) == ("pages", head)
            )
            if head in told and told[head] < asked:
                continue
            # Its lines were asked for before it was known which: that does not count.
            found.again += 1
            if not self._poll(head):
                return
            again = Reads()
            again.gather(head)
            parts = [part for part in parts if part[:2] != ("pages", head)] + again.run(d)
        spans = []
        for head in heads:
            mine = [(at, r) for what, one, at, r in parts if (what, one) == ("pages", head)]
            self._gathered(head, mine)
            asked = np.concatenate([r.accept_cycle[at] for at, r in mine])
            spans.append((asked.min(), asked.max()))
        end = max(r.response_cycle.max() for *_, r in parts) + 1
        found.cycles[step, layer] = end - begun
        self._phases(step, layer, begun, spans, end)

    def _phases(self, step, layer, begun, spans, end):
        """A layer's cycles by what they go to, from the commits of its first head's ops; `spans`:
        when each head's pages were asked for, the first line and the last."""
        result = self.driver.take_commits().result
        mine = result["op.squeue"] == layer * self.kv_heads
        kinds = result["op.kind"]
        looks, holds = (result.cycle[mine & (kinds == int(op))] for op in (Op.LOOK, Op.HOLD))
        # Pages that are summarised come before page 0, which never is.
        at = np.flatnonzero(result["op.page"][mine & (kinds == int(Op.LOOK))] == 0)
        seen = self.found.select[step, layer, 0] + self.rung
        named = looks[min(at[-1] + 1, len(looks) - 1)]
        ends = [begun, self.rung, looks[at[0]], named, looks[-1], holds[0], seen, spans[0][0]]
        between = sum(b[0] - a[1] for a, b in zip(spans, spans[1:], strict=False))
        asked = spans[-1][1] - spans[0][0] - between
        self.found.phases[step, layer] = [*np.diff(ends), asked, between, end - spans[-1][1]]

    def _told(self, parts) -> dict[_Head, int]:
        """Of each head whose answer is there and whole, in which cycle it was."""
        told = {}
        for what, head, at, result in parts:
            if what != "told" or not head.is_done(result.data[at][0]):
                continue
            cycle = int(result.response_cycle[at].max())
            if not self.found.select[head.place]:
                self.found.select[head.place] = result.response_cycle[at][0] - self.rung
            if at.stop - at.start == len(head.told):
                told[head] = cycle
                self._compare(head, result.data[at])
        return told

    def _poll(self, head: _Head) -> bool:
        """Compare the answer, once it is there; whether it came."""
        answer, found = self.poll(head), self.found
        if answer is None:
            found.differs(f"step, layer, head {head.place}: no answer")
            return False
        if not found.select[head.place]:
            found.select[head.place] = answer[1] - self.rung
        self._compare(head, answer[0])
        return True

    def _gathered(self, head: _Head, parts):
        """The lines of a head's pages, in parts."""
        response, data, cycles = (
            np.concatenate([getattr(result, name)[at] for at, result in parts])
            for name in ("response", "data", "response_cycle")
        )
        self.found.lines[head.place] = len(cycles)
        self.found.gather[head.place] = cycles.max() - cycles.min() + 1
        right = (response == Response.DATA) & (data == head.wanted).all(axis=1)
        if not right.all():
            self.found.differs(f"{head.place}: {(~right).sum()} of {len(right)} gathered lines")


def choices(
    config: Config,
    asked: Asked,
    *,
    memory: MemoryTiming = MemoryTiming(),
    pressure: Pressure = Pressure(),
    seed: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Chosen:
    """A text's steps on the device of `config`, everything resident, layer after layer: a layer's
    answers are read and its pages gathered, head after head, before the next layer is asked for.

    A host that looks all the time goes on with a head's pages right behind those of the one before
    where it has the answer by then. Here requests are made before the cycle in which that shows, so
    the text runs twice: without going on, which tells where a host would have, and then so; what
    is returned is of the second run, or of the first where that one found a fault.

    ValueError where the text does not fit the configuration. `progress` hears of each step, those
    of both runs.
    """
    steps, early = len(asked.q), frozenset()
    for done in (0, steps):
        run = _Run(config, asked, memory, pressure, seed, early)
        run.history()
        for step in range(steps):
            for layer in range(run.layers):
                run.layer(step, layer)
            if progress is not None:
                progress(done + step + 1)
        run.driver.close()
        if run.found.wrong:
            break
        early = frozenset(run.early)
    return run.found
