# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Whether a free-running endpoint chooses what it has to (docs/select.md): each LOOK, HOLD and
UNHOLD that it commits is the one that the SELECT under way asks for, by the lines as they are
then."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field

from kelp_spec.metadata import Op
from kelp_spec.select import BELL_FIELDS, record

from ..ops import Op as TrackerOp
from ..select_region import Built, Decided, Holds, SelectRegion, Waits

__all__ = ["SelectAudit"]

_CHOICES = (Op.LOOK, Op.HOLD, Op.UNHOLD)


class _Summaries(dict):
    """Summaries of an endpoint; what is dropped is told to the SELECTs that are under way."""

    def __init__(self):
        super().__init__()
        self.followed: list[_Followed] = []
        self.touched: set = set()  #: pages whose keys were written since their first LOOK

    def pop(self, key, default=None):
        self.touched.add(key)
        found = super().pop(key, default)
        for select in self.followed:
            select.dropped[key] = found or select.dropped.get(key)
        return found

    def __bool__(self):
        return True  # writes are of interest even where no summary holds


@dataclass(eq=False)
class _Followed:
    """A SELECT that was rung and is not over."""

    block: int
    session: int
    squeue: int
    newest: int
    speculative: bool
    steps: Generator
    begun: bool = False
    looked: bool = False
    reply: Decided | None = None  #: to its last op
    ahead: TrackerOp | None = None  #: its next op, where it was asked for it already
    waits: Waits | None = None  #: for these pages, if it is heard of again
    #: since its last op: page → the summary that held, or None
    dropped: dict = field(default_factory=dict)


