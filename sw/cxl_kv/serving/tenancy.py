# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A tenant's way to a served device: what the device itself does not keep from a neighbour is kept
here.

The device keeps lines, registers, counters and events apart by LD-ID. Left to the server are: the
frame number in a page's word, which would tell how many frames others have taken; numbers and times
of events, which would tell how many others had; the event log of 16, which one tenant could fill
before another's events are read; and pins and slots (docs/select.md), which the device honours
beyond any budget, so that one tenant could keep others out of DRAM.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kelp_spec.address import AddressMap, Region
from kelp_spec.formats import LINE_BYTES
from kelp_spec.hints import HintError, HintKind, unpack
from kelp_spec.select import BELL_FIELDS, SelectMap, record

from ..backends.window import queue_layouts
from ..core import ALL_BYTES, Core, Loaded
from ..errors import HintRefusedError, SelectRefusedError
from ..registers import unpack as unpack_register
from ..transport import LocalTransport

__all__ = ["Kept", "TenantTransport"]

_BY_BUDGET = "which is what this server's budget holds"


class Kept:
    """A tenant's budget, and what it keeps from being evicted, over all of its connections: pages
    that are pinned, and those that choices hold. Of a queue both together are within its budget.

    Choices count as the session's largest one of the queue, until the session closes: the server
    does not see when the device serves a doorbell, or gives slots back.

    Parameters
    ----------
    budget_bytes : int
        Of DRAM, for each queue.
    """

    def __init__(self, budget_bytes: int):
        # A register holds so many; and 0 of them would be no budget at all.
        self.lines = min(max(1, budget_bytes // LINE_BYTES), (1 << 32) - 1)
        # session → pages of each queue that its budget holds
        self.most: dict[int, list[int]] = {}
        # of (session, queue)
        self.pinned: dict[tuple[int, int], set[int]] = {}
        self.chosen: dict[tuple[int, int], int] = {}

    def opened(self, session: int, most: list[int]) -> None:
        self.most[session] = most
        self.pinned = {queue: pages for queue, pages in self.pinned.items() if queue[0] != session}
        self.chosen = {queue: pages for queue, pages in self.chosen.items() if queue[0] != session}

    def take(self, rows: list[bytes], bells: list[tuple[int, bytes]] = ()) -> None:
        """Count what hint lines that are about to be stored pin, and what doorbells (session, line)
        may hold; HintRefusedError or SelectRefusedError where they would go beyond a budget, and
        then none of them counts."""
        chosen = self._bells(bells)
        self.pinned |= self._pins(rows, chosen)
        self.chosen |= chosen

    def _bells(self, bells) -> dict[tuple[int, int], int]:
        after: dict[tuple[int, int], int] = {}
        for session, line in bells:
            bell, most = record(BELL_FIELDS, line), self.most.get(session)
            queue = session, bell["queue"]
            if bell["release"] or bell["speculative"] or most is None or bell["queue"] >= len(most):
                continue
            pages = min(bell["most"] + 2, bell["newest"] + 1)  # the first and the newest beside
            pinned = len(self.pinned.get(queue, ()))
            if pages + pinned > most[bell["queue"]]:
                beside = f", beside {pinned} pinned pages" * bool(pinned)
                raise SelectRefusedError(
                    f"choosing up to {pages} pages of session {session}, queue {bell['queue']} is "
                    + f"refused; legal: {max(0, most[bell['queue']] - pinned)}, the first and the "
                    + f"newest page among them, {_BY_BUDGET}{beside}"
                )
            after[queue] = max(pages, after.get(queue, self.chosen.get(queue, 0)))
        return after

    def _pins(self, rows, chosen) -> dict[tuple[int, int], set[int]]:
        after: dict[tuple[int, int], set[int]] = {}
        for row in rows:
            try:
                hint = unpack(row)
            except HintError:
                continue  # the device drops it, with an event
            most = self.most.get(hint.session)
            if (
                hint.kind not in (HintKind.PIN, HintKind.RELEASE)
                or most is None
                or hint.queue >= len(most)
            ):
                continue
            queue = hint.session, hint.queue
            pages = after.setdefault(queue, set(self.pinned.get(queue, ())))
            pages ^= (
                pages & set(hint.entries)
                if hint.kind == HintKind.RELEASE
                else set(hint.entries) - pages
            )
            held = chosen.get(queue, self.chosen.get(queue, 0))
            if hint.kind == HintKind.PIN and len(pages) + held > most[hint.queue]:
                beside = f", beside {held} pages that its choices hold" * bool(held)
                raise HintRefusedError(
                    f"pinning {len(pages)} pages of session {hint.session}, queue {hint.queue} is "
                    + f"refused; legal: {max(0, most[hint.queue] - held)}, {_BY_BUDGET}{beside}"
                )
        return after


class TenantTransport(LocalTransport):
    """A requester that is not the control plane.

    Parameters
    ----------
    core : Core
    ld_id : int
        1 … 15.
    kept : Kept, optional
        Where the tenant has a budget: it bounds what a session asks for, and :meth:`count` refuses
        a pin list or a choice that would go beyond it.
    """

    def __init__(self, core: Core, ld_id: int, *, kept: Kept | None):
        super().__init__(core, ld_id, shared=True)
        self._kept = kept
        self._told = 0  # events
        self._map, self._region = AddressMap(core.config), np.uint64(core.config.aperture_bits)
        # address of a doorbell → its session
        self._bells: dict[int, int] = {}
        if core.config.select:
            region = SelectMap(core.config)
            self._bells = {
                self._map.select_base + region.bell(session, group) * LINE_BYTES: session
                for session in range(core.config.sessions)
                for group in range(core.config.select_groups)
            }
        by_name = self._control.registers.by_name
        # line of the register window with a page word → the word's place in it, and what of it is
        # shown
        self._words = {}
        for session in range(core.config.sessions):
            register = by_name[f"s{session}_page_word"]
            hidden = next(f for f in register.fields if f.name == "place")
            mask = ~((1 << hidden.bits) - 1 << hidden.low) & (1 << 64) - 1
            self._words[self._map.register_base + register.offset // 64 * 64] = (
                register.offset % 64 // 8,
                np.uint64(mask),
            )

    def load(self, addresses) -> Loaded:
        with self.core.lock:
            loaded = super().load(addresses)
            self._empty_log()
        lines, addresses = loaded.lines, np.asarray(addresses, np.uint64).reshape(-1)
        for i in np.flatnonzero(addresses >= np.uint64(self._map.register_base)).tolist():
            if int(addresses[i]) in self._words:
                word, mask = self._words[int(addresses[i])]
                if not lines.flags.writeable:
                    lines = lines.copy()
                lines[i].view("<u8")[word] &= mask
        return Loaded(lines, loaded.status)

    def slow(self, addresses: np.ndarray) -> np.ndarray:
        """Which lines of a store, bool[n], may take a device long, each: hints, registers and
        doorbells."""
        region = addresses >> self._region
        slow = (region == np.uint64(Region.HINT)) | (region == np.uint64(Region.REGISTER))
        if self._bells:
            slow |= np.isin(addresses, np.fromiter(self._bells, np.uint64, len(self._bells)))
        return slow

    def counted(self, addresses: np.ndarray, byte_enable: np.ndarray | None) -> np.ndarray:
        """Which lines of a store are hints or doorbells that count: those that the device will not
        drop for being partial."""
        if self._kept is None:
            return np.zeros(0, np.int64)
        counted = self.slow(addresses) & (addresses >> self._region != np.uint64(Region.REGISTER))
        if byte_enable is not None:
            counted &= byte_enable == np.uint64(ALL_BYTES)
        return np.flatnonzero(counted)

    def count(self, addresses: np.ndarray, lines: np.ndarray) -> None:
        """Count what hints pin and choices hold; no other store of the tenant may come before these
        are stored. HintRefusedError or SelectRefusedError where they go beyond a budget."""
        sessions = [self._bells.get(address) for address in addresses.tolist()]
        rows = [line.tobytes() for line in lines]
        pairs = list(zip(sessions, rows, strict=True))
        self._kept.take(
            [row for session, row in pairs if session is None],
            [(session, row) for session, row in pairs if session is not None],
        )

    def store(self, addresses, lines, byte_enable=None) -> None:
        with self.core.lock:
            super().store(addresses, lines, byte_enable)
            self._empty_log()

    def _empty_log(self):
        """So that the next tenant's events find room."""
        if self.core.hints:
            self._control.mark(self)

    def events(self) -> list[dict]:
        """As of any transport, numbered from 0 in this tenant's own count, and without times."""
        out = []
        for e in super().events():
            out.append(e | {"number": self._told, "time": 0})
            self._told += 1
        return out

    def opening(self, request: dict) -> Iterator[None]:
        if self._kept is not None:
            request, lines = self._control.checked(request), self._kept.lines
            request["budgets"] = [
                [min(value or lines, lines), queues] for value, queues in request["budgets"]
            ]
        return super().opening(request)

    def _begun(self, session: int, request: dict) -> None:
        if self._kept is not None:
            self._kept.opened(session, self._most(request))

    def _most(self, request: dict) -> list[int]:
        """Pages of each queue that the request's budgets hold."""
        registers, config = self._control.registers, self.config
        shape = unpack_register(registers.register("s0_shape"), request["shape"])
        layouts = queue_layouts(
            config, shape, unpack_register(registers.register("s0_formats"), request["formats"])
        )
        if layouts is None:
            return []  # the device refuses it
        budgets = [request["budgets"][0][0]] * len(layouts)
        for value, queues in request["budgets"][1:]:
            for queue in queues:
                budgets[queue] = value
        return [
            budget // config.frame_lines[layout.pool]
            for budget, layout in zip(budgets, layouts, strict=True)
        ]
