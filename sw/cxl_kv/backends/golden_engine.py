# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The golden model's lock-step engine as a whole device needs it: line contents that do not grow
with time, CLOSE, failed fetches, pages without a frame."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kelp_golden.codec import decode, encode
from kelp_golden.lines import Lines
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format
from kelp_spec.metadata import Event, MissKind, Op, PageState, PrefetchSource

__all__ = ["DeviceLines", "Engine"]


class DeviceLines(Lines):
    """Lines with one place each: a version is a place, and only the present content is kept.
    Encoded and decoded once, when first read."""

    def __init__(self):
        super().__init__()
        self._rows = np.zeros((64, ELEMENTS), "<u2")
        # format << 1 | host type; −1: already what the host reads
        self._kinds = np.zeros(64, np.int16)
        self._free: list[int] = []
        self._used = 0

    def write(self, key, data: bytes, fmt: int, host_type: int) -> int:
        place = self._place(key)
        self._rows[place] = np.frombuffer(data, "<u2")
        self._kinds[place] = fmt << 1 | host_type if fmt else -1
        return place

    def write_many(self, keys, rows: np.ndarray, fmt: int, host_type: int) -> None:
        """Whole lines: uint8[n, 64] of as many keys."""
        places = [self._place(key) for key in keys]
        self._rows[places] = rows.view("<u2")
        self._kinds[places] = fmt << 1 | host_type if fmt else -1

    def _place(self, key) -> int:
        place = self._current.get(key)
        if place is not None:
            return place
        if self._free:
            place = self._free.pop()
        else:
            place, self._used = self._used, self._used + 1
            if place == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._kinds = np.concatenate([self._kinds, np.zeros_like(self._kinds)])
        self._current[key] = place
        return place

    def forget(self, keys) -> None:
        for key in keys:
            place = self._current.pop(key, None)
            if place is not None:
                self._free.append(place)

    def resolve(self, versions) -> np.ndarray:
        versions = np.asarray(versions, np.int64)
        real = versions >= 0
        wanted = np.unique(versions[real])
        kinds = self._kinds[wanted]
        for kind in np.unique(kinds[kinds >= 0]).tolist():
            mine = wanted[kinds == kind]
            payload, scale = encode(
                np.ascontiguousarray(self._rows[mine]), kind & 1, Format(kind >> 1)
            )
            self._rows[mine] = decode(payload, scale, kind & 1, Format(kind >> 1))
            self._kinds[mine] = -1
        out = self._rows[np.maximum(versions, 0)]
        out[~real] = 0
        return out


class Engine(LockStep):
    """One golden endpoint in lock-step, with the parts of a device's life that a replay never
    meets.

    Parameters
    ----------
    endpoint, evict_target, enable
        As of LockStep.
    log_event : callable
        (Event, ld_id=, squeue=, page=, argument=).
    on_empty : callable
        Called when the last frame of a pool has come back.
    """

    def __init__(
        self, endpoint, *, evict_target: int, log_event: Callable, on_empty: Callable, enable=()
    ):
        super().__init__(endpoint, evict_target=evict_target, enable=enable)
        self.log_event, self.on_empty = log_event, on_empty
        #: that many of the next fetches from the cold tier fail, after their retries
        self.fetches_to_fail = 0

    def _do(self, op: TrackerOp, **given):
        if op.kind == Op.FILL and op.miss_kind != MissKind.ALLOCATE and self.fetches_to_fail:
            self.fetches_to_fail -= 1
            op.failed = 1
            self.log_event(Event.FETCH_FAILED, squeue=op.squeue, page=op.page, argument=op.frame)
        result = super()._do(op, **given)
        if op.kind in (Op.RELEASE, Op.FREE):
            if not self.endpoint.tracker.pools[result.pool].used:
                self.on_empty()
        if result.event:
            self.log_event(Event(result.event), ld_id=op.ld_id, squeue=op.squeue, page=op.page)
        elif op.kind in (Op.READ, Op.WRITE) and op.poison:
            self.log_event(Event.POISON_RECEIVED, ld_id=op.ld_id, squeue=op.squeue, page=op.page)
        return result

    def _give_up(self, kind, op, pool, where, lost) -> None:
        """As a device does after `starve_limit` (docs/decisions.md)."""
        squeue, page = where["squeue"], where["page"]
        if not self.evictor.reported[pool]:
            self.evictor.reported[pool] = True
            self.log_event(Event.NO_VICTIM, squeue=squeue, argument=pool)
        self.log_event(Event.STARVED, squeue=squeue, page=page)
        super()._give_up(kind, op, pool, where, lost)

    def spec_read(self, squeue: int, page: int, ld_id: int) -> None:
        """A MemSpecRd of a page."""
        self._prefetch(self.prefetcher.spec_read(squeue, page, ld_id))
        self._evict_to_target()

    def fetch(self, pages: list[tuple[int, int]]) -> None:
        """Pages that a choice did not find: as by a PREFETCH hint line."""
        self._prefetch(self.prefetcher.hint(pages))
        self._evict_to_target()

    def hint(self, line: bytes, ld_id: int = 0, *, broken: bool = False) -> None:
        for item in self._events_of(line, ld_id, broken):
            self.log_event(
                item.code,
                ld_id=item.ld_id,
                squeue=item.squeue,
                page=item.page,
                argument=item.argument,
            )
        super().hint(line, ld_id, broken=broken)

    def _events_of(self, line, ld_id, broken):
        """What the absorber would log about a line; its own state is left as it is."""
        expected = list(self.hints.expected)
        items = self.hints.absorb(line, ld_id, self.endpoint.tracker.sessions, broken)
        self.hints.expected = expected
        return [item for item in items if hasattr(item, "code")]

    def close(self, session: int) -> None:
        """CLOSE, SCRUB of every page, CLOSED; its frames are free afterwards."""
        endpoint, config = self.endpoint, self.endpoint.config
        self._do(TrackerOp(Op.CLOSE, session=session))
        self.evictor.drop(session)
        self.prefetcher.closed(session)
        first = session * config.queues * config.pages
        for key in sorted(
            k for k in endpoint.tracker.words if first <= k < first + config.queues * config.pages
        ):
            squeue, page = divmod(key, config.pages)
            where = dict(session=session, squeue=squeue, page=page)
            result = self._do(TrackerOp(Op.SCRUB, **where))
            if result.use:
                self._do(TrackerOp(Op.FREE, pool=result.pool, frame=result.frame, **where))
            endpoint.cold.pop(key, None)
        self._do(TrackerOp(Op.CLOSED, session=session))

    # - many lines of one page ---------------------------------------------------------------------
    def settled_frame(self, squeue: int, page: int):
        """The frame entry of a page that this step has touched and whose demand therefore changes
        neither word nor score; None otherwise."""
        word = self.endpoint.tracker.words.get(squeue * self.endpoint.pages + page)
        session = self.endpoint.tracker.sessions[squeue // self.endpoint.config.queues]
        if word is None or word.state != PageState.RESIDENT or word.last_step != session.step:
            return None
        frame = self.endpoint.frames.frames[word.place]
        return None if frame.source and not frame.used else frame

    def usable_prefetch(self, bits: int) -> set[PrefetchSource]:
        """The sources that a `prefetch_enable` register switches on."""
        return {s for s in PrefetchSource if s and bits >> s - 1 & 1}


assert LINE_BYTES == 2 * ELEMENTS
