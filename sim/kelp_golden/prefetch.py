# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Golden model of the prefetcher in lock-step: which pages it asks for, in which order (spec §7,
docs/design.md §8).

One trigger at a time: an access, a step advance, the pages of a hint line, or a MemSpecRd. The
trigger's method returns the PREFETCH ops that leave for M3; the caller carries them out in that
order and reports each with `result` before the next trigger.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from kelp_spec.config import Config
from kelp_spec.metadata import PrefetchSource

__all__ = ["Candidate", "Prefetcher", "Throttle"]

_ALL = frozenset(s for s in PrefetchSource if s)


class Candidate(NamedTuple):
    """A page to fetch, and who says so."""

    source: PrefetchSource
    session: int
    squeue: int
    page: int


class Throttle:
    """Credit of one source: of every 64 candidates it offers, the first `credit` pass; every 256
    issued it is halved or raised."""

    __slots__ = ("credit", "_earned", "_issued", "_offered", "_useful")

    def __init__(self):
        self.credit = self._earned = 64
        self._issued = self._offered = self._useful = 0

    def settle(self) -> None:
        """A trigger begins: what was earned since the last one counts from here on."""
        self.credit = self._earned

    def offer(self) -> bool:
        """One more candidate; may it pass?"""
        place = self._offered % 64
        self._offered += 1
        return place < self.credit

    def issue(self) -> None:
        self._issued += 1
        if self._issued % 256 == 0:
            if self._useful >= 64:
                self._earned = min(64, self._earned + 1)
            else:
                self._earned = max(1, self._earned // 2)
            self._useful = 0

    def use(self) -> None:
        self._useful += 1


class Prefetcher:
    """State of all five sources.

    Parameters
    ----------
    config : Config
    sessions : sequence
        Live objects with the session registers as attributes: open, closing, ld_id, used_queues,
        used_pages, kv_heads.
    enable : iterable of PrefetchSource
        Sources that are switched on; may be changed between triggers.
    previous : int
        Accesses remembered for the next step, of all sessions together.

    Attributes
    ----------
    issued, refused, useful, useless, late : Counter by source
    dropped : Counter by (source, reason); reasons are the names "OUTSIDE", "DISABLED", "THROTTLED"
    """

    def __init__(
        self,
        config: Config,
        sessions,
        *,
        enable: Iterable[PrefetchSource] = _ALL,
        previous: int = 256,
    ):
        self.config = config
        self.sessions = sessions
        self.enable = set(enable)
        ring = previous >> (config.sessions - 1).bit_length()
        self._accessed = [deque(maxlen=ring) for _ in range(config.sessions)]
        self.throttles = {s: Throttle() for s in _ALL}
        self.issued, self.refused, self.useful, self.useless, self.late, self.dropped = (
            Counter() for _ in range(6)
        )

    # - triggers -----------------------------------------------------------------------------------
    def access(self, session: int, squeue: int, page: int, window: int) -> list[Candidate]:
        """The first demand of `page` in a step; `window` is the queue's W. Same page of the next
        layer, then page + 1, − 1, + 2, − 2, …"""
        found = []
        regs = self.sessions[session]
        enable = self.enable
        if PrefetchSource.LAYER_AHEAD in enable:
            ahead = squeue + regs.kv_heads
            if ahead - session * self.config.queues < regs.used_queues:
                found.append((PrefetchSource.LAYER_AHEAD, ahead, page))
        if PrefetchSource.WINDOW in enable:
            for distance in range(1, window + 1):
                if page + distance < regs.used_pages:
                    found.append((PrefetchSource.WINDOW, squeue, page + distance))
                if page >= distance:
                    found.append((PrefetchSource.WINDOW, squeue, page - distance))
        if PrefetchSource.PREVIOUS in enable:
            self._accessed[session].append((squeue, page))
        return self._judge(session, found)

    def step(self, session: int) -> list[Candidate]:
        """The session's step advanced: what the ended step accessed last, oldest first."""
        found = [
            (PrefetchSource.PREVIOUS, squeue, page) for squeue, page in self._accessed[session]
        ]
        self._accessed[session].clear()
        return self._judge(session, found)

    def hint(self, pages: Iterable[tuple[int, int]]) -> list[Candidate]:
        """The (squeue, page) entries of a PREFETCH hint line. A page that comes twice is refused
        the second time, where a device may have merged the two before."""
        self.settle()
        return [
            candidate
            for squeue, page in pages
            for candidate in self._pass(
                squeue // self.config.queues, [(PrefetchSource.HINT, squeue, page)]
            )
        ]

    def spec_read(self, squeue: int, page: int, ld_id: int) -> list[Candidate]:
        """A MemSpecRd of an LD-ID: of a session of another's it is OUTSIDE."""
        self.settle()
        session = squeue // self.config.queues
        found = [(PrefetchSource.SPEC_READ, squeue, page)]
        return self._pass(session, found, mine=self.sessions[session].ld_id == ld_id)

    def closed(self, session: int) -> None:
        """The session is closing: what it accessed is forgotten."""
        self._accessed[session].clear()

    # - feedback -----------------------------------------------------------------------------------
    def result(self, source: PrefetchSource, taken: bool) -> None:
        """M3's answer to a PREFETCH op."""
        if taken:
            self.issued[source] += 1
            self.throttles[source].issue()
        else:
            self.refused[source] += 1

    def usage(self, source: PrefetchSource, useful: bool) -> None:
        """A prefetched page was demanded while resident (useful), or evicted before."""
        if useful:
            self.useful[source] += 1
            self.throttles[source].use()
        else:
            self.useless[source] += 1

    def met_late(self, source: PrefetchSource) -> None:
        """A demand met a prefetch of `source` that was still fetching."""
        self.late[source] += 1

    # ----------------------------------------------------------------------------------------------
    def _judge(self, session, found):
        self.settle()
        return self._pass(session, found)

    def settle(self) -> None:
        """Nothing is under way: the credits earned so far take effect. Every trigger begins with
        it."""
        for throttle in self.throttles.values():
            throttle.settle()

    def _pass(self, session, found, mine=True):
        regs = self.sessions[session]
        live = regs.open and not regs.closing and mine
        last_squeue = session * self.config.queues + regs.used_queues
        passed = []
        for source, squeue, page in found:
            if not live or page >= regs.used_pages or squeue >= last_squeue:
                self.dropped[source, "OUTSIDE"] += 1
            elif source not in self.enable:
                self.dropped[source, "DISABLED"] += 1
            elif not self.throttles[source].offer():
                self.dropped[source, "THROTTLED"] += 1
            else:
                passed.append(Candidate(source, session, squeue, page))
        return passed
