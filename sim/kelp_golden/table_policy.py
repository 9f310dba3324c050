# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy 2, the table policy, the executable specification (docs/select.md, "Policy 2"): who would
be wanted in a queue's next turn, what gives way, what is fetched. Integers; one session.

Frames and flights are in it, since what is decided depends on them; a flight is a page and the
cycle in which it lands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kelp_spec import policy2 as p

__all__ = ["TablePolicy"]


@dataclass(slots=True)
class _Page:
    resident: bool = False
    flying: bool = False
    held: bool = False
    shadow: bool = False  #: resident under LRU over one pool
    value: int = 0
    post: int = 0
    fast: int = 0
    slow: int = 0
    folded: int = 0  #: the step to which fast and slow are
    wanted: int = -1  #: the step in which it was last wanted
    entry: tuple[int, int, int] | None = None  #: of V, after its last turn
    guessed: tuple[int, int] | None = None  #: of T, when its turn began


def _octave(x: int) -> int:
    return x.bit_length() - 1


def _bucket(x: int, top: int, n: int) -> int:
    return min(max(0, n - 1 - (top - _octave(x))), n - 1) if x else 0


def _side(x: int) -> int:
    return min(max(_octave(max(x, 1)) - 16 + p.T_SIDE, 0), p.T_SIDE - 1)


class TablePolicy:
    """``heads``: query heads of a queue. ``latency`` and ``slot``: cycles of the tier to a page's
    first byte, and for a page."""

    def __init__(
        self, queues: int, pages: int, frames: int, *, heads: int, latency: int, slot: int
    ):
        self.queues, self.frames, self.latency, self.slot = queues, frames, latency, slot
        self.fetch = p.FETCH * heads
        self.pages = [[_Page() for _ in range(pages)] for _ in range(queues)]
        self.counts = [[0] * pages for _ in range(queues)]
        v, t = p.start_of_v(), p.start_of_t()
        self.v = [
            {(i, j, k): v[64 * i + 8 * j + k] for i in range(4) for j in range(8) for k in range(8)}
            for _ in range(queues)
        ]
        side = range(p.T_SIDE)
        self.t = [{(i, j): t[p.T_SIDE * i + j] for i in side for j in side} for _ in range(queues)]
        self.flights: deque[tuple[int, _Page]] = deque()
        self.used = self.tier = self.credit = self.reads = self.guessed = self.gap = 0

    def start(self, queue: int, pages) -> None:
        """Pages that are resident when the session begins to decode."""
        for page in pages:
            one = self.pages[queue][page]
            one.resident = one.shadow = True
            self.used += 1

    def land(self, now: int) -> None:
        while self.flights and self.flights[0][0] <= now:
            _, page = self.flights.popleft()
            page.flying, page.resident = False, True

    def hold(self, queue: int, pages) -> None:
        """Pages of a queue that may not go."""
        for number, page in enumerate(self.pages[queue]):
            page.held = number in pages

    def opened(self, queue: int, newest: int, step: int) -> None:
        """The newest page is written for the first time."""
        if self.used >= self.frames and not self._evict(queue, newest):
            return
        page = self.pages[queue][newest]
        page.resident = page.shadow = True
        page.wanted = page.folded = step
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
            if not page.flying and not self._take(queue, page, page.value, newest, now, must):
                continue
            if must:
                latest = max(latest, next(at for at, one in self.flights if one is page))
        return latest

    def _take(self, queue, page, value, newest, now, must=False) -> bool:
        if not must and self._busy(now):
            return False
        if self.used >= self.frames:
            found = self._victim(queue, newest)
            if found is None or (not must and (found[0] >> 8) * p.ADMIT > value << 8):
                return False
            found[1].resident = False
            self.used -= 1
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

    def _victim(self, asks: int, newest: int) -> tuple[int, _Page] | None:
        best = None
        for queue, pages in enumerate(self.pages):
            later = p.LATER[(queue - asks) % self.queues * p.LATER_STEPS // self.queues]
            for page in pages[1:newest]:  # every choice takes the first and the newest
                if page.resident and not page.held:
                    value = page.value * later
                    if best is None or value < best[0]:
                        best = value, page
        return best

    def _evict(self, queue: int, newest: int) -> bool:
        found = self._victim(queue, newest)
        if found is not None:
            found[1].resident = False
            self.used -= 1
        return found is not None

    def turn_over(self, queue: int, read, newest: int, step: int) -> None:
        """A queue's turn in a step is over; ``read`` are the pages chosen or wanted."""
        counts, v, t = self.counts[queue], self.v[queue], self.t[queue]
        if step % p.PROFILE_STEPS == 0:
            counts[:] = [count >> 1 for count in counts]
        for number, page in enumerate(self.pages[queue][: newest + 1]):
            idle = min(step - page.folded, p.FOLDED)
            page.folded = step
            page.fast = page.fast * p.FAST_FOLD[idle] >> 16
            page.slow = page.slow * p.SLOW_FOLD[idle] >> 16
            if number in read:
                page.fast += (4095 - page.fast) * p.FAST + 128 >> 8
                page.slow += (4095 - page.slow) * p.SLOW + 128 >> 8
                counts[newest - number] = min(127, counts[newest - number] + 1)
                if not page.shadow:
                    self.credit = min(self.credit + p.EARNED, p.CREDIT_MOST)
                    page.shadow = True
                page.wanted = step
        self._shrink()
        for number, page in enumerate(self.pages[queue][: newest + 1]):
            count = counts[newest - number]
            entry = _bucket(page.fast, 8, 4), _bucket(page.slow, 11, 8), _bucket(count, 6, 8)
            if number < newest:
                if page.entry is not None:
                    aim = p.ONE if number in read else v[entry] * p.LATER_READ >> 8
                    v[page.entry] += aim - v[page.entry] >> p.V_SHIFT
                if page.guessed is not None:
                    aim = p.ONE if number in read else 0
                    t[page.guessed] += aim - t[page.guessed] >> p.T_SHIFT
            page.guessed, page.entry = None, entry
            page.value = page.post = v[entry]

    def _shrink(self) -> None:
        """LRU's shadow loses its oldest pages, of equal ones the lowest, beyond the frames."""
        held = [page for pages in self.pages for page in pages if page.shadow]
        for page in sorted(held, key=lambda page: page.wanted)[: max(0, len(held) - self.frames)]:
            page.shadow = False

    def early(self, queue: int, masses: dict[int, int], newest: int, now: int) -> None:
        """A guessed query of a queue; ``masses`` of the pages that were scored. Nothing is fetched
        where layers follow one another in less time than the tier needs: it would land after the
        queue's turn."""
        if now != self.guessed:
            self.gap, self.guessed = now - self.guessed, now
        pages, t = self.pages[queue][:newest], self.t[queue]
        for number, page in enumerate(pages):
            page.guessed = _side(page.post), _side(masses.get(number, 0))
            likely = t[page.guessed]
            page.value = likely + ((p.ONE - likely) * page.post >> 16) * p.UNGUESSED // 256
        for _ in range(p.EARLY_MOST):
            if self.credit <= 0 or self.gap < self.latency:
                break
            least = p.THRESHOLD - self.credit * p.THRESHOLD_CREDIT // p.COST
            absent = [page for page in pages if not page.resident and not page.flying]
            best = max(absent, key=lambda page: t[page.guessed], default=None)
            if best is None or t[best.guessed] <= least:
                break
            if not self._take(queue, best, min(best.value, t[best.guessed]), newest, now):
                break
