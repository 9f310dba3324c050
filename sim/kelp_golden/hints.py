# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Golden model of the hint absorber: what a hint line does, in order (spec §6, docs/hints.md)."""

from __future__ import annotations

from typing import NamedTuple

from kelp_spec.config import Config
from kelp_spec.hints import HintError, HintKind, unpack
from kelp_spec.metadata import Event, Op

__all__ = ["HintAbsorber", "HintEvent", "HintOp"]

_LIST_OPS = {HintKind.PREFETCH: Op.PREFETCH, HintKind.PIN: Op.PIN, HintKind.RELEASE: Op.UNPIN}


class HintOp(NamedTuple):
    """MASS, PIN, UNPIN, PREFETCH (a candidate for the prefetcher) or STEP (by one)."""

    kind: Op
    session: int
    squeue: int
    page: int = 0
    mass: int = 0


class HintEvent(NamedTuple):
    """An event for the log."""

    code: Event
    ld_id: int
    squeue: int
    page: int = 0
    argument: int = 0


class HintAbsorber:
    """State between lines: the number that each session's next line should carry."""

    def __init__(self, config: Config):
        self.config = config
        self.expected = [0] * config.sessions

    def opened(self, session: int) -> None:
        """The session was opened anew: its lines count from 0."""
        self.expected[session] = 0

    def absorb(
        self, line: bytes, ld_id: int, sessions, broken: bool = False
    ) -> list[HintOp | HintEvent]:
        """Everything `line` causes, in order.

        `sessions[s]` has the session registers as attributes: open, closing, ld_id, used_queues,
        used_pages. `broken`: the write was partial or poisoned.
        """
        raw = int.from_bytes(line, "little")
        number = raw >> 48 & 0xFFFF  # of a malformed line too, for the event
        try:
            if broken:
                raise HintError("partial or poisoned write")
            hint = unpack(line)
        except HintError:
            return [HintEvent(Event.HINT_MALFORMED, ld_id, 0, argument=number)]
        if hint.session >= self.config.sessions:
            return [HintEvent(Event.OUT_OF_MAP, ld_id, 0, argument=hint.session)]
        session = sessions[hint.session]
        base = hint.session * self.config.queues
        if not session.open or session.closing:
            return [HintEvent(Event.CLOSED_SESSION, ld_id, base, argument=number)]
        if ld_id not in (0, session.ld_id):
            return [HintEvent(Event.FOREIGN_LD, ld_id, base, argument=number)]

        done: list[HintOp | HintEvent] = []
        squeue = base + hint.queue if hint.queue < session.used_queues else base
        if hint.sequence != self.expected[hint.session]:
            done.append(
                HintEvent(Event.HINT_GAP, ld_id, squeue, argument=self.expected[hint.session])
            )
        self.expected[hint.session] = (hint.sequence + 1) & 0xFFFF
        step = HintOp(Op.STEP, hint.session, squeue)
        early = hint.advance and hint.kind is HintKind.PREFETCH
        if early:
            done.append(step)
        if hint.queue >= session.used_queues:
            done.append(HintEvent(Event.HINT_BAD_QUEUE, ld_id, squeue, argument=hint.queue))
        else:
            told = False
            for i, entry in enumerate(hint.entries):
                page, mass = (
                    (hint.first_page + i, entry) if hint.kind is HintKind.MASS else (entry, 0)
                )
                if page < session.used_pages:
                    done.append(
                        HintOp(_LIST_OPS.get(hint.kind, Op.MASS), hint.session, squeue, page, mass)
                    )
                elif not told:
                    told = True
                    done.append(
                        HintEvent(
                            Event.HINT_BAD_PAGE,
                            ld_id,
                            squeue,
                            page % self.config.pages,
                            page,
                        )
                    )
        if hint.advance and not early:
            done.append(step)
        return done