class SelectAudit:
    """Follows SELECTs through the commit stream: one, or several of queues of their own, whose ops
    may come in between one another's. Each op is that of its queue's SELECT; slots of other queues
    are given back by the SELECT that begins.

    The endpoint asks whether a summary holds some time between two ops of its choice: it may go
    either way where a key was written in between. What its next op is says which way it went.

    Parameters
    ----------
    region : SelectRegion
        Of the audited golden endpoint; the audit applies that endpoint's ops.
    wrong : callable
        Called with (what, the device's, the golden model's) of each difference.
    """

    def __init__(self, region: SelectRegion, wrong: Callable):
        self.region, self._wrong = region, wrong
        self._summaries = region.endpoint.summaries = _Summaries()
        self._order: deque[int] = deque()  # queues whose SELECTs begin next
        #: queue → pages whose first line is looked at from now on, as the commit stream has them
        self._looks: dict[int, deque[int]] = defaultdict(deque)
        #: ops of choices so far; summaries that were dropped while a SELECT asked for them
        self.choices = self.raced = 0
        self.waited = 0  #: how often a SELECT waited
        self._ends = False

    @property
    def _followed(self) -> list[_Followed]:
        return self._summaries.followed

    def ring(self, block: int, data: bytes, *, whole: bool = True) -> None:
        """A doorbell; the SELECTs before it are over."""
        self.finish()
        select = self._follow(block, data, whole)
        self._order.append(select.squeue)

    def ring_all(self, bells: dict[int, bytes]) -> None:
        """Doorbells by block, each of a queue of its own, of which none is answered before the last
        of them stands; the SELECTs before them are over."""
        self.finish()
        for block, data in bells.items():
            self._follow(block, data, True)

    def coming(self, looks: Iterable[TrackerOp]) -> None:
        """The LOOKs of the commit stream that is fed next."""
        for op in looks:
            if op.kv_line == 0:
                self._looks[op.squeue].append(op.page)

    def served(self, squeues: Iterable[int]) -> None:
        """In which order they have LOOKs in the commit stream, which is fed next. What was rung
        together is served block after block."""
        waiting = {select.squeue: select.block for select in self._followed if not select.begun}
        self._order.extend(squeue for squeue in dict.fromkeys(squeues) if squeue in waiting)
        blocks = [waiting[squeue] for squeue in self._order]
        if sum(b < a for a, b in zip(blocks, [*blocks[1:], *blocks[:1]], strict=True)) > 1:
            self._wrong("order of SELECTs", blocks, sorted(blocks))

    def _follow(self, block: int, data: bytes, whole: bool) -> _Followed:
        session = block >> self.region.map.group_bits
        bell = record(BELL_FIELDS, data)
        squeue = session * self.region.config.queues + bell["queue"]
        steps = self.region.steps(block, data, whole=whole)
        guess = bool(bell["speculative"])
        self._followed.append(_Followed(block, session, squeue, bell["newest"], guess, steps))
        return self._followed[-1]

    def _begins(self) -> _Followed | None:
        """The SELECT that begins next."""
        squeue = self._order.popleft() if self._order else None
        for select in self._followed:
            if select.squeue == squeue and not select.begun:
                select.begun = True
                return select
        return None

    def _whose(self, op: TrackerOp) -> Generator:
        """SELECTs that an op may be of, the likeliest first."""
        begun = [select for select in self._followed if select.begun]
        session = op.squeue // self.region.config.queues
        for select in reversed(begun):
            gives_back = op.kind == Op.UNHOLD and not select.looked and select.session == session
            if select.squeue == op.squeue or gives_back:
                yield select
        if (select := self._begins()) is not None:
            yield select

    def op(self, op: TrackerOp, decided: Decided) -> None:
        """An op that was committed, and what the golden endpoint, which has applied it, decided."""
        if op.kind == Op.PREFETCH:
            self._fetched(op)
        if op.kind not in _CHOICES:
            return
        for select in self._whose(op):
            wanted = self._next(select, op)
            if wanted is not None:
                break
        else:
            self._wrong("choice", Op(op.kind).name, "no SELECT is under way")
            return
        found = int(op.kind), op.squeue, op.page, op.kv_line if op.kind == Op.LOOK else 0
        golden = int(wanted.kind), wanted.squeue, wanted.page, wanted.kv_line
        if found != golden:
            self._wrong("op of a choice", found, golden)
            self._followed.remove(select)
            return
        self.choices += 1
        if op.kind == Op.LOOK:
            select.looked = True
            if op.kv_line == 0:
                self._looks[op.squeue].popleft()
                self._summaries.touched.discard(op.squeue * self.region.config.pages + op.page)
        if op.kind != Op.UNHOLD:  # pages without a summary are looked for beside these
            select.dropped.clear()
        select.reply = decided
        if op.kind == Op.HOLD:
            # Its answer is that of its last HOLD: a SELECT of another layer may give the slots
            # back before anything more is heard of this one.
            select.ahead = self._next(select, None)

    def _fetched(self, op: TrackerOp) -> None:
        """A guess that has pages fetched is over, and tables know of it before one has to go for
        them."""
        for select in list(self._followed):
            guess = select.speculative and select.squeue == op.squeue
            if guess and select.looked and select.ahead is None:
                select.ahead = self._next(select, None)

    def finish(self) -> None:
        """The answers have come: nothing more is asked for."""
        self._ends = True
        for select in list(self._followed):
            wanted = self._next(select, None)
            if wanted is not None:
                self._wrong("op of a choice", None, wanted)
        self._ends = False
        self._followed.clear()
        self._order.clear()

    def _next(self, select: _Followed, op: TrackerOp | None) -> TrackerOp | None:
        """The op that the SELECT asks for next, `op` being the one that the device commits; None
        when it is over."""
        if select.ahead is not None:
            step, select.ahead = select.ahead, None
            return step
        reply, select.reply = select.reply, None
        if select.waits:
            # It went on if there is an op of it; otherwise its time was over when it was answered.
            reply, asked = op is not None, select.waits
            select.waits, select.looked = None, False
            self.waited += reply
            if not reply and not asked.tries:
                self._wrong("wait", "answered at once", asked)
        while True:
            try:
                step = select.steps.send(reply)
            except StopIteration:
                self._followed.remove(select)
                return None
            reply = None
            if isinstance(step, Holds):
                reply = self._holds(select, step, op)
            elif isinstance(step, Waits):
                if op is None and not self._ends:
                    select.waits = step
                    return None
                reply = False
            elif isinstance(step, Built):
                if not step.lines:
                    dict.pop(self._summaries, step.page, None)
                elif step.page not in self._summaries.touched:
                    self._summaries[step.page] = step.lines, step.summary
            else:
                return step

    def _holds(self, select: _Followed, asked: Holds, op: TrackerOp | None):
        """What the device found, as its next op has it, among what it may have found."""
        now, before = self._summaries.get(asked.page), select.dropped.get(asked.page)
        legal = [found for found in (now, before) if found and found[0] == asked.lines]
        page = op and op.squeue * self.region.config.pages + op.page
        looks = op and op.kind == Op.LOOK and op.kv_line == 0 and page == asked.page
        if looks and op.page == 0:
            # The first page is looked at to be scored, too: then the newest page comes before it
            # comes again.
            ahead = list(self._looks[op.squeue])[1:]
            looks = 0 in ahead[: (ahead + [select.newest]).index(select.newest)]
        self.raced += asked.page in select.dropped
        if not looks and legal:
            return legal[0][1]
        if looks and now and now[0] == asked.lines and asked.page not in select.dropped:
            self._wrong("summary", "built anew", "holds")
        return None
