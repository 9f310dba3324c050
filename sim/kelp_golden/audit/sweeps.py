# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Judges the SCANs and CLAIMs of a free-running endpoint in the order in which they were committed
(docs/design.md §6, docs/policy.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kelp_spec.config import Config
from kelp_spec.metadata import PageState
from kelp_spec.policy import Policy

from .. import arithmetic
from ..eviction import Candidate, QueueState, candidate_class, worth
from ..kelp_policy import KelpPolicy
from ..ops import Session
from .offers import OfferAudit
from .victims import ChoiceAudit

__all__ = ["SweepAudit"]

_RESIDENT = int(PageState.RESIDENT)
_NUMBERS = 16  # of sweeps, in `op.slot` of a SCAN


class SweepAudit:
    """Judges the evictor of a free-running endpoint by its SCANs, CLAIMs and RELEASEs in commit
    order; every method returns None or what is wrong.

    A sweep must SCAN every page that was listed when the evictor's op before it was decided, and
    was not unlisted since: the evictor waits until all decisions up to its trigger are absorbed,
    and its trigger comes after that op (docs/design.md §6).

    Parameters
    ----------
    config : Config
    queues : QueueState
        Told of every decision before it is judged here; its `on_change` is taken.
    sessions : sequence
        With `step` and `closing`, as they are now.
    recency : callable
        squeue → (m, sh).
    kelp : KelpPolicy, optional
    """

    def __init__(
        self,
        config: Config,
        queues: QueueState,
        sessions: Sequence[Session],
        recency: Callable[[int], tuple[int, int]],
        kelp: KelpPolicy | None = None,
    ):
        self.config, self.queues, self.sessions = config, queues, sessions
        self.recency, self.kelp = recency, kelp
        self.squeue = self.number = -1
        self.step = self.newest = 0  # as they stood at the sweep's first SCAN
        self.pages: list[int] = []
        self.found: list[Candidate] = []
        # pages on which an eviction was under way since they were scanned
        self.passed_over: set[int] = set()
        self.working: set[tuple[int, int]] = set()
        # pages that the sweep under way has yet to SCAN; those listed since the evictor's last op
        self.to_scan: set[int] = set()
        self.fresh: set[tuple[int, int]] = set()
        self.choice, self.offers = ChoiceAudit(config, queues), OfferAudit(config, queues)
        # the choice under way has swept or claimed; it has swept
        self.searching = self.swept = False
        self.outdated = False  # the list was stale when the last choice ended
        self.outlived = False  # its session has been closing since it was made
        queues.on_change = self._changed

    def _changed(self, squeue: int, page: int, moved: bool) -> None:
        if moved and page in self.queues.listed[squeue]:
            self.fresh.add((squeue, page))
        elif moved and squeue == self.squeue:
            self.to_scan.discard(page)
        self.choice.changed(squeue, page, moved)
        self.offers.changed(squeue, page, moved)

    def scan(
        self,
        squeue: int,
        page: int,
        number: int,
        state: int,
        last_step: int,
        pinned: int,
        score: int,
    ) -> str | None:
        """``state`` … ``score`` are the page's own, not what the device read."""
        step, wrong = self.sessions[squeue // self.config.queues].step, None
        if (squeue, number) != (self.squeue, self.number):
            # Sweeps between these two found no page to SCAN, its last one having gone before.
            unseen = (number - self.number) % _NUMBERS != 1
            wrong = self.finish() or self._asked(squeue, unseen)
            self.squeue, self.number, self.step, self.newest = (
                squeue,
                number,
                step,
                self.queues.newest[squeue],
            )
            self.pages, self.found, self.passed_over = [], [], set()
            self.to_scan = {p for p in self.queues.listed[squeue] if (squeue, p) not in self.fresh}
            self.searching = self.swept = True
            self.outlived = bool(self.sessions[squeue // self.config.queues].closing)
        else:
            self.offers.scanned()
        self.fresh.clear()
        self.to_scan.discard(page)
        return wrong or self._scanned(squeue, page, state, last_step, pinned, score, step)

    def closing(self, session: int) -> None:
        """A CLOSE was taken: a list of this session is not used again."""
        self.outlived |= self.squeue // self.config.queues == session

    def left(self, squeue: int) -> None:
        """Policy `kelp`: an access left this queue behind (`KelpPolicy.refresh`)."""
        self.offers.left(squeue)

    def rest(self) -> str | None:
        """The evictor has nothing to do: its sweep is over, and nothing is left for another."""
        return self.finish() or self.offers.rest()

    def finish(self) -> str | None:
        """The sweep is over."""
        left, self.to_scan = self.to_scan, set()
        return f"sweep of squeue {self.squeue} left out pages {sorted(left)}" if left else None

    def _best(self) -> Candidate | None:
        """The best of the list, beside pages that the evictor may have passed over."""
        return min((c for c in self.found if c.page not in self.passed_over), default=None)

    def _asked(self, squeue, unseen):
        """Judges that this queue is swept now; `unseen`: after a sweep without a SCAN."""
        best = self._best() if self.queues.policy[self.squeue] == Policy.EMA else None
        good = (
            best is not None
            and not (self.outlived or unseen or self._stale(best))
            and not self.offers.may_have_dropped(self.queues.pool[self.squeue])
        )
        if self.offers.judges(squeue):
            return self.offers.swept(squeue, sorted(self.found), self.passed_over, good)
        self.offers.keep(sorted(self.found), self.passed_over)
        self.offers.other(squeue, done=False)
        if self.searching:
            if best is not None:
                return f"squeue {squeue} swept, but page {best.page} of {self.squeue} was not tried"
            if squeue == self.squeue and not self.swept:
                return None  # its old list is used up
            return self.choice.following(self.squeue, squeue)
        if good and squeue == self.squeue and self.choice.surely_first(squeue):
            return f"squeue {squeue} swept, but page {best.page} of its list was not tried"
        return self.choice.first(squeue)

    def _stale(self, best):
        return best.kind and self.step != self.sessions[self.squeue // self.config.queues].step

    def _scanned(self, squeue, page, state, last_step, pinned, score, step):
        if self.pages and page <= self.pages[-1]:
            return f"SCAN of squeue {squeue} page {page} after page {self.pages[-1]} in one sweep"
        self.pages.append(page)
        if (squeue, page) in self.working:
            self.passed_over.add(page)
        if state == _RESIDENT and not pinned:
            finished = False
            if self.queues.policy[squeue] == Policy.KELP:
                session = squeue // self.config.queues
                found = self.kelp.scores.scan(
                    score, session, squeue, page, step, step - last_step & arithmetic.AGE_MASK
                )
                p, finished = 65535 - found.value, found.finished
                if self.queues.tables[squeue]:
                    p = min(p, 65535 - worth(self.kelp.tables, squeue, page))
            else:
                p = arithmetic.priority(
                    score,
                    arithmetic.Decay.of(*self.recency(squeue))[
                        arithmetic.age(self.step, last_step)
                    ],
                )
            first = self.queues.tables[squeue]
            kind = candidate_class(page, last_step, self.step, self.newest, finished, first)
            self.found.append(Candidate(kind, -p, page, last_step))
            if len(self.found) > self.config.candidates:
                self.found.remove(max(self.found))
        return None

    def claim(self, squeue: int, page: int, last_step: int, done: bool) -> str | None:
        if squeue != self.squeue:
            return f"CLAIM in squeue {squeue}, swept was {self.squeue}"
        self.found.sort()
        judged = self.offers.judges(squeue)
        plain = self.queues.policy[squeue] == Policy.EMA
        wrong = self.finish()
        if plain and not self.searching:
            wrong = wrong or self._from_old_list(judged)
        elif judged:
            wrong = wrong or self.offers.claimed(squeue, self.found, self.passed_over)
        wrong = wrong or self._claimed(squeue, page, last_step, done)
        if not judged:
            self.offers.other(squeue, done)
        elif done:
            self.offers.given(self.found)
        self.searching = True
        self.fresh.clear()
        if done:
            self.choice.begin()
            self.searching = self.swept = False
            # A page that may have been passed over may be the list's best as well.
            self.outdated = self._best() is not None and (
                bool(self._stale(self.found[0])) or self.outlived
            )
        return wrong

    def _from_old_list(self, judged):
        """Judges that a choice begins with a CLAIM."""
        if self.outdated:
            return f"CLAIM of squeue {self.squeue} from a list that was no longer good"
        if judged:
            return self.offers.begun(self.squeue, self.found, self.passed_over)
        return self.choice.first(self.squeue, listed=True)

    def _claimed(self, squeue, page, last_step, done):
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
