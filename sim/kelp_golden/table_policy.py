# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy 2, the table policy, the executable specification (docs/select_tables.md): what gives
way, what is fetched. Integers; one session.

Frames and flights are in it, since what is decided depends on them; a flight is a page and the
cycle in which it lands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

from kelp_spec import policy2 as p

from .kelp_policy import Scores
from .tables import Learning

__all__ = ["TablePolicy"]


@dataclass(slots=True)
class _Page:
    """Where a page is; what it is worth is the queue's `Learning`."""

    resident: bool = False
    flying: bool = False
    held: bool = False
    shadow: bool = False  #: resident under LRU over one pool
    wanted: int = -1  #: the step in which it was last wanted
    often: int = 0  #: policy `kelp`: its frequency, and the step of its last access
    touched: int = 0


class TablePolicy:
    """``heads``: query heads of a queue. ``latency`` and ``slot``: cycles of the tier to a page's
    first byte, and for a page."""

    def __init__(
        self, queues: int, pages: int, frames: int, *, heads: int, latency: int, slot: int
    ):
        self.frames, self.latency, self.slot = frames, latency, slot
        self.fetch = p.FETCH * heads
        self.pages = [[_Page() for _ in range(pages)] for _ in range(queues)]
        self.learnt = [Learning(pages) for _ in range(queues)]
        sizes = {"pages": pages, "page_words": queues * pages, "squeues": queues, "sessions": 1}
        self.scores, self.step = Scores(SimpleNamespace(**sizes)), 0
        self.flights: deque[tuple[int, _Page]] = deque()
        self.used = self.tier = self.credit = self.reads = self.guessed = self.gap = 0

    def start(self, queue: int, pages, newest: int) -> None:
        """Pages that are resident when the session begins to decode, and the newest."""
        self.scores.newest[queue] = newest
        for page in pages:
            one = self.pages[queue][page]
            one.resident = one.shadow = True
            self.used += 1

    def land(self, now: int) -> None:
        while self.flights and self.flights[0][0] <= now:
            _, page = self.flights.popleft()
            page.flying, page.resident = False, True

    def turn(self, queue: int, step: int) -> None:
        """A queue's turn in a step is under way."""
        self.step = step
        self.scores.turn[0] = (step & 255, queue, 0)

    def hold(self, queue: int, pages) -> None:
        """Pages of a queue that may not go."""
        for number, page in enumerate(self.pages[queue]):
            page.held = number in pages

    def opened(self, queue: int, newest: int, step: int) -> None:
        """The newest page is written for the first time."""
        self.turn(queue, step)
        if self.used >= self.frames and not self._evict(newest):
            return
        page = self.pages[queue][newest]
        page.resident = page.shadow = True
        page.wanted = page.touched = step
        page.often = self.scores.allocate(0, queue, newest, step)
        self.turn(queue, step)
        self.used += 1

    def demand(
        self, queue: int, wanted: dict[int, int], newest: int, now: int, *, must: bool
    ) -> int:
        """Fetches pages that a choice wanted and did not find, of some mass (summed over the heads,
        16 bits each); with ``must`` whatever it costs. When the last of them lands."""
        latest = now
        for number, mass in sorted(wanted.items()):
            page = self.pages[queue][number]
            if number >= newest or page.resident:
                continue
            if not must and mass < self.fetch:
                continue
            if not page.flying and not self._take(page, newest, now, must):
                continue
            if must:
                latest = max(latest, next(at for at, one in self.flights if one is page))
        return latest

    def _take(self, page, newest, now, must=False) -> bool:
        if not must and self._busy(now):
            return False
        if self.used >= self.frames and not self._evict(newest):
            return False
        self.tier = max(now, self.tier) + self.slot
        self.flights.append((self.tier + self.latency, page))
        page.flying = True
        self.used += 1
        self.reads += 1
        self.credit -= p.COST
        return True

    def _busy(self, now: int) -> bool:
        late = self.tier - now > p.BACKLOG * self.slot
        return late or len(self.flights) * p.FLYING_SHARE >= self.frames

    def _evict(self, newest: int) -> bool:
        """The page of least value gives way, of equal ones the first; False where none may."""
        best = None
        for queue, (pages, learnt) in enumerate(zip(self.pages, self.learnt, strict=True)):
            for number in range(1, newest):  # every choice takes the first and the newest
                page = pages[number]
                if page.resident and not page.held:
                    gap = self.step - page.touched
                    kelp = self.scores.scan(page.often, 0, queue, number, self.step, gap).value
                    value = max(kelp, learnt.pages[number].value)
                    if best is None or value < best[0]:
                        best = value, page
        if best is not None:
            best[1].resident = False
            self.used -= 1
        return best is not None

    def turn_over(self, queue: int, read, newest: int, step: int) -> None:
        """A queue's turn in a step is over; ``read`` are the pages chosen or wanted."""
        for number, page in enumerate(self.pages[queue][: newest + 1]):
            if number in read:
                if not page.shadow:
                    self.credit = min(self.credit + p.EARNED, p.CREDIT_MOST)
                    page.shadow = True
                page.wanted = step
                if page.resident:
                    gap, page.touched = step - page.touched, step
                    page.often = self.scores.touch(page.often, 0, queue, number, step, gap)
        self.turn(queue, step)
        self._shrink()
        self.learnt[queue].turn_over(read, newest, step)

    def _shrink(self) -> None:
        """LRU's shadow loses its oldest pages, of equal ones the lowest, beyond the frames. A page
        of this step stays; where there are no others, the latest has found no frame."""
        held = [page for pages in self.pages for page in pages if page.shadow]
        beyond = max(0, len(held) - self.frames)
        older = sorted((p for p in held if p.wanted < self.step), key=lambda page: page.wanted)
        of_step = [page for page in held if page.wanted == self.step]
        for page in [*older, *reversed(of_step)][:beyond]:
            page.shadow = False

    def early(self, queue: int, masses: dict[int, int], newest: int, now: int) -> None:
        """A guessed query of a queue; ``masses`` of the pages that were scored. Nothing is fetched
        where layers follow one another in less time than the tier needs: it would land after the
        queue's turn."""
        if now != self.guessed:
            self.gap, self.guessed = now - self.guessed, now
        learnt = self.learnt[queue]
        learnt.guess(masses, newest)
        for _ in range(p.EARLY_MOST):
            if self.credit <= 0 or self.gap < self.latency:
                break
            least = p.THRESHOLD - self.credit * p.THRESHOLD_CREDIT // p.COST
            pages = enumerate(self.pages[queue][:newest])
            absent = [number for number, page in pages if not page.resident and not page.flying]
            best = max(absent, key=learnt.likely, default=None)
            if best is None or learnt.likely(best) <= least:
                break
            if not self._take(self.pages[queue][best], newest, now):
                break
