# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a device does with a SELECT, and how it translates GATHER addresses (docs/select.md): lines
of the region, one choice after another, slots. Every look at a line and every protection is an op
of the endpoint."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.metadata import Event, Op, Outcome
from kelp_spec.policy2 import COST
from kelp_spec.select import (
    ANSWER_FIELDS,
    BELL_FIELDS,
    CHOSEN_FIELDS,
    Refusal,
    SelectMap,
    SelectStatus,
    SlotState,
    record,
    record_bytes,
)

from . import codec
from .endpoint import Endpoint
from .lines import POISONED, ZEROS
from .ops import Op as TrackerOp
from .select import (
    Blocks,
    choose_pages,
    name_pages,
    of_host,
    of_stored,
    plan_of,
    summary,
)

__all__ = ["Bell", "Built", "Decided", "Holds", "SelectRegion", "Waits"]


class Holds(NamedTuple):
    """A question of a SELECT: which summary holds for tokens of so many lines of a page? The answer
    is its codes, uint32 [tokens, lines], or None."""

    page: int  #: squeue · pages + page
    lines: int


class Decided(NamedTuple):
    """What became of an op, and of a LOOK the version of its line."""

    outcome: int
    version: int | None


class Built(NamedTuple):
    """What a SELECT made: from now on a page's summary holds, for tokens of so many lines; of a
    page that was not there for none, in the place of whatever held."""

    page: int
    lines: int
    summary: np.ndarray


class Waits(NamedTuple):
    """A question of a SELECT: does it wait for pages that it wants? When they have landed, or its
    time is over, it chooses again; where its time is over by now, it does not."""

    squeue: int
    pages: list[int]
    tries: int  #: how often it has waited


class Bell(dict):
    """A doorbell's fields by name, as attributes."""

    __getattr__ = dict.__getitem__


@dataclass
class _Queue:
    """Slots of a (session, queue): the pages chosen, and what became of each."""

    pages: list[tuple[int, SlotState]] = field(default_factory=list)
    generation: int = 0


