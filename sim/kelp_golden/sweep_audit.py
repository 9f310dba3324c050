# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Judges the SCANs and CLAIMs of a free-running endpoint in the order in which they were committed
(docs/design.md §6, docs/policy.md)."""

from __future__ import annotations

from collections.abc import Callable

from kelp_spec.config import Config
from kelp_spec.metadata import PageState
from kelp_spec.policy import Policy

from . import arithmetic
from .eviction import Candidate, QueueState, candidate_class
from .kelp_policy import FIRST, SECOND, KelpPolicy

__all__ = ["SweepAudit"]

_RESIDENT = int(PageState.RESIDENT)


class SweepAudit:
    """Judges the evictor of a free-running endpoint by its SCANs, CLAIMs and RELEASEs in commit
    order; every method returns None or what is wrong."""

    def __init__(
        self,
        config: Config,
        queues: QueueState,
        recency: Callable[[int], tuple[int, int]],
        kelp: KelpPolicy | None = None,
    ):
        self.config, self.queues, self.recency, self.kelp = config, queues, recency, kelp
        self.squeue = self.number = -1
        self.step = self.newest = 0  # as they stood at the sweep's first SCAN
        self.pages: list[int] = []
        self.found: list[Candidate] = []
        # policy `kelp`: whom the sweep follows, and its factor, as they stood at its first SCAN
        self.opinion = self.near = 0
        # the best page of the other opinion, until the sweep's first CLAIM
        self.other: Candidate | None = None
        # pages on which an eviction was under way since they were scanned
        self.passed_over: set[int] = set()
        self.working: set[tuple[int, int]] = set()

    def scan(
        self,
        squeue: int,
        page: int,
        number: int,
        state: int,
        last_step: int,
        pinned: int,
        score: int,
        step: int,
    ) -> str | None:
        """``state`` … ``score`` are the page's own, not what the device read; ``step`` the
        session's now."""
        if (squeue, number) != (self.squeue, self.number):
            self.squeue, self.number, self.step, self.newest = (
                squeue,
                number,
                step,
                self.queues.newest[squeue],
            )
            self.pages, self.found, self.passed_over, self.other = [], [], set(), None
            if self.kelp is not None:
                self.opinion, self.near = self.kelp.followed, self.kelp.near
        if self.pages and page <= self.pages[-1]:
            return f"SCAN of squeue {squeue} page {page} after page {self.pages[-1]} in one sweep"
        self.pages.append(page)
        if (squeue, page) in self.working:
            self.passed_over.add(page)
        if state == _RESIDENT and not pinned:
            kind = candidate_class(page, last_step, self.step, self.newest)
            if self.queues.policy[squeue] == Policy.KELP:
                session = squeue // self.config.queues
                found = self.kelp.scores.scan(
                    score, session, squeue, page, step, step - last_step & arithmetic.AGE_MASK
                )
                p = 65535 - self.kelp.worth(found, self.opinion, self.near)
                other = Candidate(
                    kind,
                    self.kelp.worth(found, FIRST + SECOND - self.opinion, self.near) - 65535,
                    page,
                    last_step,
                )
                if not kind and (self.other is None or other < self.other):
                    self.other = other
            else:
                p = arithmetic.priority(
                    score,
                    arithmetic.Decay.of(*self.recency(squeue))[
                        arithmetic.age(self.step, last_step)
                    ],
                )
            self.found.append(Candidate(kind, -p, page, last_step))
            if len(self.found) > self.config.candidates:
                self.found.remove(max(self.found))
        return None

    def claim(
        self, squeue: int, page: int, last_step: int, done: bool, given_by: int = 0
    ) -> str | None:
        if squeue != self.squeue:
            return f"CLAIM in squeue {squeue}, swept was {self.squeue}"
        self.found.sort()
        other, self.other = self.other, None
        if (
            other is not None
            and given_by == FIRST + SECOND - self.opinion
            and (other.page, other.last_step)
            == (page, last_step)
            != (self.found[0].page, self.found[0].last_step)
        ):
            if done:
                self.working.add((squeue, page))
            return None
        if given_by and (other is None or given_by != self.opinion or other.page == page):
            return (
                f"CLAIM of squeue {squeue} page {page} for opinion {given_by} alone, which "
                + "is not so"
            )
        while self.found:
            best = self.found.pop(0)
            if (best.page, best.last_step) == (page, last_step):
                if done:
                    self.working.add((squeue, page))
                return None
            if best.page not in self.passed_over:
                return (
                    f"CLAIM of squeue {squeue} page {page}, the best candidate is page "
                    + f"{best.page} (class {best.kind}, priority {best.priority})"
                )
        return f"CLAIM of squeue {squeue} page {page}, which is no candidate"

    def release(self, squeue: int, page: int) -> str | None:
        if (squeue, page) not in self.working:
            return f"RELEASE of squeue {squeue} page {page}, which no CLAIM took"
        self.working.discard((squeue, page))
        return None
