# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Lock-step mode: one request at a time, the engine idle between (spec §9).

touch → (victim, when no frame is free) → fetch → answer → prefetches in order → evict to the target
→ under policy `kelp`, value the queue left behind anew → quiescent. Every op is decided here
without a look at the device; `log` has them in the order in which stage M3 of a device in lock-step
must decide them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kelp_spec.metadata import Answer, MissKind, Op, Outcome, PageState, PrefetchSource

from .audit.stream import Expected
from .endpoint import Endpoint
from .eviction import Evictor
from .hints import HintAbsorber
from .lines import POISONED, ZEROS
from .ops import Op as TrackerOp
from .ops import Result, Session
from .prefetch import Candidate, Prefetcher

__all__ = ["LockStep"]

#: of a request, what its replay has too
_LINE = ("kv_line", "write", "partial", "poison", "ld_id", "origin")
_ACCESSED = (Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED)


class LockStep:
    """Drives a golden endpoint as a device in lock-step would go.

    Parameters
    ----------
    endpoint : Endpoint
        Configured; `tracker.low_water`, `reserve` and limits as in the device's registers.
    evict_target : int
        Frames of each used pool that eviction keeps free (register `high_water`).
    enable : iterable of PrefetchSource
    log : callable, optional
        Called with each Result, in order. SCANs, which change nothing, are carried out only where
        there is a log.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        evict_target: int,
        enable=(),
        log: Callable[[Result], None] | None = None,
    ):
        self.endpoint, self.evict_target, self.log = endpoint, max(1, evict_target), log
        tracker = endpoint.tracker
        self.prefetcher = Prefetcher(endpoint.config, tracker.sessions, enable=enable)
        self.evictor = Evictor(
            endpoint.config,
            endpoint.queues,
            endpoint.words,
            step=lambda s: tracker.sessions[s].step,
            recency=lambda q: endpoint.policies[q].tau,
            closing=lambda s: bool(tracker.sessions[s].closing),
            on_sweep=self._swept,
            kelp=endpoint.kelp,
        )
        self.hints = HintAbsorber(endpoint.config)
        self.victims = self.write_backs = self.prefetches = 0
        #: by squeue: pages that came from flash; also those that a step has read before
        self.fetched = [0] * endpoint.config.squeues
        endpoint.on_usage = lambda source, useful: self.prefetcher.usage(
            PrefetchSource(source), useful
        )
        endpoint.on_late = lambda source: self.prefetcher.met_late(PrefetchSource(source))

    # - what the host does -------------------------------------------------------------------------
    def open(self, session: int, descriptor: Session) -> Result:
        return self._do(TrackerOp(Op.OPEN, session=session), descriptor=descriptor)

    def request(self, op: TrackerOp) -> Expected:
        """A demand READ or WRITE, with everything it causes; returns the answer."""
        result = self._do(op)
        if result.answer:
            kind = (
                Answer.CMP
                if result.answer == Answer.CMP
                else Answer.NXM
                if result.answer == Answer.NXM
                else Answer.DATA
            )
            answer = Expected(kind, ZEROS, result.answer == Answer.POISON)
        else:
            if result.outcome == Outcome.MISSED:
                self._serve(result.miss, op, lost=result.old.state == PageState.LOST)
            version = self.endpoint.version
            answer = (
                Expected(Answer.CMP)
                if op.write
                else Expected(
                    Answer.DATA, ZEROS if version == POISONED else version, version == POISONED
                )
            )
        if result.first and self.prefetcher.enable and result.outcome in _ACCESSED:
            window = self.endpoint.policies[op.squeue].window
            self._prefetch(self.prefetcher.access(op.session, op.squeue, op.page, window))
        self._evict_to_target()
        self._refresh()
        return answer

    def step(self, session: int, delta: int = 1) -> None:
        """The session's step advances, and what it accessed before may be prefetched."""
        self._advance(session, delta)
        self._evict_to_target()

    def hint(self, line: bytes, ld_id: int = 0, *, broken: bool = False) -> None:
        """A hint line, with everything it causes. `broken`: it was written in part, or poisoned."""
        counters = self.endpoint.counters
        counters["hint_lines"] += 1
        prefetch, advances = [], None
        for op in self.hints.absorb(line, ld_id, self.endpoint.tracker.sessions, broken):
            kind = getattr(op, "kind", None)
            if kind == Op.STEP:
                advances = op.session
            elif kind == Op.PREFETCH:
                prefetch.append((op.squeue, op.page))
            elif kind is not None:
                counters["hint_updates"] += kind == Op.MASS
                self._do(
                    TrackerOp(
                        kind, session=op.session, squeue=op.squeue, page=op.page, mass=op.mass
                    )
                )
        self._advance(advances, 1, self.prefetcher.hint(prefetch) if prefetch else [])
        self._evict_to_target()

    def spec_read(self, squeue: int, page: int, ld_id: int = 0) -> None:
        """A MemSpecRd: a suggestion to fetch the page, without an answer."""
        self._prefetch(self.prefetcher.spec_read(squeue, page, ld_id))
        self._evict_to_target()

    def totals(self) -> dict[str, int]:
        """Totals as the device's registers `count_…` have them: the endpoint's, with what its
        engines count, by the names of `kelp_spec.registers.COUNTERS`."""
        found = self.endpoint.counters | {"sweeps": self.evictor.sweeps}
        for (source, _), n in self.prefetcher.dropped.items():
            found[f"prefetch_dropped_{source.name.lower()}"] += n
        return found

    # - engines ------------------------------------------------------------------------------------
    def _advance(self, session: int | None, delta: int, asked: Sequence[Candidate] = ()) -> None:
        """The step of `session`, where one is named; then the pages that were `asked` for, at
        distance 0, and only then the previous step's, at distance 1."""
        if session is not None:
            self._do(TrackerOp(Op.STEP, session=session, delta=delta))
        self._prefetch(asked)
        if session is not None:
            self._prefetch(self.prefetcher.step(session))

    def _do(self, op: TrackerOp, **given) -> Result:
        result = self.endpoint.apply(op, **given)
        if result.changed:
            self.evictor.observe(result.word.state, result.word.pinned, op.kind == Op.RELEASE)
        if self.log is not None:
            self.log(result)
        return result

    def _serve(self, miss: int, op: TrackerOp | None, *, lost: bool = False) -> None:
        """A miss entry's life; `op` is the request parked on it, None for a prefetch, which has its
        frame."""
        endpoint = self.endpoint
        kind, squeue, page, source = endpoint.misses[miss]
        where = dict(session=squeue // endpoint.config.queues, squeue=squeue, page=page, miss=miss)
        pool = endpoint.tracker.queue_configs[squeue].pool
        if kind == MissKind.PREFETCH:
            frame = self._prefetched_frame
        else:
            while endpoint.tracker.pools[pool].free == 0 and self._evict_one():
                pass
            if endpoint.tracker.pools[pool].free == 0:
                self._give_up(kind, op, pool, where, lost)
                return
            frame = self._do(TrackerOp(Op.GRANT, pool=pool, **where)).frame
        self.fetched[squeue] += kind != MissKind.ALLOCATE
        self._do(
            TrackerOp(Op.FILL, frame=frame, miss_kind=kind, lost=int(lost), source=source, **where)
        )
        if op is not None:
            self._replay(op, where, frame=frame)
            answered = endpoint.version
        self._do(TrackerOp(Op.FLIP, frame=frame, miss_kind=kind, **where))
        endpoint.tracker.return_miss(miss)
        if op is not None:
            endpoint.version = answered

    def _give_up(self, kind, op, pool, where, lost) -> None:
        """Nothing can be evicted, so the entry starves: its request is answered without memory, and
        a write is thereby dropped (docs/decisions.md)."""
        self._do(TrackerOp(Op.GRANT, pool=pool, failed=1, **where))
        self._replay(op, where, failed=1)
        self._do(TrackerOp(Op.FLIP, miss_kind=kind, failed=1, lost=int(lost or op.write), **where))
        self.endpoint.tracker.return_miss(where["miss"])
        self.endpoint.version = POISONED

    def _replay(self, op, where, **more) -> None:
        """The request `op` again, as its miss entry's line has it."""
        line = {name: getattr(op, name) for name in _LINE}
        self._do(TrackerOp(Op.REPLAY, **line, **where, **more))

    def _prefetch(self, candidates: Sequence[Candidate]) -> None:
        for c in candidates:
            result = self._do(
                TrackerOp(
                    Op.PREFETCH,
                    session=c.session,
                    squeue=c.squeue,
                    page=c.page,
                    source=int(c.source),
                )
            )
            taken = result.outcome == Outcome.MISSED
            self.prefetcher.result(c.source, taken)
            if taken:
                self.prefetches += 1
                self._prefetched_frame = result.frame
                self._serve(result.miss, None)

    def _evict_to_target(self) -> None:
        for pool in self.endpoint.tracker.pools:
            if pool.used and pool.limit - pool.used < self.evict_target:
                while self._evict_one():
                    pass
                return

    def _evict_one(self) -> bool:
        endpoint, pools = self.endpoint, self.endpoint.tracker.pools
        found = None
        while found is None:  # a pool with nothing to give rests, and keeps no other one waiting
            pool = self.evictor.pool_in_need(
                [p.free - p.waiting for p in pools],
                [p.used for p in pools],
                [0] * len(pools),
                self.evict_target,
            )
            if pool is None:
                return False
            found = self.evictor.attempt(pool, self._claim)
        squeue, page = found
        dirty = self._claimed.dirty
        self.victims += 1
        self.write_backs += dirty
        self._do(
            TrackerOp(
                Op.RELEASE,
                session=squeue // endpoint.config.queues,
                squeue=squeue,
                page=page,
                pool=pool,
                frame=self._claimed_frame,
                written=int(dirty),
            )
        )
        return True

    def _refresh(self) -> None:
        """Policy `kelp`, after the first access of a queue in a step."""
        kelp = self.endpoint.kelp
        if kelp.refresh is not None:
            squeue, kelp.refresh = kelp.refresh, None
            self.evictor.refresh(squeue)

    def _claim(self, squeue: int, page: int, last_step: int) -> bool:
        session = squeue // self.endpoint.config.queues
        result = self._do(
            TrackerOp(Op.CLAIM, session=session, squeue=squeue, page=page, delta=last_step)
        )
        self._claimed, self._claimed_frame = self.endpoint.claim, result.frame
        return result.outcome == Outcome.DONE

    def _swept(self, squeue: int, number: int, pages: list[int]) -> None:
        for page in pages if self.log is not None else ():
            self._do(
                TrackerOp(
                    Op.SCAN,
                    session=squeue // self.endpoint.config.queues,
                    squeue=squeue,
                    page=page,
                    slot=number,
                )
            )