class SelectRegion:
    """The SELECT region and the slots of one device.

    Parameters
    ----------
    endpoint : Endpoint
        Of a configuration with `select`.
    apply : callable, optional
        Carries out an op and returns its Result; by default `endpoint.apply`.
    fetch : callable, optional
        Asks the prefetcher for [(squeue, page)], once for a choice.
    wait : callable, optional
        Answers `Waits`; by default nobody waits.
    on_event : callable, optional
        Called with (Event, ld_id, squeue, page, argument) of what is refused.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        apply: Callable | None = None,
        on_event: Callable | None = None,
        fetch: Callable | None = None,
        wait: Callable | None = None,
    ):
        self._wait = wait or (lambda waits: False)
        self._fetch = fetch or (lambda pages: None)
        self._on_event = on_event or (lambda *_: None)
        self.endpoint, self.config = endpoint, endpoint.config
        self.map = SelectMap(self.config)
        self._apply = apply or endpoint.apply
        blocks = range(1 << self.map.offset_bits - self.map.half_bits - 1)
        size = 64 << self.map.half_bits
        self._queries = [bytearray(size) for _ in blocks]
        self._answers = [bytearray(size) for _ in blocks]
        self.queues = [_Queue() for _ in range(self.config.squeues)]
        self._layers: dict[int, int] = {}  # session → layer of its slots

    # - the region ---------------------------------------------------------------------------------
    def read(self, line: int, ld_id: int) -> bytes:
        """A line of the region. Zeros where nothing was answered yet, or to anyone but the
        session's owner."""
        block, upper, at = self._place(line)
        if not self._owner(line, ld_id) or not upper:
            return bytes(64)
        return bytes(self._answers[block][64 * at : 64 * at + 64])

    def write(self, line: int, data: bytes, ld_id: int, *, whole: bool = True) -> None:
        """A line of the region: of a query or a plan, or the doorbell, which is answered at once.
        `whole`: not in part, and not poisoned; a query that is not is all NaN, and a plan none."""
        block, upper, at = self._place(line)
        if not self._owner(line, ld_id):
            return
        if not upper:
            self._queries[block][64 * at : 64 * at + 64] = data if whole else b"\xff" * 64
        elif at == 0:
            self._run(self.steps(block, data, whole=whole))

    def steps(self, block: int, data: bytes, *, whole: bool = True) -> Generator:
        """What a doorbell has done, step by step: yields an op, takes what was Decided; `Holds`,
        and takes the answer; `Built`; `Waits`, and takes whether it does. In the end its answer
        stands in the region."""
        bell = Bell(record(BELL_FIELDS, data))
        session = block >> self.map.group_bits
        refusal = self._refusal(session, bell) if whole else Refusal.BELL
        lines = self._rows(block, bell)
        self._answers[block][:] = yield from self._answer(session, bell, refusal, lines)

    def _run(self, steps: Generator) -> None:
        """Carries out what happens here and now."""
        summaries, reply = self.endpoint.summaries, None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration:
                return
            if isinstance(step, Holds):
                lines, found = summaries.get(step.page, (0, None))
                reply = found if lines == step.lines else None
            elif isinstance(step, Built):
                reply = None
                if step.lines:
                    summaries[step.page] = step.lines, step.summary
                else:
                    summaries.pop(step.page, None)
            elif isinstance(step, Waits):
                reply = self._wait(step)
            else:
                outcome = self._apply(step).outcome
                reply = Decided(outcome, self.endpoint.version)

    def ended(self, session: int) -> None:
        """The session closes: nothing that it was answered is left, nor are its slots."""
        for group in range(self.config.select_groups):
            block = session << self.map.group_bits | group
            for lines in (self._queries, self._answers):
                lines[block][:] = bytes(len(lines[block]))
        self.give_back(session)

    def page_of(self, session: int, queue: int, generation: int, slot: int) -> int | None:
        """The page that a GATHER address means; None where there is none."""
        if session >= self.config.sessions or queue >= self.config.queues:
            return None
        at = self.queues[session * self.config.queues + queue]
        if generation != at.generation % (1 << self.config.generation_bits):
            return None
        page, state = at.pages[slot] if slot < len(at.pages) else (0, SlotState.ABSENT)
        return page if state == SlotState.HELD else None

    def _place(self, line):
        half = self.map.half_bits
        return line >> half + 1, line >> half & 1, line & (1 << half) - 1

    def _owner(self, line, ld_id):
        session = line >> self.map.offset_bits - self.config.session_bits
        if session >= self.config.sessions:
            self._on_event(Event.CLOSED_SESSION, ld_id, 0, 0, 0)
            return False
        held = self.endpoint.tracker.sessions[session]
        closed = not held.open or held.closing
        if closed or held.ld_id != ld_id:
            event = Event.CLOSED_SESSION if closed else Event.FOREIGN_LD
            self._on_event(event, ld_id, session * self.config.queues, 0, 0)
            return False
        return True

    # - one choice ---------------------------------------------------------------------------------
    def _refusal(self, session, bell) -> Refusal:
        held, c = self.endpoint.tracker.sessions[session], self.config
        if bell.release:
            return Refusal.NONE
        if bell.queue >= held.used_queues:
            return Refusal.QUEUE
        if bell.newest >= held.used_pages:
            return Refusal.PAGE
        if not 1 <= bell.lines <= c.select_lines or held.used_lines % bell.lines:
            return Refusal.LINES
        if bell.lines & bell.lines - 1:
            return Refusal.LINES
        if not 1 <= bell.tokens * bell.lines <= held.used_lines:
            return Refusal.TOKENS
        if bell.most > c.select - 2:
            return Refusal.COUNT
        return Refusal.NONE

    def _rows(self, block, bell) -> np.ndarray:
        """The group's queries and behind them the plan as the host wrote them, uint8 [heads + 1,
        lines, 64]."""
        rows = np.frombuffer(bytes(self._queries[block]), np.uint8).reshape(-1, LINE_BYTES)
        rows = rows[: self.map.query_lines].reshape(-1, self.config.select_lines, LINE_BYTES)
        return rows[:, : max(1, min(bell.lines, rows.shape[1]))]

    def _answer(self, session, bell, refusal, rows) -> Generator:
        held, at = self.endpoint.tracker.sessions[session], 0
        generations = 1 << self.config.generation_bits
        chosen, wanted, absent, missing = [], [], 0, 0
        if not refusal and bell.release:
            yield from self._give_back(session)
        elif not refusal:
            query, plan = of_host(rows[:-1].view("<u2"), held.host_type), plan_of(rows[-1])
            if query.nan.any():
                refusal = Refusal.QUERY_NAN
            elif plan is None:
                refusal = Refusal.PLAN
            else:
                at = session * self.config.queues + bell.queue
                chosen, absent, choice = yield from self._chosen(session, at, bell, query, plan)
                missing, wanted = choice.missing, self._wanted(bell, choice)
        if refusal:
            queue = bell.queue if bell.queue < held.used_queues else 0
            named = session * self.config.queues + queue, bell.newest % self.config.pages
            self._on_event(Event.SELECT_REFUSED, held.ld_id, *named, int(refusal))
        header = {
            "sequence": bell.sequence,
            "status": SelectStatus.REFUSED if refusal else SelectStatus.DONE,
            "refusal": refusal,
            "count": len(chosen),
            "absent": absent,
            "generation": self.queues[at].generation % generations if chosen else 0,
            "missing": missing,
            "wanted": len(wanted),
        }
        entries = dict(enumerate(chosen))
        entries |= dict(zip(self.map.named_places(len(chosen), len(wanted)), wanted, strict=False))
        lines = bytearray(64 << self.map.half_bits)
        lines[:64] = record_bytes(ANSWER_FIELDS, header, 64)
        for place, (page, mass, state) in entries.items():
            tokens = bell.tokens if page == bell.newest else held.used_lines // bell.lines
            told = {"page": page, "state": state, "tokens": tokens, "mass": mass}
            first = 64 + 8 * place
            lines[first : first + 8] = record_bytes(CHOSEN_FIELDS, told)
        return bytes(lines)

    def _wanted(self, bell, choice) -> list[tuple[int, int, SlotState]]:
        """Entries of the pages that a choice wants and did not take. The first and the newest
        page are taken wherever they are, but by a guess, which knows no mass of theirs."""
        always, found = (0, bell.newest), []
        for page, mass in zip(choice.wanted.tolist(), choice.needed.tolist(), strict=True):
            if bell.speculative or page not in always:
                found.append((page, 0 if page in always else mass, SlotState.WANTED))
        return found

    def _chosen(self, session, squeue, bell, query, plan):
        """What a SELECT that is not refused chooses in the end, after it has waited: [(page, mass,
        state)], how many of the pages scored were not there, and the choice."""
        tries = 0
        while True:
            chosen, absent, choice = yield from self._choose(session, squeue, bell, query, plan)
            wanted = choice.wanted.tolist()
            if not (self._above(bell, choice) and wanted):
                break
            if not (yield Waits(squeue, wanted, tries)):
                break
            tries += 1
        if self.endpoint.tables is not None and not bell.speculative:
            self._turn_over(session, squeue, bell.newest)
        return chosen, absent, choice

    def _above(self, bell, choice) -> bool:
        """More is missing than it puts up with."""
        waits = self.config.select_estimates and bell.waits and not bell.speculative
        return bool(waits and choice.missing > bell.wait_above)

    def _choose(self, session, squeue, bell, query, plan):
        """A choice, once: [(page, mass, state)], how many of the pages scored were not there, and
        the choice."""
        if not bell.speculative:
            if self._layers.get(session, bell.layer) != bell.layer:
                yield from self._give_back(session)
            else:
                yield from self._give_back_queue(session, squeue)
            self._layers[session] = bell.layer
        held = self.endpoint.tracker.sessions[session]
        codes = yield from self._summaries(session, squeue, bell, plan)
        quota = self.config.select_quota
        named = name_pages(query, codes, plan, quota=quota, m=bell.m, sh=bell.sh)
        scored, absent = {}, []
        for page in np.flatnonzero(named.scored).tolist():
            tokens = bell.tokens if page == bell.newest else held.used_lines // bell.lines
            at = named.looked(page, tokens)
            scored[page], there = yield from self._look(session, squeue, page, at, bell.lines)
            absent.extend(() if there else (page,))
        estimates = self.config.select_estimates
        choice = choose_pages(
            query,
            named,
            scored,
            target=bell.target,
            most=bell.most,
            m=bell.m,
            sh=bell.sh,
            absent=absent if estimates else None,
        )
        queue, chosen = self.queues[squeue], []
        if bell.speculative:
            if self.endpoint.tables is not None:
                self._guess(squeue, bell, choice)
            if self.endpoint.tables is None or not bell.tables:
                self._fetch_for(squeue, bell, absent, choice)
            return chosen, len(absent), choice
        for page, mass in zip(choice.pages.tolist(), choice.masses.tolist(), strict=True):
            outcome = (yield self._op(Op.HOLD, session, squeue, page)).outcome
            state = {
                Outcome.DONE: SlotState.HELD,
                Outcome.VOID: SlotState.ABSENT,
                Outcome.REFUSED: SlotState.NO_ROOM,
            }[Outcome(outcome)]
            chosen.append((page, mass, state))
            queue.pages.append((page, state))
        if self.endpoint.tables is not None:
            self.endpoint.tables.mark(squeue, choice.pages.tolist() + choice.wanted.tolist())
        if bell.fetch or self._above(bell, choice):
            self._fetch_for(squeue, bell, absent, choice)
        return chosen, len(absent), choice

    def _guess(self, squeue, bell, choice) -> None:
        """Tables learn what a guessed query would choose or want, and may say what is fetched: as
        many pages as there is credit for."""
        tables, wanted = self.endpoint.tables, choice.wanted.tolist()
        masses = dict(zip(choice.pages.tolist(), choice.masses.tolist(), strict=True))
        masses |= dict(zip(wanted, choice.needed.tolist(), strict=True))
        masses |= {page: 0 for page in wanted if page in (0, bell.newest)}
        tables.guessed(squeue, masses, bell.newest)
        if bell.tables:
            most = max(0, -(-tables.credit(squeue // self.config.queues) // COST))
            early = tables.early(squeue, wanted, bell.newest)[:most]
            self._fetch([(squeue, page) for page, _ in early])

    def _turn_over(self, session, squeue, newest) -> None:
        """Tables learn what the queue's choices took or wanted since its turn before: one that
        waited, and whose place another took, counts as well."""
        tables, tracker = self.endpoint.tables, self.endpoint.tracker
        read = {page for page in tables.marked[squeue] if page <= newest}
        tables.frames = sum(pool.used for pool in tracker.pools)
        tables.turn_over(squeue, read, newest, tracker.sessions[session].step)

    def _fetch_for(self, squeue, bell, absent, choice) -> None:
        """Asks for what a choice did not find: all that it waits for, else what has the mass."""
        if self.config.select_estimates:
            weighs = choice.needed >= (0 if self._above(bell, choice) else bell.fetch_from)
            absent = choice.wanted[weighs].tolist()
        self._fetch([(squeue, page) for page in absent])

    def _summaries(self, session, squeue, bell, plan) -> Generator:
        """Of all pages to the newest, uint32 [pages, tokens, lines]; those that have none are
        summarised now. The first page has one where it may be absent and count."""
        used = self.endpoint.tracker.sessions[session].used_lines
        codes = np.zeros((bell.newest + 1, used // bell.lines, bell.lines), np.uint32)
        for page in range(0 if self.config.select_estimates else 1, bell.newest):
            key = squeue * self.config.pages + page
            found = yield Holds(key, bell.lines)
            if found is None:
                every = np.arange(used // bell.lines)
                keys, there = yield from self._look(session, squeue, page, every, bell.lines)
                found = summary(keys, plan)
                yield Built(key, bell.lines if there else 0, found)
            codes[page] = found
        return codes

    def _look(self, session, squeue, page, tokens, lines) -> Generator:
        """The keys of some tokens of a page [tokens, lines], and whether the page was there; a line
        that was not, or is poisoned, is `nan`."""
        versions = []
        for line in (tokens[:, None] * lines + np.arange(lines)).ravel().tolist():
            found = yield self._op(Op.LOOK, session, squeue, page, line)
            versions.append(found.version if found.outcome == Outcome.DONE else None)
        host_type = self.endpoint.tracker.sessions[session].host_type
        codes = self.endpoint.lines.resolve(
            [ZEROS if v is None or v == POISONED else v for v in versions]
        )
        payload, scale = codec.encode(codes, host_type, Format.INT8)
        nan = np.array([v is None or v == POISONED for v in versions])
        scale = np.where(nan, 255, scale)
        keys = of_stored(payload, scale, host_type, Format.INT8)
        parts = (part.reshape(-1, lines, *part.shape[1:]) for part in keys)
        return Blocks(*parts), all(v is not None for v in versions)

    @staticmethod
    def _op(kind, session, squeue, page, line=0):
        return TrackerOp(kind, session=session, squeue=squeue, page=page, kv_line=line)

    # - slots --------------------------------------------------------------------------------------
    def give_back(self, session: int) -> None:
        """All slots of a session, as after the time that its last SELECT gave them."""
        self._run(self._give_back(session))

    def _give_back(self, session):
        for queue in range(self.config.queues):
            yield from self._give_back_queue(session, session * self.config.queues + queue)
        self._layers.pop(session, None)

    def _give_back_queue(self, session, squeue):
        queue = self.queues[squeue]
        if not queue.pages:
            return
        for page, state in queue.pages:
            if state == SlotState.HELD:
                yield self._op(Op.UNHOLD, session, squeue, page)
        queue.pages, queue.generation = [], queue.generation + 1
